"""A serving engine that is made once and serves run after run, with nothing but serving on its clock.

Memory and CUDA graphs stay from run to run. What happens once (kernels are compiled, graphs captured) and what no
server does (acceptance is read from a trace) happens while the clock stands still.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from torch import Tensor

from recguide.engine.forwards import MAX_CAPTURED, Forwards
from recguide.engine.inputs import Fill, Inputs, Shape
from recguide.engine.model import Decoder
from recguide.engine.outcomes import Change
from recguide.engine.planning import Piece
from recguide.engine.prefilling import Prefills
from recguide.engine.requests import Live
from recguide.engine.scheduler import Part
from recguide.engine.scores import Scores
from recguide.engine.serving import EngineConfig
from recguide.engine.turning import TurningEngine
from recguide.engine.ways import Judge, Planned, Setup, Way
from recguide.sim.methods import Policy
from recguide.sim.rounds import Ints

ATTEMPTS = 6
"""Runs of a step until nothing of it happens for the first time: one that captures graphs, one that replays them first,
one that counts, and some more where results move and graphs are made anew."""


class StoppableClock:
    """Seconds of another clock, less what is taken out of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.away_s = clock, 0.0
        self.stopped_at: float | None = None

    def __call__(self) -> float:
        """Seconds."""
        return self.clock() - self.away_s if self.stopped_at is None else self.stopped_at

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """It shows the same time until this is over, and goes on from there."""
        now = self()
        self.stopped_at = now
        try:
            yield
        finally:
            self.stopped_at = None
            self.back_to(now)

    def back_to(self, time_s: float) -> None:
        """Let it be as late as it was then."""
        self.away_s = self.clock() - time_s


class Aside:
    """A judge whose work takes no time."""

    def __init__(self, judge: Judge, clock: StoppableClock) -> None:
        self.judge, self.clock = judge, clock

    def drafted(self, lives: Sequence[Live], view: str, positions: Ints, size: int, found: Scores) -> Scores:
        """As the judge says."""
        with self.clock.standing_still():
            return self.judge.drafted(lives, view, positions, size, found)

    def verified(self, lives: Sequence[Live], positions: Ints, size: int, found: Scores) -> Scores:
        """As the judge says."""
        with self.clock.standing_still():
            return self.judge.verified(lives, positions, size, found)


class CountingForwards(Forwards):
    """Forwards that count what they do for the first time."""

    firsts = 0
    """Launches without a graph of shapes that get one, the first ones of shapes that get none, and the first ones of
    graphs, which bring them to the device: 0.6 ms of them on an H200."""
    _graphless = False

    def run(self, pieces: Sequence[Piece], fill: Fill | None = None, *, graph: bool = True) -> Tensor:
        """As any forward."""
        self._graphless = not graph
        return super().run(pieces, fill, graph=graph)

    def _launch(self, inputs: Inputs, graph: bool) -> None:
        launched: WeakSet[object] = self.__dict__.setdefault("launched", WeakSet())
        if graph and inputs.graph is not None and inputs.graph not in launched:
            launched.add(inputs.graph)
            self.firsts += 1
        super()._launch(inputs, graph)

    def _compute(self, inputs: Inputs) -> None:
        if self.cuda:
            known: set[Shape] = self.__dict__.setdefault("known", set())
            gets_graph = self.graphs and not self._graphless and inputs.shape.tokens <= MAX_CAPTURED
            self.firsts += gets_graph or inputs.shape not in known
            known.add(inputs.shape)
        super()._compute(inputs)


class Rehearsal:
    """Runs steps again, which changes nothing, until one of them does nothing for the first time."""

    def __init__(self, forwards: CountingForwards, clock: StoppableClock) -> None:
        self.forwards, self.clock = forwards, clock

    def run(self, step: Callable[[], list[Change]], forget: Callable[[], object]) -> list[Change]:
        """What the last of the runs gave, whose time alone passes; ``forget`` drops what others have measured."""
        for attempt in range(ATTEMPTS):
            before, firsts = self.clock(), self.forwards.firsts
            changes = step()
            if self.forwards.firsts == firsts or attempt == ATTEMPTS - 1:
                break
            forget()
            self.forwards.spent()
            self.clock.back_to(before)
        return changes


class RehearsedWay:
    """A way whose steps are rehearsed."""

    def __init__(self, way: Way, rehearsal: Rehearsal) -> None:
        self.way, self.rehearsal = way, rehearsal

    @property
    def masks(self) -> int:
        """As the way has them."""
        return self.way.masks

    def plan(self, running: Sequence[Live], step: int) -> Planned:
        """As the way plans."""
        return self.way.plan(running, step)

    def run(self, planned: Planned) -> list[Change]:
        """As the way does."""
        return self.rehearsal.run(lambda: self.way.run(planned), lambda: self.way.draft_seconds(planned, 0.0))

    def begin(self, planned: Planned) -> Callable[[], list[Change]]:
        """All of it at its end: a step that is rehearsed runs more than once."""
        return lambda: self.run(planned)

    def rehearse(self, lives: Sequence[Live]) -> Iterator[Planned]:
        """As the way rehearses."""
        return self.way.rehearse(lives)

    def told(self, planned: Planned, changes: Sequence[Change], seconds: float) -> None:
        """Tell the way."""
        self.way.told(planned, changes, seconds)

    def draft_seconds(self, planned: Planned, seconds: float) -> float:
        """As the way says."""
        return self.way.draft_seconds(planned, seconds)


class RehearsedPrefills(Prefills):
    """Prefills that are rehearsed."""

    def __init__(self, setup: Setup, masks: int, rehearsal: Rehearsal) -> None:
        super().__init__(setup, masks)
        self.rehearsal = rehearsal

    def run(self, parts: Sequence[Part]) -> list[Change]:
        """As any prefill."""
        return self.rehearsal.run(lambda: super(RehearsedPrefills, self).run(parts), lambda: None)


class Station(TurningEngine):
    """A turning engine whose steps are rehearsed."""

    def __init__(
        self, decoder: Decoder, policies: Sequence[Policy], config: EngineConfig, clock: Callable[[], float]
    ) -> None:
        self.stoppable = StoppableClock(clock)
        super().__init__(decoder, policies, config, self.stoppable)
        made = self.forwards
        graphs = not config.enforce_eager
        self.forwards = CountingForwards(decoder, made.cache, graphs, config.rounded, made.most_pages, made.sizes)
        self.forwards.capture_after = 1
        self.rehearsal = Rehearsal(self.forwards, self.stoppable)

    def turn_to(self, policy: Policy, max_running: int, judge: Judge | None = None) -> None:
        """Serve under this policy from now on, at time 0; nothing may be in flight."""
        super().turn_to(policy, max_running, None if judge is None else Aside(judge, self.stoppable))
        self.prefills = RehearsedPrefills(self.prefills.setup, self.way.masks, self.rehearsal)
        self.way = RehearsedWay(self.way, self.rehearsal)

    def stop(self) -> None:
        """End everyone in flight where they stand; whoever has emitted nothing is as if never sent."""
        for live in [*self.scheduler.running, *self.scheduler.waiting]:
            if live.tokens:
                live.finish_reason = "length"
                self.scheduler.drop(live)
                self.log.finish(live, self.now)
            else:
                self.cancel(live)
