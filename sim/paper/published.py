"""What is published about Nemotron-Labs-Diffusion 8B and 14B under these policies, as data, each with its place.

"Paper" is the RecGuide paper. "Repository" is github.com/linyewei526/Nemotron-Labs-Diffusion, very probably its
authors' own, as it stood in September 2026.
"""

from collections.abc import Mapping
from typing import NamedTuple

MODELS = ("8b", "14b")
BENCHMARKS = {
    "gsm8k": "math",
    "math500": "math",
    "aime2025": "math",
    "humaneval": "code",
    "mbpp": "code",
    "livecodebench": "code",
    "gpqa": "qa",
    "ifeval": "qa",
}
"""Benchmark to category, in the order of the paper's Table 2; "qa" is its QA & IF."""
CATEGORIES = ("math", "code", "qa")
INTERVALS = ("[1,8]", "(8,16]", "(16,32]")
BLOCK_SIZES = (8, 16, 32)

TABLE1 = ((70.30, 18.11, 11.60), (58.39, 22.42, 19.19), (20.83, 12.51, 66.66))
"""Paper, Table 1: % of next rounds in each interval, by the interval of the round; 8B, B = 32."""
FIGURE2A = (54.0, 17.2, 28.7)
"""Paper, Figure 2a: % of rounds in each interval, 8B, B = 32. The text says "over half" and "nearly 30%"; these are
the shares at which Table 1 is in balance."""

TABLE2_TAU: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "8b": {
        "LinearSS": (9.94, 11.21, 10.49, 9.71, 8.15, 9.78, 10.62, 9.57),
        "DFlash": (4.26, 4.31, 4.90, 4.28, 3.78, 4.64, 5.11, 3.90),
        "TiDAR": (13.44, 15.80, 14.54, 12.92, 9.18, 13.48, 15.18, 12.52),
        "RecGuide": (13.95, 16.08, 15.68, 13.64, 11.08, 13.54, 14.84, 13.33),
    },
    "14b": {
        "LinearSS": (9.74, 10.50, 9.35, 11.99, 10.81, 9.27, 10.79, 8.35),
        "DFlash": (4.78, 4.37, 3.81, 4.93, 5.49, 4.14, 5.28, 3.80),
        "TiDAR": (13.10, 16.24, 13.90, 17.72, 15.80, 13.26, 17.24, 12.20),
        "RecGuide": (13.61, 15.43, 13.41, 18.19, 12.56, 13.27, 16.21, 10.97),
    },
}
"""Paper, Table 2: tokens per window of two forwards at C = 1, B = 16, by benchmark."""
TABLE2_SPEEDUP: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "8b": {
        "LinearSS": (3.03, 2.95, 2.42, 2.91, 2.67, 2.36, 2.58, 2.53),
        "DFlash": (2.80, 2.87, 3.13, 2.83, 2.47, 3.09, 3.39, 2.57),
        "TiDAR": (2.62, 2.87, 2.34, 2.52, 1.88, 2.32, 2.57, 2.26),
        "RecGuide": (4.05, 4.66, 4.38, 4.07, 3.22, 3.91, 4.27, 3.94),
    },
    "14b": {
        "LinearSS": (2.84, 3.06, 2.36, 4.15, 3.41, 2.50, 2.82, 2.43),
        "DFlash": (3.13, 2.94, 2.50, 3.30, 3.43, 2.80, 3.54, 2.57),
        "TiDAR": (2.74, 3.09, 2.47, 3.78, 3.13, 2.48, 3.08, 2.36),
        "RecGuide": (4.22, 4.82, 4.21, 5.49, 3.74, 4.17, 5.03, 3.55),
    },
}
"""Paper, Table 2: speedup over AR decoding at C = 1."""
OVERALL_TAU = {
    "8b": {"LinearSS": 9.93, "DFlash": 4.40, "TiDAR": 13.38, "RecGuide": 14.02},
    "14b": {"LinearSS": 10.10, "DFlash": 4.58, "TiDAR": 14.94, "RecGuide": 14.21},
}
OVERALL_SPEEDUP = {
    "8b": {"LinearSS": 2.68, "DFlash": 2.89, "TiDAR": 2.42, "RecGuide": 4.06},
    "14b": {"LinearSS": 2.95, "DFlash": 3.03, "TiDAR": 2.89, "RecGuide": 4.40},
}


class Branches(NamedTuple):
    """% of rounds (paper, Table 3)."""

    correction_coverage: float
    correction_reuse: float
    continuation_coverage: float
    continuation_reuse: float
    no_hit: float


TABLE3 = {
    "8b": {
        "math": Branches(32.46, 21.46, 43.85, 42.92, 23.68),
        "code": Branches(41.63, 25.81, 27.89, 27.14, 30.48),
        "qa": Branches(33.31, 17.25, 48.55, 47.88, 18.14),
        "overall": Branches(36.11, 22.04, 39.04, 38.24, 24.85),
    },
    "14b": {
        "math": Branches(32.37, 21.98, 37.12, 35.95, 30.51),
        "code": Branches(30.99, 20.38, 43.81, 36.53, 25.20),
        "qa": Branches(35.44, 18.61, 39.22, 38.88, 25.33),
        "overall": Branches(32.62, 20.54, 40.15, 36.90, 27.22),
    },
}
TABLE4: Mapping[str, Mapping[int, Mapping[str, tuple[float, float, float]]]] = {
    "8b": {
        2: {"math": (3.61, 1.28, 95.11), "code": (4.63, 1.51, 93.86), "qa": (24.97, 5.97, 69.07)},
        8: {"math": (0.63, 26.91, 72.46), "code": (0.66, 39.18, 60.16), "qa": (12.85, 48.73, 38.43)},
        32: {"math": (28.83, 52.95, 18.22), "code": (40.45, 47.70, 11.86), "qa": (60.76, 22.35, 16.89)},
        128: {"math": (72.46, 17.25, 10.30), "code": (82.03, 11.11, 6.87), "qa": (81.12, 5.65, 13.23)},
    },
    "14b": {
        2: {"math": (1.40, 3.11, 95.49), "code": (0.32, 1.92, 97.76), "qa": (12.14, 12.83, 75.03)},
        8: {"math": (0.56, 42.26, 57.18), "code": (0.04, 37.14, 62.82), "qa": (6.27, 58.77, 34.97)},
        32: {"math": (28.31, 63.75, 7.94), "code": (20.26, 69.51, 10.23), "qa": (56.77, 31.81, 11.43)},
        128: {"math": (84.07, 11.56, 4.37), "code": (83.80, 10.21, 5.99), "qa": (83.41, 5.94, 10.66)},
    },
}
"""Paper, Table 4: % of requests that choose B = 8, 16, 32, by concurrency and category."""
TABLE4_OVERALL = {
    "8b": {2: (9.33, 2.54, 88.13), 8: (3.70, 36.96, 59.34), 32: (41.17, 43.33, 15.50), 128: (78.21, 12.04, 9.75)},
    "14b": {2: (3.68, 5.09, 91.23), 8: (1.79, 44.47, 53.74), 32: (32.40, 57.92, 9.67), 128: (83.81, 9.65, 6.55)},
}
TABLE5 = {
    "LinearSS": {"8b": 595.0, "14b": 470.0},
    "+ 1st Correction": {"8b": 799.0, "14b": 605.0},
    "+ 2nd Correction": {"8b": 811.0, "14b": 612.0},
    "+ Continuation": {"8b": 903.0, "14b": 702.0},
}
"""Paper, Table 5: tokens per second at C = 1, mean over benchmarks."""
TABLE6 = {
    "Fixed Block": {"8b": 4725.0, "14b": 3756.0},
    "+ s_t": {"8b": 5221.0, "14b": 4041.0},
    "+ z_t": {"8b": 5254.0, "14b": 4071.0},
    "+ Bucketing": {"8b": 6608.0, "14b": 4987.0},
}
"""Paper, Table 6: tokens per second, mean over benchmarks and C = 2, 4, ..., 128."""
HIGH_LOADS = (2, 4, 8, 16, 32, 64, 128)

LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
FORWARD_MS: Mapping[str, Mapping[int, tuple[float, ...]]] = {
    "8b": {
        8: (4.981, 5.478, 8.286, 8.557, 10.972, 11.245, 15.364, 24.274),
        16: (5.119, 6.129, 8.552, 9.368, 12.196, 14.474, 21.774, 38.421),
        32: (5.584, 6.580, 9.473, 10.739, 14.649, 20.896, 35.371, 66.224),
    },
    "14b": {
        8: (6.992, 7.545, 11.009, 11.246, 14.228, 14.648, 20.219, 34.461),
        16: (7.133, 8.406, 11.251, 12.693, 15.502, 19.411, 30.963, 56.303),
        32: (7.860, 9.103, 13.269, 13.661, 19.698, 29.618, 53.079, 100.285),
    },
}
"""Repository, forward sweeps: ms of one forward at C = ``LOADS``, mean of draft and verify, one B200, SGLang, bf16."""

SAME_STATE = ("gsm8k", "humaneval", "mbpp", "math500", "aime2025", "gpqa")
BLOCK_MEANS = {4: 3.67, 8: 6.36, 16: 10.22, 32: 15.50}
FULL_RATES = {4: 81.5, 8: 59.7, 16: 40.6, 32: 27.2}
"""Repository, 8B, 181,000 rounds of ``SAME_STATE``, mean of benchmarks: mean acceptance length and % of fully accepted
rounds. Every block size drafts from the prefixes of rounds at B = 16."""
SHORTER_HOLDS = {(8, 32, 8): 94.31, (16, 32, 16): 94.04, (8, 16, 8): 95.72, (16, 32, 8): 96.76}
"""Repository, the same rounds: where the longer block (second) was accepted for so many tokens (third) at least, % in
which the shorter one (first) was, too."""
CONFIDENCE = {"accepted": 0.954, "first rejected": 0.569}
"""Repository, 8B: mean confidence of draft tokens, B = 16."""
PERSISTENCE = {
    1: {8: 38.30, 16: 48.20, 32: 54.43},
    2: {8: 39.79, 16: 50.98, 32: 58.96},
    4: {8: 39.98, 16: 52.13, 32: 61.63},
}
"""Repository, the rounds of ``SAME_STATE``: Pearson's correlation, times 100, of the mean acceptance length of the last
so many rounds (B = 16) with that of the next one at 8, 16, 32."""
ADAPTER_ROUNDS = (30, 37)
"""Repository, 8B: rounds at B = 16 of the same two GSM8K answers, drafted with the adapter and without it. The adapter
is ``linear_spec_lora``, for linear drafts alone."""
ADAPTER_BENCHMARK = "gsm8k"
SECOND_RATE = 57.5
"""Repository, 8B: % of rejections at which the verifier's token is the draft's second candidate."""
AFTER_REJECTION = {1: 31.4, 4: 19.7}
"""Repository, 8B: % of draft tokens so many places behind the first rejected one that are right all the same."""
UNCONDITIONED_MATCHED = (5.99, 4.07)
"""Repository, 8B: draft tokens accepted in the next round behind a correction that its draft knew, and behind one that
it guessed rightly without knowing it."""
EXPLORED = {8: (55, 35, 10), 16: (25, 50, 25), 32: (10, 35, 55)}
"""Repository: by the last block size, % with which the next one is 8, 16, 32 where history was explored; first 16."""
HISTORY_AUROC = {"16 over 8": 79.05, "32 over 8": 81.70, "32 over 16": 84.23}
WORTH_RATES = {"16 over 8": 45.07, "32 over 8": 35.98, "32 over 16": 24.93}
"""Repository, 8B, nine benchmarks (MMLU is one): how well history tells rounds in which the larger block is worth it
(2, 5 and 5 tokens more at least) from others, times 100, and in how many % it is. Its predictors see acceptance,
confidence and entropy of up to eight rounds."""
END_TO_END = {
    "gsm8k": {32: 6.17, 16: 4.90, 8: 3.27},
    "math500": {32: 6.79, 16: 5.32, 8: 3.44},
    "humaneval": {32: 8.38, 16: 6.03, 8: 3.62},
    "livecodebench": {32: 5.69, 16: 4.71, 8: 3.22},
    "gpqa": {32: 7.14, 16: 5.55, 8: 3.51},
    "ifeval": {32: 4.94, 16: 4.19, 8: 3.05},
    "aime2025": {32: 5.53, 16: 4.57, 8: 3.18},
}
"""Repository, 14B served at C = 1 (B = 32), 8 (16), 128 (8): tokens per forward, prefill excluded."""
SERVED_ACCEPTANCE: Mapping[str, Mapping[int, float]] = {
    "8b": {8: 6.42, 16: 9.50, 32: 11.92},
    "14b": {size: 2 * sum(row[size] for row in END_TO_END.values()) / len(END_TO_END) for size in BLOCK_SIZES},
}
"""Repository: mean acceptance length where every round is at one block size; 8B over 9 benchmarks, twice its tokens
per forward with the prefill's counted among them; 14B from ``END_TO_END``."""
