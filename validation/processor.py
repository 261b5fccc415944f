"""How fast the CPU was that the host's work ran on: a machine that others share may have more than one speed.

Runs and profiles name the seconds of the same Python loop. Nothing is corrected by it, unless that is asked for.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from recguide.sim.costs import CostModel
from recguide.sim.curves import Curve, weighted
from recguide.sim.measurement import Measurement
from recguide.sim.profile_rows import MOST, is_host
from recguide.traces.errors import InputError
from recguide.validation.points import Compared

LOOP = "python_loop_us"
"""Where runs and profiles say so."""
LEAST = 1e-3
"""Microseconds that it may take, and ``MOST`` those that it may take at most: ratios of such times are numbers."""
SLOWER = 1.3
"""Times, from which readers are warned."""


def loop_us(known: Mapping[str, Any]) -> float | None:
    """Microseconds of the loop, where they are known: what is no such time says nothing."""
    found = known.get(LOOP)
    try:
        time_us = math.nan if isinstance(found, bool) else float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return time_us if LEAST <= time_us <= MOST else None


def needed_loop_us(known: Mapping[str, Any], where: str, for_what: str) -> float:
    """The same; InputError where it is not known, or no such time."""
    if LOOP not in known:
        raise InputError(f"{where}: no {LOOP}; {for_what} needs it")
    found = loop_us(known)
    if found is None:
        allowed = f"microseconds from {LEAST:g} to {MOST:g}, for {for_what} needs it"
        raise InputError(f"{where}: {LOOP}: found {repr(known[LOOP])[:40]}, allowed: {allowed}")
    return found


def slowness(runs: Sequence[Measurement], profile: Mapping[str, str]) -> tuple[float | None, ...]:
    """[runs] How many times slower the CPU was than while the profile was measured."""
    base = loop_us(profile)
    loops = [loop_us(each.about.origin) for each in runs]
    return tuple(loop / base if loop and base else None for loop in loops)


def at_speed(costs: CostModel, slower: float) -> CostModel:
    """The same costs on a CPU that is so many times slower: the host takes as much longer, forwards do not."""
    return costs.changed(f"{costs.name}, CPU {slower:.2f} times slower", partial(_slowed, slower))


def _slowed(slower: float, curve: Curve, kind: str, _: int) -> Curve:
    return weighted([(curve, slower)], curve.floor_s * slower) if is_host(kind) else curve


def cpu_warnings(points: Sequence[Compared], profile: Mapping[str, str]) -> list[str]:
    """What readers of host times should know."""
    told = []
    if loop_us(profile) is None and any(None not in point.loop_us for point in points):
        told.append(f"host: the profile has no {LOOP}, so nobody knows whether the CPU was as fast as in the runs")
    slow = [point for point in points if _mean(point.cpu) >= SLOWER]
    if slow:
        worst = max(slow, key=lambda point: _mean(point.cpu))
        most = f"most at {worst.key}, {_mean(worst.cpu):.2f} times"
        told.append(f"host: at {len(slow)} points the CPU was {SLOWER} times slower than the profile's; {most}")
    uneven = [point for point in points if _ratio(point.loop_us) >= SLOWER]
    if uneven:
        worst = max(uneven, key=lambda point: _ratio(point.loop_us))
        most = f"most at {worst.key}, {_ratio(worst.loop_us):.2f} times"
        told.append(f"host: at {len(uneven)} points one repeat's CPU was {SLOWER} times slower than another's; {most}")
    return told


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0


def _ratio(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return max(known) / min(known) if known else 0.0
