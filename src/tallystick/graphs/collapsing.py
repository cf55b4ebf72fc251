"""A large graph as one box per module, for a drawing.

Nodes of one module share a box. Where that would close a circle of boxes (a layer that adds its input to what its parts
gave), the later nodes get a further box of the same module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tallystick.graphs.graph import Graph, Node, Ref
from tallystick.graphs.modules import ModulePaths
from tallystick.graphs.slicing import givers_of

BOXES_WANTED: Final = 48
DEPTH_MAX: Final = 12
OF: Final = " of "
NOWHERE: Final = "no module"


@dataclass
class ModuleBox:
    """The nodes of one module at one depth; `title` is its path, with the phase of the step before it."""

    title: str
    nodes: list[Node] = field(default_factory=list)

    @property
    def phase(self) -> str:
        """`backward` or `update` of the module, else `forward`; what is not known counts as forward."""
        phase = self.title.partition(OF)[0]
        return phase if phase in ("backward", "update") else "forward"

    @property
    def operators(self) -> list[tuple[str, int]]:
        """How often each operator occurs, by its short name, most frequent first."""
        return Counter(node.operator.split(".")[1] for node in self.nodes).most_common()


@dataclass(frozen=True)
class CollapsedGraph:
    """Boxes in an order of execution, and the arrows between them by their places in that order.

    `readers` are the boxes that read each source of the graph.
    """

    boxes: tuple[ModuleBox, ...]
    arrows: tuple[tuple[int, int], ...]
    readers: dict[Ref, tuple[int, ...]]


def collapse(graph: Graph, paths: ModulePaths, depth: int | None = None) -> CollapsedGraph:
    """The boxes of `graph` at `depth` parts of a module's path; without it, the finest that is still easy to read."""
    if depth is not None:
        return _Collapsing(graph, paths, depth).finished()
    found = _Collapsing(graph, paths, 1).finished()
    for finer in range(2, DEPTH_MAX + 1):
        tried = _Collapsing(graph, paths, finer).finished()
        if len(tried.boxes) > BOXES_WANTED:
            break
        found = tried
    return found


def shortened(path: str, depth: int) -> str:
    """The first `depth` parts of a module's path, after the phase of the step that stands before it."""
    phase, of, module = path.rpartition(OF)
    return f"{phase}{of}{'.'.join(module.split('.')[:depth])}" or NOWHERE


class _Collapsing:
    """Takes the nodes in order and puts each into a box; `above` are the boxes that a box depends on, as bits."""

    def __init__(self, graph: Graph, paths: ModulePaths, depth: int) -> None:
        self.graph, self.boxes, self.above = graph, list[ModuleBox](), list[int]()
        self.box_of: dict[int, int] = {}
        givers, latest = givers_of(graph), dict[str, int]()
        for node in graph.nodes:
            read = {self.box_of[givers[ref]] for ref in node.refs if ref in givers}
            title = shortened(paths.get(node.number, ""), depth)
            box = latest.get(title)
            if box is None or any(self.above[each] >> box & 1 for each in read - {box}):
                box = latest[title] = len(self.boxes)
                self.boxes.append(ModuleBox(title))
                self.above.append(0)
            self._join(node, box, read - {box})
        self._givers = givers

    def _join(self, node: Node, box: int, read: set[int]) -> None:
        self.boxes[box].nodes.append(node)
        self.box_of[node.number] = box
        gained = 0
        for each in read:
            gained |= self.above[each] | 1 << each
        for other, above in enumerate(self.above):
            if other == box or above >> box & 1:
                self.above[other] |= gained

    def finished(self) -> CollapsedGraph:
        """The boxes, sorted so that each stands after those that it depends on."""
        order = sorted(range(len(self.boxes)), key=lambda box: (self.above[box].bit_count(), box))
        place = {box: number for number, box in enumerate(order)}
        arrows = {(place[a], place[b]) for a, b in self._links() if a != b}
        return CollapsedGraph(tuple(self.boxes[box] for box in order), tuple(sorted(arrows)), self._readers(place))

    def _links(self) -> Iterator[tuple[int, int]]:
        for node in self.graph.nodes:
            for ref in node.refs:
                if ref in self._givers:
                    yield self.box_of[self._givers[ref]], self.box_of[node.number]

    def _readers(self, place: dict[int, int]) -> dict[Ref, tuple[int, ...]]:
        found: dict[Ref, set[int]] = {each.name: set() for each in self.graph.sources}
        for node in self.graph.nodes:
            for ref in node.refs:
                if ref in found:
                    found[ref].add(place[self.box_of[node.number]])
        return {ref: tuple(sorted(boxes)) for ref, boxes in found.items() if boxes}
