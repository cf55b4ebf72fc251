"""Pages and examples use public names only: what a reader copies keeps working when a module moves."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PUBLIC = ("tallystick", "tallystick.torch", "tallystick.jax", "tallystick.iree", "tallystick.graphs")
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}(.*)$", re.MULTILINE)
FROM = re.compile(r"^\s*from (tallystick[\w.]*) import (.+)$", re.MULTILINE)
DOTTED = re.compile(r'(?<![\w./"])tallystick(?:\.\w+)*(?![\w/.-]*/)')  # quoted, it is an entry point


def python_of(page: str) -> str:
    """The fenced blocks of Python, and the indented lines."""
    return "\n".join([*FENCED.findall(page), *INDENTED.findall(FENCED.sub("", page))])


def names_in(code: str) -> Iterator[str]:
    """Every dotted name of ours that `code` imports or uses."""
    for module, names in FROM.findall(code):
        yield from (f"{module}.{name.split()[0]}" for name in names.split("#")[0].strip("() ").split(","))
    yield from DOTTED.findall(FROM.sub("", code))


def is_public(name: str) -> bool:
    """Whether a name is a public module, or is offered by one; what lies in a class is the class's matter."""
    home = max((each for each in PUBLIC if f"{name}.".startswith(f"{each}.")), key=len)
    rest = name[len(home) + 1 :].partition(".")[0]
    return not rest or rest in importlib.import_module(home).__all__


@pytest.fixture(autouse=True)
def _frameworks() -> None:
    for name in ("torch", "jax", "iree.runtime"):
        pytest.importorskip(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_uses_public_names_only(page: Path) -> None:
    assert [name for name in names_in(python_of(page.read_text())) if not is_public(name)] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_uses_public_names_only(example: Path) -> None:
    assert [name for name in names_in(example.read_text()) if not is_public(name)] == []


def test_a_private_name_is_seen() -> None:
    fenced, indented = (
        "from tallystick.tally.cli.inspect import open_run",
        "    import tallystick.judging\n    tallystick.audit(x)",
    )
    found = list(names_in(python_of(f"```python\n{fenced}\n```\n{indented}\n")))
    assert found == ["tallystick.tally.cli.inspect.open_run", "tallystick.judging", "tallystick.audit"]
    assert [is_public(name) for name in found] == [False, False, True]
    assert is_public("tallystick.torch.CapturedModel.graph")


def test_the_pages_hold_code() -> None:
    assert sum(len(list(names_in(python_of(page.read_text())))) for page in PAGES) > 30
