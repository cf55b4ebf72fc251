"""Module paths: the part of a model from which each node of a graph was captured, such as `model.layers.0.mlp`.

They are for people and stand outside the graph's root, in `NAME.modules.json` beside `NAME.json` (`spec/graph.md`).
Whoever made the graph may have written anything there, so no check reads them. A file that does not fit is ignored, and
one line says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from tallystick.core.canonical_json import Json, decode, encode, fields, items, natural, text
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import read_document, write_atomically
from tallystick.programs.encoding import graph_root
from tallystick.programs.graph import Graph, GraphLimits

FORMAT: Final = 1
BYTES_MAX: Final = GraphLimits().document_bytes
NAME_MAX: Final = 512
FIELDS: Final = ("graph", "modules", "names", "nodes")
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


def modules_path(path: Path) -> Path:
    """The path of the module paths of the graph at `path`."""
    return path.with_suffix(".modules.json")


def save_modules(path: Path, graph: Graph, paths: ModulePaths) -> None:
    """Write the module paths of the graph at `path` beside it; without any, an old file is removed."""
    target = modules_path(path)
    found = [paths.get(node.number, "") for node in graph.nodes]
    if not any(found):
        target.unlink(missing_ok=True)
        return
    names: list[Json] = [*sorted(set(found))]
    places = {name: place for place, name in enumerate(names)}
    nodes: list[Json] = [places[name] for name in found]
    write_atomically(
        target, encode({"graph": str(graph_root(graph)), "modules": FORMAT, "names": names, "nodes": nodes})
    )


def load_modules(path: Path, graph: Graph) -> NamedNodes:
    """The module paths beside the graph at `path`; none if there is no file, or if it does not fit the graph."""
    target = modules_path(path)
    if not target.is_file():
        return NamedNodes()
    try:
        return NamedNodes(_read(read_document(target, BYTES_MAX), graph))
    except (MalformedError, UnavailableError) as error:
        return NamedNodes(problem=f"{target.name} is ignored: {error}")


def _read(data: bytes, graph: Graph) -> ModulePaths:
    found = fields(decode(data, "module paths", bytes_max=BYTES_MAX), FIELDS, "module paths")
    if natural(found["modules"], "modules") != FORMAT:
        raise MalformedError("its format is unknown")
    if found["graph"] != str(graph_root(graph)):
        raise MalformedError("it belongs to another graph")
    names = [_name(each) for each in items(found["names"], "names")]
    places = [natural(each, "nodes") for each in items(found["nodes"], "nodes")]
    if len(places) != len(graph.nodes):
        raise MalformedError(f"it names {len(places)} nodes, and the graph has {len(graph.nodes)}")
    if max(places, default=0) >= len(names):
        raise MalformedError("nodes: a name that is not there")
    return {node.number: names[place] for node, place in zip(graph.nodes, places, strict=True) if names[place]}


def _name(value: Json) -> str:
    name = text(value, "names")
    if len(name) > NAME_MAX or not name.isprintable():
        raise MalformedError("names: a name that is too long, or cannot be printed")
    return name
