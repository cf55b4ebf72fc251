"""The files of graphs: each is read and checked against its root once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tallystick.errors import MalformedError, UsageError
from tallystick.graphs.collapsing import shortened
from tallystick.graphs.drawing import draw_svg
from tallystick.graphs.files import load_graph
from tallystick.graphs.graph import Graph
from tallystick.graphs.modules import ModulePaths, load_modules
from tallystick.graphs.root import graph_root
from tallystick.graphs.slicing import givers_of, subgraph
from tallystick.web.pages.asked import to


@dataclass(frozen=True)
class StoredGraph:
    """A graph whose root has been checked, and the module paths beside it."""

    graph: Graph
    modules: ModulePaths


@lru_cache(maxsize=4)
def stored_graph(place: str, root: str) -> StoredGraph:
    """The graph at `place`; raises `MalformedError` where it is another than `root` names."""
    path = Path(place)
    graph = load_graph(path)
    if (found := graph_root(graph)) != root:
        raise MalformedError(f"{path.name}: the graph has root {found}, and the database says {root}")
    return StoredGraph(graph, load_modules(path, graph).paths)


@lru_cache(maxsize=16)
def drawing(
    place: str, root: str, depth: int | None = None, module: str | None = None, around: int | None = None
) -> str:
    """A drawing whose boxes lead to operators, and those of modules into the module.

    Args:
        place: the file of the graph.
        root: its root.
        depth: one box for each module by so many parts of its path; 0 draws every node.
        module: draw only the nodes of this module, with the phase of the step before it.
        around: draw only this node, those that it reads, and those that read it.

    Raises `UsageError` where there is nothing to draw, or too much.
    """
    stored = stored_graph(place, root)
    numbers = _wanted(stored, module, around)
    part = stored.graph if numbers is None else subgraph(stored.graph, numbers)
    deeper = (depth or 1) + 1

    def link(name: str) -> str | None:
        if name.startswith("n") and name[1:].isdigit():
            return to("operator", graph=root, number=name[1:])
        return to("graph", root=root, module=name, depth=deeper) if name not in stored.graph.specs() else None

    if around is not None or (numbers is not None and len(numbers) <= 60):
        depth = 0
    return draw_svg(part, modules=stored.modules, depth=depth, link=link)


def _wanted(stored: StoredGraph, module: str | None, around: int | None) -> set[int] | None:
    if around is not None:
        return _neighbourhood(stored.graph, around)
    if module is None:
        return None
    parts = len(module.rpartition(" of ")[2].split("."))
    found = {number for number, path in stored.modules.items() if shortened(path, parts) == module}
    if not found:
        raise UsageError(f"module {module}: the graph has none of that name")
    return found


def _neighbourhood(graph: Graph, number: int) -> set[int]:
    """A node, what it reads, and what reads it."""
    givers = givers_of(graph)
    found = {number}
    for node in graph.nodes:
        read = {givers[ref] for ref in node.refs if ref in givers}
        if node.number == number:
            found |= read
        elif number in read:
            found.add(node.number)
    return found
