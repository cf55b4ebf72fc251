"""A program on disk: `<name>.json` is the graph; `<name>.safetensors` its constants, absent if there are none.

`<name>.modules.json` names the part of a model from which each node was captured, such as `model.layers.0.mlp`. These
paths are for people and stand outside the graph's root (`spec/graph.md`). Whoever made the graph may have written
anything there, so no check reads them. A file that does not fit is ignored, and one line says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from tallystick.core.canonical_json import Json, decode, encode, fields, items, natural, text
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import file_size, read_document, write_atomically
from tallystick.core.safetensors import StateFile, write_state
from tallystick.core.tensors import Tensor
from tallystick.programs.admission import DEFAULT, check_constants, read_graph
from tallystick.programs.encoding import graph_bytes, graph_root
from tallystick.programs.graph import Graph, GraphLimits

MODULES_FORMAT: Final = 1
_MODULES_BYTES_MAX: Final = GraphLimits().document_bytes
_MODULE_NAME_MAX: Final = 512
_MODULES_FIELDS: Final = ("graph", "modules", "names", "nodes")
ModulePaths: TypeAlias = Mapping[int, str]
"""The module path of a node by its number; a node without an entry belongs to no module."""


@dataclass(frozen=True)
class NamedNodes:
    """The module paths of a graph's nodes, as far as they are known; `problem` says why a file was ignored."""

    paths: ModulePaths = field(default_factory=dict)
    problem: str = ""

    def place(self, number: int) -> str:
        """` in model.layers.0`, to follow the operator's name; empty for a node of no known module."""
        return f" in {self.paths[number]}" if self.paths.get(number) else ""


def save_program(
    path: Path | str, graph: Graph, constants: Mapping[str, Tensor], modules: ModulePaths | None = None
) -> Path:
    """Write `graph` to `path` and its constants beside it; returns the path of the graph, which ends in `.json`.

    `constants` may hold more than the graph needs, and so may `modules`, the module paths of its nodes.

    Raises:
        MalformedError: a constant is missing or has another digest.
        UnavailableError: a file cannot be written.
    """
    check_constants(graph.constants, constants)
    target = _graph_path(path)
    if graph.constants:
        write_state(constants_path(target), {each.name: constants[each.name] for each in graph.constants})
    else:
        constants_path(target).unlink(missing_ok=True)
    write_atomically(target, graph_bytes(graph))
    save_modules(target, graph, modules or {})
    return target


def load_program(path: Path | str, limits: GraphLimits = DEFAULT) -> tuple[Graph, dict[str, Tensor]]:
    """The graph and its constants; everything is checked.

    Raises:
        MalformedError: the graph is invalid, or a constant is missing or has another digest.
        UnavailableError: there is no such file.
    """
    target = _graph_path(path)
    graph = load_graph(target, limits)
    return graph, load_constants(target, graph)


def load_constants(path: Path, graph: Graph) -> dict[str, Tensor]:
    """The constants of the graph at `path`; raises what `load_program` raises."""
    if not graph.constants:
        return {}
    with StateFile(constants_path(path)) as file:
        wanted = [each.name for each in graph.constants if each.name in file.specs]
        tensors = {name: file.tensor(name).copy() for name in wanted}
    check_constants(graph.constants, tensors)
    return tensors


def load_graph(path: Path, limits: GraphLimits = DEFAULT) -> Graph:
    """The graph at `path`, without its constants; errors name the file. Raises what `load_program` raises."""
    data = read_graph_file(path, limits)
    try:
        return read_graph(data, limits)
    except MalformedError as error:
        raise MalformedError(f"{path.name}: {error}") from None


def constants_path(path: Path) -> Path:
    """The path of the constants of the graph at `path`."""
    return path.with_suffix(".safetensors")


def read_graph_file(path: Path, limits: GraphLimits = DEFAULT) -> bytes:
    """The bytes of a graph file; raises `UnavailableError` if there is none, `MalformedError` if it is too large."""
    if file_size(path) > limits.document_bytes:
        raise MalformedError(f"{path.name}: more than the {limits.document_bytes} bytes allowed")
    return read_document(path, limits.document_bytes)


def _graph_path(path: Path | str) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" else path.with_name(f"{path.name}.json")


def modules_path(path: Path) -> Path:
    """The path of the module paths of the graph at `path`."""
    return path.with_suffix(".modules.json")


def save_modules(path: Path, graph: Graph, paths: ModulePaths) -> None:
    """Write the module paths of the graph at `path` beside it; without any, an old file is removed."""
    target = modules_path(path)
    named = [paths.get(node.number, "") for node in graph.nodes]
    if not any(named):
        target.unlink(missing_ok=True)
        return
    names: list[Json] = [*sorted(set(named))]
    places = {name: place for place, name in enumerate(names)}
    nodes: list[Json] = [places[name] for name in named]
    write_atomically(
        target, encode({"graph": str(graph_root(graph)), "modules": MODULES_FORMAT, "names": names, "nodes": nodes})
    )


def load_modules(path: Path, graph: Graph) -> NamedNodes:
    """The module paths beside the graph at `path`; none if there is no file, or if it does not fit the graph."""
    target = modules_path(path)
    if not target.is_file():
        return NamedNodes()
    try:
        return NamedNodes(_read_modules(read_document(target, _MODULES_BYTES_MAX), graph))
    except (MalformedError, UnavailableError) as error:
        return NamedNodes(problem=f"{target.name} is ignored: {error}")


def _read_modules(data: bytes, graph: Graph) -> ModulePaths:
    document = fields(decode(data, "module paths", bytes_max=_MODULES_BYTES_MAX), _MODULES_FIELDS, "module paths")
    if natural(document["modules"], "modules") != MODULES_FORMAT:
        raise MalformedError("its format is unknown")
    if document["graph"] != str(graph_root(graph)):
        raise MalformedError("it belongs to another graph")
    names = [_module_name(each) for each in items(document["names"], "names")]
    places = [natural(each, "nodes") for each in items(document["nodes"], "nodes")]
    if len(places) != len(graph.nodes):
        raise MalformedError(f"it names {len(places)} nodes, and the graph has {len(graph.nodes)}")
    if max(places, default=0) >= len(names):
        raise MalformedError("nodes: a name that is not there")
    return {node.number: names[place] for node, place in zip(graph.nodes, places, strict=True) if names[place]}


def _module_name(value: Json) -> str:
    name = text(value, "names")
    if len(name) > _MODULE_NAME_MAX or not name.isprintable():
        raise MalformedError("names: a name that is too long, or cannot be printed")
    return name
