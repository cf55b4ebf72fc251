"""The house has honest borders: folders form no cycle, nothing is out of reach, a file is one subject of some size."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tallystick"
PUBLIC = {"tallystick", "tallystick.graphs", "tallystick.torch", "tallystick.jax", "tallystick.iree"}
SHORTEST, LONGEST = 60, 520
LONG = {"tallystick.database.migrations.versions.0001_the_first_tables"}
"""The tables as they were first."""
ENTRY_POINTS = {
    *(
        "tallystick.__main__",
        "tallystick.torch",
        "tallystick.graphs",
        "tallystick.jax",
        "tallystick.iree",
        "tallystick.database.service.application",
    ),
    *("tallystick.recording.serving.schemas", "tallystick.recording.serving.vllm.plugin"),
    "tallystick.database.migrations.env",
}
"""Public names, and what starts a process, an application or a plugin."""
NAMED_IN_TEXT = re.compile(r"tallystick(?:\.\w+)+")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


IMPATIENT = {
    *(f"httpx.{name}" for name in ("get", "post", "put", "patch", "delete", "head", "request", "stream")),
    *("httpx.Client", "httpx.AsyncClient", "socket.create_connection"),
}

MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py")) if "examples" not in path.parts}


@cache
def imported_by(code: str) -> set[str]:
    """The modules of ours that `code` imports at any place, those for type checkers left out."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(code)]
    lists_public_names = (
        "= lazy(__name__)" in code
    )  # what it imports for type checkers, it loads when it is asked for it
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not lists_public_names:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        waiting.extend(ast.iter_child_nodes(node))
    return found & MODULES.keys()


@cache
def named_by(code: str) -> set[str]:
    """The modules of ours that a string of `code` names, such as one that is loaded when it is asked for."""
    texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    names = {name for text in texts if isinstance(text, str) for name in NAMED_IN_TEXT.findall(text)}
    return {name for each in names for name in (each, each.rpartition(".")[0])} & MODULES.keys()


def folder_edges(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which folder imports which, at any depth; a folder and those inside it are one subject."""
    edges: defaultdict[str, set[str]] = defaultdict(set)
    for path in modules.values():
        here = path.parent.relative_to(PACKAGE).as_posix()
        there = {modules[name] for name in imported_by(path.read_text())}
        edges[here] |= {each.parent.relative_to(PACKAGE).as_posix() for each in there if each.name != "__init__.py"}
    return {
        folder: {other for other in others if other != "." and not inside(folder, other) and not inside(other, folder)}
        for folder, others in edges.items()
        if folder != "."
    }


def inside(folder: str, other: str) -> bool:
    return f"{folder}/".startswith(f"{other}/")


def reachable(starts: Iterable[str]) -> set[str]:
    """Every module that is imported or named from `starts` on, with the packages around it."""
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in seen:
            seen.add(name)
            code = MODULES[name].read_text()
            waiting += [*imported_by(code), *named_by(code), name.rpartition(".")[0]]
    return seen


def plugins() -> set[str]:
    """The modules that another program's entry points name, and those that it loads by name."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    named = {target.partition(":")[0] for group in points.values() for target in group.values()}
    by_name = ("tallystick.recording.serving.vllm.", "tallystick.database.migrations")  # vLLM's configuration, Alembic
    return named | {name for name in MODULES if name.startswith(by_name)}


def test_folders_form_no_cycle() -> None:
    list(TopologicalSorter(folder_edges(MODULES)).static_order())


def test_nothing_is_out_of_reach_of_commands_public_names_and_plugins() -> None:
    commands = {name for name in MODULES if name.startswith(("tallystick.tally.cli", "tallystick.__main__"))}
    assert MODULES.keys() - reachable(commands | PUBLIC | plugins()) == set()


def test_a_file_is_one_subject_of_some_size() -> None:
    sizes = {name: len(path.read_text().splitlines()) for name, path in MODULES.items() if path.name != "__init__.py"}
    assert {name: lines for name, lines in sizes.items() if lines > LONGEST and name not in LONG} == {}
    assert {name: lines for name, lines in sizes.items() if lines < SHORTEST and name not in ENTRY_POINTS} == {}
    assert (LONG | ENTRY_POINTS) - sizes.keys() == set()


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if path.name == "__init__.py"])
def test_packages_hold_no_code_and_public_ones_are_lazy(name: str) -> None:
    code = ast.parse(MODULES[name].read_text()).body
    assert ast.get_docstring(ast.parse(MODULES[name].read_text()))
    assert len(code) == 1 or name in PUBLIC


def test_importing_one_small_module_loads_what_it_needs_and_no_more() -> None:
    listed = "print(*[name for name in sys.modules if name.startswith('tallystick')])"
    code = f"import sys, tallystick.core.digests; {listed}"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    core = {f"tallystick.core.{name}" for name in ("digests", "errors", "lazy")}
    assert set(loaded) == {"tallystick", "tallystick.core"} | core


def test_every_client_of_a_server_has_a_limit_of_its_own() -> None:
    """That of httpx is five seconds, in which nothing may be answered where other programs compute too."""
    files = [path for folder in ("src", "tests", "research", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    found = {f"{path.relative_to(ROOT)}:{line}" for path in files for line in impatient(path.read_text())}
    assert found == set()
    assert impatient("httpx.get(url)\nhttpx.get(url, timeout=9)") == [1]


def impatient(code: str) -> list[int]:
    """The lines that call httpx or open a socket without a time limit."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return [
        node.lineno
        for node in calls
        if ast.unparse(node.func) in IMPATIENT and "timeout" not in {each.arg for each in node.keywords}
    ]


def test_the_checks_see_what_they_forbid() -> None:
    assert imported_by("def f():\n    from tallystick.core import digests as tree") == {
        "tallystick.core",
        "tallystick.core.digests",
    }
    assert named_by("HOME = 'tallystick.core.digests'") >= {"tallystick.core.digests"}
    assert "tallystick.tally.attacks.catalogue" not in reachable(["tallystick.audits.training"])
    with pytest.raises(CycleError):
        list(TopologicalSorter({"graphs": {"graphs/transforms"}, "graphs/transforms": {"graphs"}}).static_order())
