"""What `recguide profile` says of the host at a place, over what serving needs of it there.

    python benchmarks/visits.py [--passes 12] [--seconds 1] ["C METHOD TOKENS" ...]

A tiny model on a CPU, with forwards filled up as on a GPU, in processor time. Each place is visited as a profile does,
and a closed loop of requests that play a synthetic trace is served under the same policy; of its steps count those with
the place's requests and query tokens. Of both it is the time that a GPU would wait for: from where what was found is
asked for up to the first forward of the next step, without what playing the trace takes.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from recguide.engine.campaign import Server, Stop, closed_loop, engine_config
from recguide.engine.clocks import Stopwatch
from recguide.engine.forwards import Forwards
from recguide.engine.model import Decoder, ModelConfig
from recguide.engine.places import Place
from recguide.engine.scores import Scores
from recguide.engine.shapes import add_random_draft_adapter, random_decoder
from recguide.engine.station import Station
from recguide.engine.visits import visit
from recguide.sim.paper.acceptance import paper_trace
from recguide.traces.dense import DenseTrace

TOY = ModelConfig("toy", 24, 2, 6, 2, 8, 40, 128, 1e4, 1e-5, False, 8192, 3, (2, 7))
CONTEXT = 256
QUIET = 0.25
"""The quantile over passes: machines are busy with other things too."""
POINTS = tuple(
    f"{count} {kind}" for count in (1, 16, 64) for kind in ("linear 1", "linear 16", "adaptive 16", "allocation 24")
)


class Exposed(Stopwatch):
    """Takes for forwards all from the first one's start to when what they found is asked for, in processor time."""

    def __init__(self, forwards: Forwards) -> None:
        super().__init__(forwards.device)
        self.begun, self.asked, self._read = 0.0, 0.0, forwards.read
        forwards.read = self.read  # type: ignore[method-assign]
        forwards.watch = self

    def run(self, work: Callable[[], None]) -> None:
        """Do a forward."""
        self.begun = self.begun or time.process_time()
        work()

    def read(self, *found: torch.Tensor) -> Scores:
        """What was found is asked for."""
        scores = self._read(*found)
        self.asked = time.process_time()
        return scores

    def first(self) -> float:
        """Nobody asks for what is the draft's."""
        return 0.0

    def take(self) -> float:
        """All of it."""
        begun, self.begun = self.begun, 0.0
        return self.asked - begun


def station_at(decoder: Decoder, place: Place, trace: DenseTrace) -> Station:
    """An engine with the room of a campaign."""
    config = replace(engine_config(trace.provenance, 128, "bucket", 2048, 131072), rounded=True)
    station = Station(decoder, [place.policy], config, time.process_time)
    Exposed(station.forwards)
    return station


def visited(station: Station, place: Place) -> float:
    """Seconds of the host, as a profile has them."""
    rows = visit(station, place, 1.0, 0.1)
    return next((seconds for (kind, *_), seconds in rows.items() if kind.startswith("host")), np.nan)


def served(server: Server, place: Place, seconds: float) -> float:
    """The same of steps in a closed loop."""
    rows = range(len(server.trace.requests))
    found = closed_loop(server, place.policy, rows, place.requests, stop=Stop(whole_s=seconds))
    steps, tokens = found.run.steps, place.requests * place.size
    whole = np.append(np.diff(steps["start_s"]), np.nan)
    # how many of a mixture's blocks are large is another number in each step
    near = 0.34 * tokens if place.method == "allocation" else 0
    alike = (steps["requests"] == place.requests) & (abs(steps["query_tokens"] - tokens) <= near)
    alike &= steps["block_size"] > 0
    return float(np.nanmedian((whole - found.forward_s)[alike])) if alike.any() else np.nan


def measured(decoder: Decoder, place: Place, trace: DenseTrace, passes: int, seconds: float) -> tuple[float, float]:
    """Both, in turns, for the machine's speed wanders."""
    server = Server(station_at(decoder, place, trace), trace, None)
    found = [(visited(server.station, place), served(server, place, seconds)) for _ in range(passes)]
    visits, serves = np.quantile(found, QUIET, axis=0).tolist()
    return visits, serves


def main() -> None:
    """Print a line a place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", default=POINTS)
    parser.add_argument("--passes", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.0, help="that are served in each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    decoder = random_decoder(TOY, "cpu", torch.float32, 0)
    add_random_draft_adapter(decoder, 8)
    trace = paper_trace("8b")
    print(f"{'C method tokens':18} {'visited us':>10} {'served us':>10} {'ratio':>6}")
    for point in args.points:
        count, method, size = point.split()
        place = Place(method, int(count), int(size), CONTEXT)
        visits, serves = measured(decoder, place, trace, args.passes, args.seconds)
        print(f"{point:18} {visits * 1e6:10.0f} {serves * 1e6:10.0f} {visits / serves:6.2f}", flush=True)


if __name__ == "__main__":
    main()
