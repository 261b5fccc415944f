"""Finished parts of a recording, kept beside its output until that is whole: what a second run does not repeat."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from recguide.traces.dense import DenseTrace, Provenance
from recguide.traces.files import read_trace, write_trace


@dataclass(frozen=True, slots=True)
class Parts:
    """Trace files in ``folder``; ``provenance`` says what they must be parts of."""

    folder: Path
    provenance: Provenance
    with_token_ids: bool

    def read(self, name: str, ids: Sequence[str]) -> DenseTrace | None:
        """The part of that name, if it is whole, holds exactly these requests and was recorded as this run records."""
        path = self._path(name)
        if not path.exists():
            return None
        try:
            trace = read_trace(path)
        except ValueError:
            # half a disk, another version: recording it again is always right
            return None
        return trace if self._fits(trace, ids) else None

    def write(self, name: str, trace: DenseTrace) -> None:
        """Keep a part."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # soon read again, so not worth the seconds of a high level
        write_trace(trace, self._path(name), compression_level=3)

    def remove(self, names: Sequence[str]) -> None:
        """Delete these parts, and the folder with the last of them."""
        for name in names:
            self._path(name).unlink(missing_ok=True)
        # not there, or shared with a run that still has parts in it
        with suppress(OSError):
            self.folder.rmdir()

    def _path(self, name: str) -> Path:
        return self.folder / f"{quote(name, safe='')}.parquet"

    def _fits(self, trace: DenseTrace, ids: Sequence[str]) -> bool:
        same_ids = [request.request_id for request in trace.requests] == list(ids)
        has_tokens = all((request.output_ids is not None) == self.with_token_ids for request in trace.requests)
        return same_ids and has_tokens and _settings(trace.provenance) == _settings(self.provenance)


def _settings(provenance: Provenance) -> Provenance:
    """A provenance without what differs from part to part."""
    return replace(provenance, created="", dropped={}, base_agreement=None, note="")
