"""Models by their Hugging Face id, out of the local cache of `huggingface_hub`; nothing is downloaded."""

import re
from pathlib import Path

from recguide.traces.errors import InputError

_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_id(name: str) -> bool:
    """Whether a name could be one of the hub, ``owner/model``."""
    return _ID.fullmatch(name) is not None


def cached_folder(name: str) -> Path:
    """The cached snapshot of a model (revision ``main``): in $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache.

    Raises InputError, naming the form that always works, when the model is not there.
    """
    # takes a while to import, and is needed here alone
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise InputError(
            f"model {name!r}: no such directory, and not in the local Hugging Face cache. Nothing is downloaded here: "
            f"name a directory that holds its config.json, *.safetensors and tokenizer.json, or fetch it once with "
            f"`hf download {name}`"
        ) from error
