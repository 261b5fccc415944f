"""The folders stay one import package, imports between them point one way, and docs/structure.md names every module."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT: dict[str, set[str]] = {
    "traces": set(),
    "kernels": set(),
    "sim": {"traces"},
    "engine": {"traces", "kernels", "sim"},
    "validation": {"traces", "sim"},
}
WITHOUT_TORCH = ("traces", "sim", "validation")


def modules(folder: str) -> list[Path]:
    """The Python files of a folder, relative to the root."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))


def imported_folders(source: str) -> Iterator[tuple[int, str]]:
    """Line and folder of each import of recguide, in any of the three ways to write one."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("recguide."):
                yield node.lineno, name.split(".")[1]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_is_linked_into_the_package(folder: str) -> None:
    link = ROOT / ".package" / "recguide" / folder
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_does_not_shadow_an_installed_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize(
    "source",
    ["import recguide.engine.model", "from recguide import engine", "from recguide.engine.model import Decoder"],
)
def test_every_way_to_import_a_folder_is_seen(source: str) -> None:
    assert list(imported_folders(source)) == [(1, "engine")]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_point_one_way(folder: str) -> None:
    for path in modules(folder):
        for line, target in imported_folders((ROOT / path).read_text()):
            assert target in MAY_IMPORT[folder] | {folder}, f"{path}:{line} imports recguide.{target}"


def run_without_torch(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, which must not have loaded torch at its end."""
    check = "\nimport sys\nassert 'torch' not in sys.modules, 'torch was loaded'\n"
    return subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("folder", WITHOUT_TORCH)
def test_no_module_of_the_folder_loads_torch(folder: str) -> None:
    names = [".".join(("recguide", *path.with_suffix("").parts)) for path in modules(folder)]
    done = run_without_torch(f"import importlib\nfor name in {names}:\n    importlib.import_module(name)")
    assert done.returncode == 0, done.stderr


def test_the_help_of_every_command_loads_no_torch() -> None:
    done = run_without_torch("""
import sys
from recguide.sim.cli import main
sys.argv = ["recguide", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
""")
    assert done.returncode == 0, done.stderr
    assert "traces" in done.stdout


def test_the_structure_page_names_every_module_and_no_other() -> None:
    page = (ROOT / "docs" / "structure.md").read_text()
    named = re.findall(r"^- `([a-z]+/[\w/]+\.py)`: \S", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(str(path) for folder in MAY_IMPORT for path in modules(folder))


def test_the_structure_page_tells_a_request_in_ten_steps() -> None:
    page = (ROOT / "docs" / "structure.md").read_text()
    assert re.findall(r"^(\d+)\. ", page, flags=re.MULTILINE) == [str(step) for step in range(1, 11)]
