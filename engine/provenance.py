"""What a trace says about the model that it is of, and about the machine that made it."""

from datetime import UTC, datetime
from typing import Any

from recguide.engine.environment import machine_of
from recguide.engine.loading import LoadedModel
from recguide.traces.dense import Provenance


def provenance_of(model: LoadedModel, dtype: str, **rest: Any) -> Provenance:  # noqa: ANN401 - fields of several types
    """The provenance of a trace made here and now, of which nothing is counted yet; ``rest`` are the other fields."""
    fields: dict[str, Any] = {**machine_of(model.decoder.device), **rest}
    return Provenance(
        model=model.config.name,
        weights_sha256=model.weights_sha256,
        adapter_sha256=model.adapter_sha256,
        dtype=dtype,
        draft_shift=model.config.draft_shift,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        dropped={},
        base_agreement=None,
        **fields,
    )
