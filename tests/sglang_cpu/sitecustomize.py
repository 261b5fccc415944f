"""Loaded by every Python that has this folder on its path, SGLang's subprocesses too."""

import placeholders

placeholders.install()
