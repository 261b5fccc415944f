"""The dynamics of synthetic texts out of published statistics of 8B: least squares, everything at once.

What is not found here is assumed (docs/reproduce.md). Drafts are drawn with the same random numbers whatever the
parameters, so that misses are nearly smooth functions of them.
"""

from collections.abc import Mapping
from dataclasses import fields, replace

import joblib
import numpy as np
from scipy.optimize import brentq

from recguide.sim.history import Floats
from recguide.sim.paper.acceptance import Parameters, synthetic_trace
from recguide.sim.paper.calibration import accept_len
from recguide.sim.paper.latent import Dynamics
from recguide.sim.paper.measures import table1
from recguide.sim.paper.published import BENCHMARKS, TABLE2_TAU
from recguide.sim.paper.repository import history, same_state
from recguide.sim.paper.subjects import Subject
from recguide.sim.paper.targets import printed
from recguide.sim.paper.targets import repository as repository_targets
from recguide.sim.paper.targets import table1 as table1_targets

MODEL = "8b"
ASSUMED = ("shared",)
"""Fields of ``Dynamics`` that no published statistic says."""
STEP, MOST_MOVE = 0.06, 0.5
"""By which a parameter is moved to see what it does, and the most that it moves in a turn: logarithms, and ease."""
TURNS, DAMPING, ENOUGH = 6, 0.3, 0.02
"""The fit ends when a turn gains less than this share."""
POINTS = 1.0
TAU_SHARE = 0.005
"""A miss of so many percentage points counts as much as one of this share of tau, or of twice it in other lengths."""
MOST_SHARE = 0.95


def refitted(parameters: Parameters, subject: Subject, requests: int) -> Parameters:
    """The same with the dynamics, and each benchmark's ease, that miss Table 1, the repository's statistics of equal
    prefixes and LinearSS's tau least (Gauss and Newton's method, damped)."""
    at = _vector(parameters)
    now = misses(parameters, subject, requests)
    for _ in range(TURNS):
        slopes = _slopes(parameters, at, subject, requests // 2)
        damped = slopes.T @ slopes + DAMPING * np.diag((slopes**2).sum(axis=0) + 1e-3)
        move = np.clip(-np.linalg.solve(damped, slopes.T @ now), -MOST_MOVE, MOST_MOVE)
        tried = [(misses(_with(parameters, at + move * part), subject, requests), part) for part in (1.0, 0.4)]
        best, part = min(tried, key=lambda each: float(each[0] @ each[0]))
        gained = 1 - float(best @ best) / float(now @ now)
        if gained > 0:
            at, now = at + move * part, best
        if gained < ENOUGH:
            break
    return _with(parameters, at)


def _slopes(parameters: Parameters, at: Floats, subject: Subject, requests: int) -> Floats:
    """[misses, parameters] From a smaller sample of requests."""
    steps = [np.zeros(len(at)), *(np.eye(len(at)) * STEP)]
    run = joblib.delayed(misses)
    found = joblib.Parallel(n_jobs=-1)(run(_with(parameters, at + step), subject, requests) for step in steps)
    slopes: Floats = (np.array(found[1:]) - found[0]).T / STEP
    return slopes


def misses(parameters: Parameters, subject: Subject, requests: int) -> Floats:
    """Every published statistic that the dynamics are fitted to: ours less the published one, in points or shares."""
    there = replace(subject, trace=synthetic_trace(MODEL, parameters, requests), _kept={})
    ours = {**table1(there), **same_state(there)}
    goals = printed({**table1_targets(MODEL), **repository_targets(MODEL)})
    found = []
    for name, value in ours.items():
        share = "length" in name
        found.append((value / goals[name] - 1) / (2 * TAU_SHARE) if share else (value - goals[name]) / POINTS)
    for name, tau in zip(BENCHMARKS, TABLE2_TAU[MODEL]["LinearSS"], strict=True):
        found.append((accept_len(there.of([name]), 16) / tau - 1) / TAU_SHARE)
    return np.array(found)


def _free() -> list[str]:
    return [field.name for field in fields(Dynamics) if field.name not in ASSUMED]


def _vector(parameters: Parameters) -> Floats:
    logs = [np.log(getattr(parameters.dynamics, name)) for name in _free()]
    return np.array([*logs, *(parameters.ease[name] for name in BENCHMARKS)])


def _with(parameters: Parameters, vector: Floats) -> Parameters:
    names = _free()
    values = np.exp(vector[: len(names)])
    found: Mapping[str, float] = {
        name: float(min(value, MOST_SHARE) if name in ("first", "hard_hazard") else value)
        for name, value in zip(names, values, strict=True)
    }
    ease = dict(zip(BENCHMARKS, vector[len(names) :].tolist(), strict=True))
    return replace(parameters, dynamics=replace(parameters.dynamics, **found), ease=ease)


def seen_through(parameters: Parameters, subject: Subject, requests: int) -> float:
    """The noise of the entropy at which history tells rounds that are worth larger blocks as well as published."""
    goals = {name: value for name, value in printed(repository_targets(MODEL)).items() if name.startswith("AUROC")}

    def miss(log_noise: float) -> float:
        noisy = replace(parameters, entropy_noise=float(np.exp(log_noise)))
        served, fitted = (synthetic_trace(MODEL, noisy, requests, seed) for seed in (0, 1))
        found = history(replace(subject, trace=served, calibration=fitted, _kept={}))
        return sum(found[name] - goal for name, goal in goals.items())

    low, high = np.log(0.05), np.log(8.0)
    if miss(low) < 0:
        return float(np.exp(low))
    return float(np.exp(brentq(miss, low, high, xtol=0.02)))
