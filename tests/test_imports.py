"""The doors hold: imports run downward only, heavy libraries stay where they belong, surfaces are listed."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "tallystick"
PUBLIC = ("tallystick", "tallystick.graphs", "tallystick.torch", "tallystick.jax", "tallystick.iree")
LAYERS = [
    *("core", "programs", "formats", "verdicts", "engines", "audits", "recording", "disputes", "database", "tally"),
    *("graphs", "torch", "jax", "iree", "tallystick", "__main__"),
]
"""The ten doors, and above them the modules of public names."""
HEAVY = {
    *("torch", "transformers", "tokenizers", "diffusers", "sklearn", "matplotlib", "safetensors", "gguf"),
    *("jax", "jaxlib", "iree", "array_api_compat", "fastapi", "uvicorn", "starlette", "httpx", "openai", "vllm"),
    "llguidance",
    *("sqlalchemy", "alembic", "psycopg", "web3", "eth_account", "eth_utils", "eth_tester"),
}
AT_HOME_WITH_HEAVY = {"core.http", "core.sql", "engines", "recording", "disputes.coordinators", "database"}
FORBIDDEN_TO_VERIFIERS = {"recording", "disputes", "database", "tally"}
UNLOADED_AT_IMPORT = (
    *("torch", "jax", "iree", "array_api_compat", "transformers", "tokenizers", "sklearn"),
    *("pydantic", "matplotlib", "typer", "rich", "cryptography", "fastapi", "httpx", "openai"),
)


class Import(NamedTuple):
    """One import: what it names, and whether it runs when its module is loaded."""

    module: str
    is_immediate: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


EXAMPLES = PACKAGE / "examples"  # shipped beside the package, no part of it
MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if EXAMPLES not in path.parents}


@cache
def imports_of(code: str) -> tuple[Import, ...]:
    """The imports of `code`, those under `TYPE_CHECKING` left out."""
    return tuple(_walk(ast.parse(code), is_immediate=True))


def typed_edges_of(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """What modules import at any place, for types alone too."""
    edges: dict[str, set[str]] = {}
    for name, path in modules.items():
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        named = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
        edges[name] = {own_module(each) for each in named if is_own(each)} - {name}
    return edges


def _walk(node: ast.AST, is_immediate: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, is_immediate) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            yield from (Import(f"{child.module}.{alias.name}", is_immediate) for alias in child.names)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _walk(child, is_immediate and not is_function)


def own_module(imported: str) -> str:
    """The module of this package that an import reaches: the name itself, or what it is taken from."""
    return imported if imported in MODULES else imported.rpartition(".")[0]


def layer_of(module: str) -> str:
    """The layer of a module; the package itself stands above all of them."""
    return module.split(".")[1] if "." in module else "tallystick"


def edges_of(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    return {
        name: {own_module(found.module) for found in imports_of(path.read_text()) if is_own(found.module)} - {name}
        for name, path in modules.items()
    }


def is_own(module: str) -> bool:
    return module.split(".")[0] == "tallystick" and module != "tallystick.__version__"


def upward(edges: Mapping[str, Iterable[str]]) -> list[str]:
    """The imports that reach a layer above their own."""
    ranks = {layer: rank for rank, layer in enumerate(LAYERS)}
    return sorted(
        f"{name} -> {target}"
        for name, targets in edges.items()
        for target in targets
        if ranks[layer_of(target)] > ranks[layer_of(name)]
    )


def reached_from(layer: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    """The layers that the modules of `layer` reach by any chain of imports."""
    seen: set[str] = set()
    waiting = [name for name in edges if layer_of(name) == layer]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(edges.get(name, ()))
    return {layer_of(name) for name in seen} - {layer}


def home_of(name: str) -> str:
    """The layer of a module, or the folder of its layer in which heavy libraries are at home."""
    folder = ".".join(name.split(".")[1:3])
    return folder if folder in AT_HOME_WITH_HEAVY else layer_of(name)


def misplaced(home: str, code: str) -> list[str]:
    """The heavy libraries that `code`, a module that lives in `home`, loads as soon as it is loaded itself."""
    loaded = {found.module.split(".")[0] for found in imports_of(code) if found.is_immediate}
    return [] if home in AT_HOME_WITH_HEAVY else sorted(loaded & HEAVY)


def loaded_by(statement: str) -> set[str]:
    """Those of `UNLOADED_AT_IMPORT` that a fresh interpreter has loaded after `statement`."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split()) & set(UNLOADED_AT_IMPORT)


def test_every_module_is_behind_a_door() -> None:
    assert {layer_of(name) for name in MODULES} <= {*LAYERS}


def test_imports_run_downward_only_and_those_for_types_too() -> None:
    assert upward(typed_edges_of(MODULES)) == []


@pytest.mark.parametrize("folder", ["tally", "tally/cli"])
def test_commands_and_public_functions_import_what_is_ours_at_their_top(folder: str) -> None:
    files = sorted((PACKAGE / folder).glob("*.py"))
    late = {
        (path.stem, each.module) for path in files for each in imports_of(path.read_text()) if not each.is_immediate
    }
    assert {each for each in late if is_own(each[1])} == set()


def test_imports_have_no_cycles() -> None:
    list(TopologicalSorter(edges_of(MODULES)).static_order())


@pytest.mark.parametrize("layer", ["verdicts", "audits"])
def test_verifiers_reach_neither_recorders_nor_attacks_nor_the_command(layer: str) -> None:
    assert reached_from(layer, edges_of(MODULES)) & FORBIDDEN_TO_VERIFIERS == set()


def test_heavy_libraries_are_loaded_only_where_they_belong() -> None:
    found = {name: misplaced(home_of(name), path.read_text()) for name, path in MODULES.items()}
    assert {name: libraries for name, libraries in found.items() if libraries} == {}


def test_importing_the_package_loads_numpy_at_most() -> None:
    assert loaded_by("import tallystick") == set()


def test_importing_tensors_graphs_and_tolerances_loads_numpy_at_most() -> None:
    modules = "tallystick.core.tensors, tallystick.programs.graph, tallystick.verdicts.tolerance, tallystick.graphs"
    assert loaded_by(f"import {modules}") == set()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_listed_and_real(name: str) -> None:
    pytest.importorskip({"tallystick.jax": "jax", "tallystick.iree": "iree.runtime"}.get(name, "torch"))
    module = importlib.import_module(name)
    listed = [each for each in module.__all__ if not each.startswith("__")]
    assert [missing for missing in listed if not hasattr(module, missing)] == []
    assert set(listed) <= set(dir(module))
    assert set(listed) == typed_names(MODULES[name].read_text())


def typed_names(code: str) -> set[str]:
    """What a type checker sees: the names imported at any place as themselves."""
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in found for alias in node.names} - {"annotations", "TYPE_CHECKING", "lazy"}


def test_the_checks_see_what_they_forbid() -> None:
    assert upward({"tallystick.core.tensor_digests": {"tallystick.verdicts.verdict"}})
    assert not upward({"tallystick.verdicts.verdict": {"tallystick.core.tensor_digests"}})
    chain = {"tallystick.audits.a": {"tallystick.store.b"}, "tallystick.store.b": {"tallystick.recorders.c"}}
    assert reached_from("audits", chain) == {"store", "recorders"}
    with pytest.raises(CycleError):
        list(TopologicalSorter({"a": {"b"}, "b": {"a"}}).static_order())
    assert loaded_by("import pydantic, tallystick") == {"pydantic"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch", ["torch"]),
        ("from torch.nn import Module", ["torch"]),
        ("try:\n    import sklearn.datasets\nexcept ImportError:\n    pass", ["sklearn"]),
        ("class A:\n    import transformers", ["transformers"]),
        ("def run():\n    import torch", []),
        ("if TYPE_CHECKING:\n    import torch", []),
        ("import numpy", []),
    ],
)
def test_only_what_is_loaded_at_once_counts_as_loaded(code: str, expected: list[str]) -> None:
    assert misplaced("audits", code) == expected
    assert misplaced("engines", code) == []
