"""Draws what `recguide validate` found: frontiers, simulated and measured, and the error of every point.

python benchmarks/validation.py benchmarks/h200/validation/nld-8b.json docs/images/validation.png
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

SPEED, ALONE = "throughput", "throughput_per_request"


def drawn(document: dict, path: Path) -> None:
    """Two panels as a PNG."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), dpi=110)
    names = list(dict.fromkeys(point["key"]["policy"] for point in document["points"]))
    for number, name in enumerate(names):
        own = [point for point in document["points"] if point["key"]["policy"] == name]
        points = sorted((p for p in own if p["key"]["dataset"] == "all"), key=lambda p: p["key"]["concurrency"])
        apart = [point for point in own if point["key"]["dataset"] != "all"]
        color, label = f"C{number}", name.partition(":file")[0].replace(":policy.json", "")
        for who, style in (("measured", "o"), ("simulated", "--")):
            left.plot([p[who][ALONE] for p in points], [p[who][SPEED] for p in points], style, color=color, ms=4,
                      label=label if who == "measured" else None)  # fmt: skip
        right.errorbar([p["key"]["concurrency"] for p in points], [100 * p["error"][SPEED] for p in points],
                       [50 * (p["spread"][SPEED] or 0) for p in points],
                       fmt="o-", color=color, ms=3, lw=0.8)  # fmt: skip
        right.plot([p["key"]["concurrency"] for p in apart], [100 * p["error"][SPEED] for p in apart], "x", color=color)
    left.set(xscale="log", yscale="log", xlabel="tokens/s per request", ylabel="tokens/s of all requests")
    left.set_title("dots: measured; dashed: simulated", fontsize=9)
    right.set(xscale="log", xlabel="concurrency C", ylabel="error of the throughput, %")
    right.set_title("bars: spread of the repeats; crosses: datasets by themselves", fontsize=9)
    right.axhspan(-2, 2, color="0.9")
    counts = sorted({point["key"]["concurrency"] for point in document["points"]})
    right.set_xticks(counts, map(str, counts))
    right.minorticks_off()
    left.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    drawn(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
