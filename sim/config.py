"""Options of a command from a YAML file and `--set key=value`, and the ones that held, to run it again."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from recguide.traces.errors import InputError

CONTROLS = ("config", "settings", "print_config", "help")
"""Options about options: they have no place in a config file."""


def _read_file(ctx: typer.Context, path: Path | None) -> Path | None:
    if path is not None:
        # what --set said goes first, wherever it stands on the command line
        ctx.default_map = _checked(ctx, read_yaml(path), str(path)) | dict(ctx.default_map or {})
    return path


def _read_settings(ctx: typer.Context, settings: list[str] | None) -> list[str] | None:
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"--set: found {setting!r}, allowed: key=value")
        given = _checked(ctx, {key.strip(): _parse(f"--set {key}", value)}, "--set")
        ctx.default_map = dict(ctx.default_map or {}) | given
    return settings


def named_path(text: str | Path) -> Path:
    """A path that is not empty: an empty one would be the current folder."""
    if not str(text):
        raise InputError("found nothing, allowed: a path; '.' is the current folder")
    return Path(text)


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.yaml",
        callback=_read_file,
        is_eager=True,
        help="Options from a YAML file; the command line wins.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        callback=_read_settings,
        is_eager=True,
        help="One option as in the file, over it. May be repeated.",
    ),
]
PrintConfig = Annotated[bool, typer.Option("--print-config", help="Print the options that hold as YAML, and stop.")]


class _Strict(yaml.SafeLoader):
    """Safe YAML in which a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise InputError(f"line {node.start_mark.line + 1}: {twice}: given twice")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file; ValueError names the file, and the line where it can."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start}: not UTF-8 text") from None
    except OSError as error:
        raise FileNotFoundError(f"{path}: {error.strerror}") from None
    content = _parse(str(path), text)
    if not isinstance(content, dict):
        raise InputError(f"{path}: found {type(content).__name__}, allowed: lines of 'key: value'")
    return content


def _parse(where: str, text: str) -> Any:  # noqa: ANN401 - YAML holds anything
    try:
        return yaml.load(text, _Strict)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{where}{line}: not YAML: {error.problem}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{where}: {error}") from None


def _checked(ctx: typer.Context, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values by parameter name, as the command line would bring them; ValueError for keys that are no options."""
    options = {str(option.name): option for option in ctx.command.params if option.name not in CONTROLS}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in options:
            raise InputError(f"{where}: {key}: unknown, allowed: {', '.join(sorted(options))}")
        several = bool(getattr(options[name], "multiple", False))
        if isinstance(value, dict) or (isinstance(value, list) and not several):
            raise InputError(f"{where}: {key}: found {value!r}, allowed: one value")
        if value is not None:
            checked[name] = [*map(_text, value if isinstance(value, list) else [value])] if several else _text(value)
    return checked


def _text(value: object) -> object:
    # text is checked as strictly as on the command line, where 1.5 is no whole number
    return value if isinstance(value, bool) else str(value)


def resolved(ctx: typer.Context) -> dict[str, Any]:
    """Every option of the command as it holds, in the order of its help."""
    names = [str(option.name) for option in ctx.command.params if option.name not in CONTROLS]
    return {name: _plain(ctx.params[name]) for name in names if name in ctx.params}


def as_yaml(options: Mapping[str, Any]) -> str:
    """Options as a file that `--config` reads."""
    return yaml.safe_dump(dict(options), sort_keys=False, allow_unicode=True)


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
