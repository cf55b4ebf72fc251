"""Pictures of a graph: text for Graphviz, a self-contained SVG, and one box per module for large ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

from tallystick.core.errors import UsageError
from tallystick.core.svg import tag
from tallystick.programs.encoding import Find
from tallystick.programs.files import ModulePaths
from tallystick.programs.graph import Graph, Node, Ref, Role
from tallystick.programs.layout import DrawingLayout, Point, arrange
from tallystick.programs.operators.definition import Exactness, operator
from tallystick.programs.slicing import givers_of, readers_of

# A large graph as one box per module, for a drawing.
#
# Nodes of one module share a box. Where that would close a circle of boxes (a layer that adds its input to what its
# parts gave), the later nodes get a further box of the same module.

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
    finest = _Collapsing(graph, paths, 1).finished()
    for finer in range(2, DEPTH_MAX + 1):
        tried = _Collapsing(graph, paths, finer).finished()
        if len(tried.boxes) > BOXES_WANTED:
            break
        finest = tried
    return finest


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
        reads = {ref: {self.box_of[number] for number in numbers} for ref, numbers in readers_of(self.graph).items()}
        links = {(self.box_of[giver], box) for ref, giver in self._givers.items() for box in reads.get(ref, ())}
        arrows = {(place[a], place[b]) for a, b in links if a != b}
        sources = [each.name for each in self.graph.sources if each.name in reads]
        readers = {ref: tuple(sorted(place[box] for box in reads[ref])) for ref in sources}
        return CollapsedGraph(tuple(self.boxes[box] for box in order), tuple(sorted(arrows)), readers)


# Nodes, cut values and the inputs that are new in each step are boxes. Weights and other state are lines of text in the
# boxes that read them; as separate boxes they would fill the picture with arrows. A large graph whose nodes name their
# modules is drawn with one box per module.

NODES_MAX: Final = 1000
NODES_EASY: Final = 150
"""A graph of more nodes is drawn by modules, if they are known."""
OPERATORS_SHOWN: Final = 3
LINE_MAX: Final = 40
FONT: Final = 11
CHARACTER: Final = 7.0
LINE: Final = 15
PADDING: Final = 7
GAP: Final = (22.0, 34.0)
COLOURS: Final = {
    Exactness.MOVES: "#eef0f3",
    Exactness.EXACT: "#e2f1e4",
    Exactness.ROUNDS: "#fdf6d8",
    Exactness.ACCUMULATES: "#dcebfb",
    Exactness.LIBRARY: "#f3e3f7",
    Exactness.COMPOSITE: "#fde5d2",
}
PHASES: Final = {"forward": "#dcebfb", "backward": "#fde5d2", "update": "#e2f1e4"}
SOURCE_COLOUR: Final = "#ffffff"
STROKE: Final = "#5b6577"
SOURCE_ROLES: Final = frozenset({Role.INPUT, Role.CUT})
Link = Callable[[str], str | None]


@dataclass(frozen=True)
class _Box:
    """A title and further lines."""

    lines: tuple[str, ...]
    colour: str
    is_source: bool
    module: str = ""

    @property
    def size(self) -> tuple[float, float]:
        return max(map(len, self.lines)) * CHARACTER + 2 * PADDING, len(self.lines) * LINE + 2 * PADDING


@dataclass(frozen=True)
class _Picture:
    """The boxes in order, the arrows between them, and what the colours mean."""

    boxes: dict[Ref, _Box]
    arrows: list[tuple[Ref, Ref]]
    legend: Mapping[str, str]


def draw_dot(graph: Graph, find: Find = operator, modules: ModulePaths | None = None, depth: int | None = None) -> str:
    """The graph in the DOT language of Graphviz; `modules` and `depth` as for `draw_svg`."""
    picture = _picture(graph, find, modules or {}, depth)
    boxes, arrows = picture.boxes, picture.arrows
    lines = ["digraph {", '  node [shape=box, style="filled,rounded", fontname=monospace, fontsize=10];']
    for name, box in boxes.items():
        label = "\\l".join(map(_dot_escaped, box.lines)) + "\\l"
        lines.append(f'  "{_dot_escaped(name)}" [label="{label}", fillcolor="{box.colour}"];')
    lines += [f'  "{_dot_escaped(a)}" -> "{_dot_escaped(b)}";' for a, b in arrows]
    return "\n".join([*lines, "}"]) + "\n"


def draw_svg(
    graph: Graph,
    find: Find = operator,
    modules: ModulePaths | None = None,
    depth: int | None = None,
    link: Link | None = None,
) -> str:
    """The graph as an SVG document.

    Args:
        graph: what to draw.
        find: looks up an operator by its name.
        modules: the module paths of the nodes, if they are known.
        depth: one box for each module, by so many parts of its path; 0 draws every node. Without it, a large graph is
            drawn by modules, as fine as is easy to read.
        link: where a box leads, for a drawing inside of a page: given the reference of a node or the title of a module.
            The style of the page then gives the colours, by the class that the legend names.

    Raises `UsageError` for more boxes than a picture can show, and for a depth where no module is known.
    """
    picture = _picture(graph, find, modules or {}, depth)
    boxes = picture.boxes
    count = sum(not box.is_source for box in boxes.values())
    if count > NODES_MAX:
        raise UsageError(f"{count} nodes are too many to draw, {NODES_MAX} are not: draw a slice, or by --depth")
    layout = arrange(picture.arrows, {name: box.size for name, box in boxes.items()}, GAP)
    width, height = max(layout.width, 640), layout.height + 2 * LINE
    body = [*_svg_arrows(layout, boxes), *_svg_boxes(layout, picture, link)]
    body += _svg_legend(height - LINE, picture.legend, link is not None)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="{FONT}">'
    )
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>' if link is None else ""
    return "\n".join(filter(None, [head, ground, *body, "</svg>"])) + "\n"


def _picture(graph: Graph, find: Find, modules: ModulePaths, depth: int | None) -> _Picture:
    if depth and not modules:
        raise UsageError("--depth: the graph names no modules")
    is_whole = depth == 0 or (depth is None and (len(graph.nodes) <= NODES_EASY or not modules))
    if is_whole:
        return _Picture(_boxes(graph, find), _arrows(graph), {str(name): colour for name, colour in COLOURS.items()})
    return _collapsed(graph, collapse(graph, modules, depth))


def _collapsed(graph: Graph, collapsed: CollapsedGraph) -> _Picture:
    """One box per module, with its number of nodes, its most frequent operators, and how much state it reads."""
    boxes, arrows = _sources(graph), list[tuple[Ref, Ref]]()
    state = Counter(box for ref, readers in collapsed.readers.items() if ref not in boxes for box in readers)
    for number, box in enumerate(collapsed.boxes):
        boxes[f"box {number}"] = _Box(tuple(_module_lines(box, state[number])), PHASES[box.phase], False, box.title)
    arrows += [(ref, f"box {box}") for ref, readers in collapsed.readers.items() if ref in boxes for box in readers]
    arrows += [(f"box {a}", f"box {b}") for a, b in collapsed.arrows]
    return _Picture(boxes, arrows, PHASES)


def _module_lines(box: ModuleBox, state: int) -> Iterator[str]:
    yield _cut(box.title)
    yield f"{len(box.nodes)} node{'' if len(box.nodes) == 1 else 's'}"
    shown = [f"{count} {name}" for name, count in box.operators[:OPERATORS_SHOWN]]
    yield _cut(", ".join(shown) + (", ..." if len(box.operators) > OPERATORS_SHOWN else ""))
    if state:
        yield f"< {state} of the state"


def _sources(graph: Graph) -> dict[Ref, _Box]:
    sources = [each for each in graph.inputs if each.role in SOURCE_ROLES]
    return {each.name: _Box((_cut(each.name), str(each.spec)), SOURCE_COLOUR, True) for each in sources}


def _boxes(graph: Graph, find: Find) -> dict[Ref, _Box]:
    boxes = _sources(graph)
    state = {each.name for each in graph.sources} - boxes.keys()
    named: dict[Ref, list[str]] = {}
    for output in graph.outputs:
        named.setdefault(output.value, []).append(output.name)
    for node in graph.nodes:
        colour = COLOURS[find(node.operator).exactness]
        boxes[f"n{node.number}"] = _Box(tuple(_node_lines(node, state, named)), colour, False)
    return boxes


def _node_lines(node: Node, state: set[Ref], named: dict[Ref, list[str]]) -> Iterator[str]:
    yield _cut(f"n{node.number} {node.operator.removesuffix('.default')}")
    yield _cut(", ".join("none" if spec is None else str(spec) for spec in node.results) or "no result")
    yield from (_cut(f"< {ref}") for ref in dict.fromkeys(node.refs) if ref in state)
    for ref in filter(None, node.outputs):
        yield from (_cut(f"> {name}") for name in named.get(ref, ()) if name != ref)


def _arrows(graph: Graph) -> list[tuple[Ref, Ref]]:
    givers = givers_of(graph)
    sources = {each.name for each in graph.inputs if each.role in SOURCE_ROLES}
    arrows: dict[tuple[Ref, Ref], None] = {}
    for node in graph.nodes:
        for ref in node.refs:
            if ref in givers:
                arrows[f"n{givers[ref]}", f"n{node.number}"] = None
            elif ref in sources:
                arrows[ref, f"n{node.number}"] = None
    return list(arrows)


def _svg_arrows(layout: DrawingLayout, boxes: dict[Ref, _Box]) -> Iterator[str]:
    yield '<g fill="none" stroke="#8a94a6" stroke-width="1.2">'
    for (a, b), points in layout.routes.items():
        (x, y), (end_x, end_y) = points[0], points[-1]
        start, end = (x, y + boxes[a].size[1] / 2), (end_x, end_y - boxes[b].size[1] / 2)
        yield tag("path", d=_curve((start, *points[1:-1], end)))
        x, y = end
        yield tag("path", d=f"M{x - 3:.1f} {y - 6:.1f}L{x:.1f} {y:.1f}L{x + 3:.1f} {y - 6:.1f}")
    yield "</g>"


def _curve(points: tuple[Point, ...]) -> str:
    pieces = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (y + to_y) / 2
        pieces.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(pieces)


def _svg_boxes(layout: DrawingLayout, picture: _Picture, link: Link | None) -> Iterator[str]:
    kinds = {colour: name for name, colour in picture.legend.items()}
    for name, box in picture.boxes.items():
        target = None if link is None else link(box.module or name)
        if target is not None:
            yield f'<a href="{escape(target)}">'
        yield from _svg_box(layout.middles[name], box, "" if link is None else kinds.get(box.colour, "source"))
        if target is not None:
            yield "</a>"


def _svg_box(middle: Point, box: _Box, kind: str) -> Iterator[str]:
    (x, y), (width, height) = middle, box.size
    left, top = x - width / 2, y - height / 2
    corner = {"x": left, "y": top, "width": width, "height": float(height), "rx": "5"}
    dashes = "4 3" if box.is_source else None
    yield tag("rect", **corner, fill=box.colour, stroke=STROKE, stroke_dasharray=dashes, class_=kind or None)
    for i, line in enumerate(box.lines):
        look = {"font_weight": "bold"} if i == 0 else {"fill": "#3d4656"}
        yield tag("text", escape(line), x=left + PADDING, y=top + PADDING + FONT + i * LINE, **look)


def _svg_legend(y: float, legend: Mapping[str, str], linked: bool) -> Iterator[str]:
    x = 10.0
    for name, colour in legend.items():
        square = {"x": x, "y": y - 9, "width": "11", "height": "11", "fill": colour, "stroke": STROKE}
        yield tag("rect", **square, class_=name if linked else None)
        yield tag("text", escape(name), x=x + 15, y=y)
        x += 30 + len(name) * CHARACTER


def _cut(line: str) -> str:
    return line if len(line) <= LINE_MAX else f"{line[: LINE_MAX - 3]}..."


def _dot_escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
