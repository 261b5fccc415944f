"""The cross product of policies and concurrencies, every point over the same requests in the same order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import joblib
import numpy as np
import pyarrow as pa

from recguide.sim.arrivals import Clients
from recguide.sim.backends import running_on
from recguide.sim.batching import batching_named
from recguide.sim.bound import bound_tokens_per_s, headroom
from recguide.sim.catalogue import make_policy, rounds_for
from recguide.sim.costs import CostModel
from recguide.sim.detailed import write_detailed
from recguide.sim.figures import Figures
from recguide.sim.levels import Level, level_of
from recguide.sim.loads import Drawn
from recguide.sim.log import Replay
from recguide.sim.metrics import metrics_of
from recguide.sim.pairs import Paid, paid_of, speedup_interval
from recguide.sim.replay import serve, stream
from recguide.sim.rounds import Rounds
from recguide.sim.scenario import Scenario, counts_of
from recguide.sim.served import served_of
from recguide.traces.dense import DenseTrace
from recguide.traces.errors import InputError

if TYPE_CHECKING:
    from recguide.sim.store import Store

Point = dict[str, str | float | int | None]
"""One policy at one concurrency: both of these, its metrics, and its speedup over AR."""

BASELINE = "ar"
DERIVED = ("speedup", "speedup_ci_low", "speedup_ci_high", "bound_output_throughput", "headroom_share")
"""Figures of a point that depend on others."""
NOTICED = 0.05
"""Extrapolated share of a point's time from which readers are warned, and its marker is hollow."""
MOSTLY = 0.5
"""And from which it is a guess."""
ENOUGH = 4
"""Requests for each place in flight, below which filling up and running empty weigh on the whole run's figures."""


def sweep(
    trace: DenseTrace,
    costs: CostModel,
    policies: Sequence[str],
    concurrencies: Sequence[int],
    *,
    num_prompts: int | None = None,
    seed: int = 0,
    jobs: int = 1,
    backend: str = "loky",
    batching: str = "bucket",
    rates: Sequence[float] = (),
    scenario: Scenario | None = None,
    store: "Store | None" = None,
    done: Callable[[], None] = lambda: None,
) -> list[Point]:
    """Points by policy, then by concurrency (0: no limit) and request rate, AR first whether or not it was asked for.

    ``jobs`` processes (-1: one a core) of ``backend`` share the work and change no result; ``done`` is called once a
    point. Points that ``store`` holds are not computed again, and it gets every other one as soon as it is finished.
    """
    batching_named(batching)
    rounds = rounds_for(trace, policies)
    names = list(dict.fromkeys([BASELINE, *policies]))
    for name in names:
        make_policy(name, rounds, costs)
    scenario = scenario or Scenario()
    order = [] if scenario.load.workload else serving_order(len(trace.requests), num_prompts, seed)
    scenarios = {each.rate: each.checked(rounds, trace, order) for each in scenario.at_rates(rates)}
    # the longest runs first, so that no process is left with one at the end
    levels = sorted({Level(concurrency, rate) for concurrency in concurrencies for rate in scenarios})
    grid = [(name, level) for level in levels for name in names]
    held = {key: store.load(*key) for key in grid} if store and not (scenario.detailed or scenario.stream) else {}
    found = {key: point for key, point in held.items() if point is not None}
    todo = [key for key in grid if key not in found]
    # in an open loop the load decides the throughput
    unsure = scenario.figures.resamples > 0 and all(each.load.closed for each in scenarios.values())
    paid = {key: paid_of(store.requests(*key)) for key in found} if store and unsure else {}
    tasks = [(rounds, costs, name, level.concurrency, batching, scenarios[level.rate]) for name, level in todo]
    for key, (point, served) in zip(todo, _computed(tasks, jobs, backend), strict=True):
        found[key] = point
        if served is not None and unsure:
            paid[key] = paid_of(served)
        if store and served is not None:
            store.save(*key, point, served)
        done()
    points = [found[key] for key in sorted(grid, key=lambda key: (names.index(key[0]), key[1]))]
    bounds = _bounds(rounds, costs, concurrencies, scenarios.get(0.0))
    sure = partial(_interval, paid, scenario.figures)
    return [point | _derived(point, points, bounds, sure) for point in points]


Task = tuple[Rounds, CostModel, str, int, str, Scenario]


def _computed(tasks: Sequence[Task], jobs: int, backend: str) -> Iterator[tuple[Point, pa.Table | None]]:
    """The points of these tasks and the rows of their requests, in order, each as soon as it and all before it are."""
    with running_on(backend) as options:
        yield from joblib.Parallel(n_jobs=min(jobs, len(tasks) or 1), batch_size=1, **options)(
            joblib.delayed(_point)(*task) for task in tasks
        )


def _bounds(
    rounds: Rounds, costs: CostModel, concurrencies: Sequence[int], scenario: Scenario | None
) -> Mapping[int, float]:
    """By concurrency, where requests come as others finish, and are as long as they were recorded."""
    if scenario is None or scenario.load.resized or not scenario.load.closed or scenario.limits.prefix_reuse:
        return {}
    load = scenario.load
    prefill = scenario.limits.max_batched_tokens
    return {c: bound_tokens_per_s(rounds, costs, c, load.order, prefill) for c in set(concurrencies) if c > 0}


def _derived(point: Point, points: Sequence[Point], bounds: Mapping[int, float], sure: "Sure") -> Point:
    """What a point is beside others at its level: the figures named in ``DERIVED``."""
    same = [other for other in points if level_of(other) == level_of(point)]
    baseline = next(other for other in same if other["policy"] == BASELINE)
    fixed = [other for other in same if str(other["policy"]).startswith("fixed:")]
    bound = bounds.get(int(point["max_concurrency"] or 0))
    share = headroom(point, fixed, bound) if bound is not None else None
    faster = speedup(point, baseline)
    low, high = (faster is not None and sure(point, faster)) or (None, None)
    return dict(zip(DERIVED, (faster, low, high, bound, share), strict=True))


Sure = Callable[[Point, float], tuple[float, float] | None]
"""The confidence interval of a point's speedup, or None where there is none."""


def _interval(
    paid: Mapping[tuple[str, Level], Paid], figures: Figures, point: Point, faster: float
) -> tuple[float, float] | None:
    level = level_of(point)
    mine, base = paid.get((str(point["policy"]), level)), paid.get((BASELINE, level))
    return speedup_interval(faster, mine, base, figures) if mine is not None and base is not None else None


def _point(
    rounds: Rounds, costs: CostModel, name: str, concurrency: int, batching: str, scenario: Scenario
) -> tuple[Point, pa.Table | None]:
    # joblib hands large arrays over as memory maps, which are slow to index
    rounds = rounds.in_memory()
    if scenario.stream:
        return {"policy": name, **_streamed(rounds, costs, name, concurrency, batching, scenario)}, None
    run = run_of(rounds, costs, name, concurrency, batching, scenario)
    figures = {**metrics_of(run, rounds, scenario.figures), **counts_of(scenario)}
    if scenario.detailed:
        write_detailed(scenario.detailed, name, Level(concurrency, scenario.rate), run, figures)
    return {"policy": name, **figures}, served_of(run, rounds.block_sizes)


def run_of(rounds: Rounds, costs: CostModel, name: str, concurrency: int, batching: str, scenario: Scenario) -> Replay:
    """One policy, by its name, at one concurrency (0: no limit); the scenario must have been checked."""
    load = scenario.load
    return serve(
        rounds,
        costs,
        make_policy(name, rounds, costs),
        load.clients(rounds, scenario.groups, concurrency or None),
        batching=batching_named(batching),
        limits=scenario.limits,
        resized=load.resized,
        closed=load.closed,
    )


def _streamed(
    rounds: Rounds, costs: CostModel, name: str, concurrency: int, batching: str, scenario: Scenario
) -> Point:
    load, policy = scenario.load, make_policy(name, rounds, costs)
    # a run of one request says which figures there are: those that a stream cannot have are null
    first = Clients(islice(load.arrivals(rounds, scenario.groups, Drawn()), 1), None)
    one = serve(rounds, costs, policy, first, batching=batching_named(batching), resized=load.resized)
    known = metrics_of(one, rounds, scenario.figures)
    names = {figure: 0.0 if figure.startswith("block_share_") else None for figure in known}
    figures = stream(
        rounds,
        costs,
        make_policy(name, rounds, costs),
        load.clients(rounds, scenario.groups, concurrency or None),
        scenario.figures,
        batching=batching_named(batching),
        limits=scenario.limits,
        closed=load.closed,
    )
    return {**names, "max_concurrency": concurrency or None, **figures, **counts_of(scenario)}


def serving_order(num_recorded: int, num_prompts: int | None, seed: int) -> list[int]:
    """Rows of the requests to send, shuffled; more than were recorded means whole further shuffles of them."""
    rng = np.random.default_rng(seed)
    wanted = num_recorded if num_prompts is None else num_prompts
    shuffles = [rng.permutation(num_recorded) for _ in range(-(-wanted // num_recorded))]
    rows: list[int] = np.concatenate(shuffles)[:wanted].tolist()
    return rows


def frontier(point: Mapping[str, object]) -> tuple[float, float]:
    """Tokens per second and request, and of all requests: in the steady window, or in the whole run without one."""
    window = "steady_" if point["steady_output_throughput"] is not None else ""
    mine, all_of = point[f"{window}output_throughput_per_request"], point[f"{window}output_throughput"]
    return float(str(mine or 0)), float(str(all_of or 0))


def place_of(point: Mapping[str, object]) -> str:
    """Which point it is, in words."""
    level = level_of(point)
    if not any(level):
        return str(point["policy"])
    return f"{point['policy']} at {level.concurrency}" if not level.rate else f"{point['policy']} at {level}"


def speedup(point: Mapping[str, object], baseline: Mapping[str, object]) -> float | None:
    """Aggregate throughput over the baseline's at the same concurrency."""
    ours, theirs = frontier(point)[1], frontier(baseline)[1]
    return ours / theirs if theirs > 0 else None


def only_datasets(trace: DenseTrace, names: Sequence[str]) -> DenseTrace:
    """The requests of the named datasets, or of all where none is named; ValueError lists those that there are."""
    known = sorted({request.dataset for request in trace.requests})
    for name in names:
        if name not in known:
            raise InputError(f"dataset {name!r}: not in the trace; there are: {', '.join(known)}")
    kept = tuple(request for request in trace.requests if not names or request.dataset in names)
    return replace(trace, requests=kept)


def warnings_of(points: Sequence[Point], num_recorded: int) -> list[str]:
    """What a reader must know before believing the points, in sentences."""
    note = points[0].get("load_note")
    told = [str(note)] if note else []
    if points[0].get("reused_tokens") == 0:
        told.append("no prompt begins like an earlier one, so that --prefix-reuse changes nothing")
    return [*told, *_few_requests(points, num_recorded), *_extrapolation(points)]


def _few_requests(points: Sequence[Point], num_recorded: int) -> list[str]:
    count = int(points[0]["num_prompts"] or 0)
    few = sorted({int(c) for c in (point["max_concurrency"] or 0 for point in points) if ENOUGH * int(c) > count})
    never = [c for c in few if c > count]
    told = []
    if count > num_recorded:
        told.append(f"{count} requests are served from {num_recorded} recorded ones: some more than once")
    if few:
        listed = ", ".join(map(str, few))
        told.append(
            f"{count} requests are fewer than {ENOUGH} for each place at max-concurrency {listed}: expect noise"
        )
    if never:
        told.append(f"max-concurrency {', '.join(map(str, never))} is never reached by {count} requests")
    return told


def _extrapolation(points: Sequence[Point]) -> list[str]:
    shares = {place_of(point): point["extrapolated_share"] or 0 for point in points}
    # what is beyond that is told by a guard
    outside = {where: float(share) for where, share in shares.items() if NOTICED < float(share) <= MOSTLY}
    if not outside:
        return []
    worst = max(outside, key=lambda where: outside[where])
    return [
        f"{len(outside)} of {len(points)} points spend more than {NOTICED:.0%} of their time outside the profiled "
        f"grid, where costs are extrapolated; the most: {worst}, {outside[worst]:.1%}"
    ]
