"""Packages that SGLang imports at the top of files, and that serving a text model never calls.

torchvision's wheels need another build of torch than the CPU's; the rest is left out to keep the environment small.
Where such a package is installed it is taken; else its names are there, and calling one of them raises.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

ABSENT = ("IPython", "openai_harmony", "soundfile", "torchvision", "xgrammar")


class _Name(type):
    """A class whose attributes are classes like itself."""

    def __getattr__(cls, name: str) -> type:
        return _name(f"{cls.__qualname__}.{name}", cls.__module__, name)


def _name(qualname: str, module: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError(f"{module}.{qualname} is not installed here")

    def any_value(*_: object) -> dict[str, str]:
        return {"type": "any"}

    # pydantic asks for the last, where such a name is the type of a field
    members = {"__new__": refuse, "__get_pydantic_core_schema__": any_value}
    return _Name(name, (), members | {"__module__": module, "__qualname__": qualname})


class _Finder:
    """Finds the absent packages, with any submodule, and makes modules of such names of them."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        absent = fullname.split(".")[0] in self.packages
        return ModuleSpec(fullname, self, is_package=True) if absent else None

    def __init__(self, packages: list[str]) -> None:
        self.packages = packages

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        module.__version__ = "0"
        module.__getattr__ = lambda name: _name(name, spec.name, name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is to be run."""


def install() -> None:
    """Make those packages importable that are not installed."""
    absent = [name for name in ABSENT if importlib.util.find_spec(name) is None]
    sys.meta_path.append(_Finder(absent))
