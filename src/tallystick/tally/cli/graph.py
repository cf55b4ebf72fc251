"""`tally graph`: look at a captured program, cut slices out of it, compare and draw it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

from tallystick.core import safetensors
from tallystick.core.canonical_json import Json, parse
from tallystick.core.errors import UsageError
from tallystick.core.files import require_writable, write_atomically
from tallystick.programs import (
    batching,
    difference as graph_difference,
    drawing,
    encoding,
    files as program_files,
    graph as graphs,
    inspection,
    slicing,
    templates,
)
from tallystick.tally.cli.options import AsJson
from tallystick.tally.cli.output import page, print_json, talk

# A graph, one of its nodes, and the difference of two graphs: as lines of text and as JSON.


def graph_lines(graph: graphs.Graph, named: program_files.NamedNodes) -> Iterator[str]:
    """Inputs, constants, nodes with the modules they came from, and outputs."""
    yield from (f"{each.role:<9} {each.name}: {each.spec}" for each in graph.inputs)
    yield from (f"constant  {each.name}: {each.spec}" for each in graph.constants)
    for node in graph.nodes:
        results = ", ".join("none" if spec is None else str(spec) for spec in node.results)
        yield f"n{node.number:<8} {node.operator}({', '.join(node.refs)}): {results}{named.place(node.number)}"
    yield from (f"output    {each.name}: {each.value}" for each in graph.outputs)


def graph_json(graph: graphs.Graph, named: program_files.NamedNodes) -> Json:
    """The graph's document, its root, and the modules of its nodes by number."""
    modules: dict[str, Json] = {str(number): path for number, path in named.paths.items()}
    return {
        "graph": parse(encoding.graph_bytes(graph), "graph"),
        "modules": modules,
        "root": str(encoding.graph_root(graph)),
    }


def node_facts(inspected: inspection.Inspection, number: int, named: program_files.NamedNodes) -> dict[str, Json]:
    """One node's record, its module, its cost, and how many nodes it depends on and serves."""
    if number not in inspected.nodes:
        raise UsageError(f"the graph has no node {number}")
    cost = inspected.costs[number]
    return {
        **encoding.node_json(inspected.nodes[number]),
        "bytes_moved": cost.bytes_moved,
        "depends_on": len(slicing.ancestors(inspected.graph, [number])) - 1,
        "depth": inspected.depths[number],
        "flops": cost.flops,
        "meaning": inspected.find(inspected.nodes[number].operator).meaning,
        "module": named.paths.get(number),
        "read_by": list(inspected.read_by(number)),
        "reads": list(inspected.reads(number)),
        "serves": len(slicing.descendants(inspected.graph, [number])) - 1,
    }


def diff_lines(
    difference: graph_difference.Diff,
    before: tuple[graphs.Graph, program_files.NamedNodes],
    after: tuple[graphs.Graph, program_files.NamedNodes],
) -> Iterator[str]:
    """What differs outside the nodes, then nodes removed, added and changed, each with its module."""
    mine, theirs = ({node.number: node.operator for node in graph.nodes} for graph, _ in (before, after))
    yield from (f"! {line}" for line in difference.header)
    yield from (f"- n{number} {mine[number]}{before[1].place(number)}" for number in difference.removed)
    yield from (f"+ n{number} {theirs[number]}{after[1].place(number)}" for number in difference.added)
    for change in difference.changed:
        place = before[1].place(change.number) or after[1].place(change.other)
        changes = [f"{name} {plain(old)} -> {plain(new)}" for name, (old, new) in change.values.items()]
        yield f"~ n{change.number} -> n{change.other} {mine[change.number]}{place}: {', '.join(changes)}"
    yield f"{difference.same} nodes are the same"


def diff_json(
    difference: graph_difference.Diff, before: program_files.NamedNodes, after: program_files.NamedNodes
) -> Json:
    """The difference as JSON, with the modules of the nodes that it names."""
    document = difference.to_json()
    assert isinstance(document, dict)  # as `Diff` writes it
    first = {*difference.removed, *(change.number for change in difference.changed)}
    second = {*difference.added, *(change.other for change in difference.changed)}
    return {**document, "modules": [_named(before, first), _named(after, second)]}


def plain(value: Json) -> str:
    """A JSON value in a line of text."""
    if isinstance(value, dict):
        return ", ".join(f"{name}={plain(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return f"[{', '.join(map(plain, value))}]"
    return "none" if value is None else str(value)


def _named(named: program_files.NamedNodes, numbers: set[int]) -> Json:
    return {str(number): named.paths[number] for number in sorted(numbers) if number in named.paths}


NUMBERS_MAX = 1_000_000
FILE = typer.Argument(help="A graph, NAME.json; its constants stand beside it in NAME.safetensors.")


def show(
    file: Path = FILE,
    node: int | None = typer.Option(None, min=0, help="Show this node with all that it depends on and serves."),
    proof: bool = typer.Option(False, "--proof", help="With --node: print its record and inclusion proof as JSON."),
    json: AsJson = False,
) -> None:
    """List the inputs, nodes and outputs of a graph, or show one node."""
    graph, named = _read_named(file)
    if proof:
        if node is None:
            raise UsageError("--proof is about one node: add --node N")
        print_json({"graph": str(encoding.graph_root(graph)), "node": encoding.prove_node(graph, node).to_json()})
    elif node is not None:
        facts = node_facts(inspection.Inspection(graph), node, named)
        print_json(facts) if json else print(*(f"{name}: {plain(value)}" for name, value in facts.items()), sep="\n")
    else:
        print_json(graph_json(graph, named)) if json else print(*graph_lines(graph, named), sep="\n")


def stats(file: Path = FILE, json: AsJson = False) -> None:
    """Count operators, values, depth, floating-point operations and bytes."""
    from rich.table import Column, Table

    graph = program_files.load_graph(file)
    inspected = inspection.Inspection(graph)
    if json:
        counts = inspected.to_json()
        assert isinstance(counts, dict)
        print_json({**counts, "root": str(encoding.graph_root(graph))})
        return
    print(f"root          {encoding.graph_root(graph)}")
    print(f"program       {graph.dialect}, {graph.form}; {len(graph.inputs)} inputs, {len(graph.constants)} constants")
    print(f"nodes         {len(graph.nodes)} of {len(inspected.operators)} operators, {inspected.depth} deep")
    sizes = f"{_bytes(inspected.value_bytes)}, {_bytes(inspected.peak_bytes)} at one time"
    print(f"values        {len(inspected.specs)} of {sizes}")
    print(f"work          {inspected.flops:,} floating-point operations, {_bytes(inspected.bytes_moved)} moved")
    table = Table("operator", *(Column(name, justify="right") for name in ("nodes", "operations", "moved")), box=None)
    for name, operator in inspected.operators.items():
        table.add_row(name, f"{operator.nodes}", f"{operator.flops:,}", _bytes(operator.bytes_moved))
    page().print(table)


def slice_(
    file: Path = FILE,
    out: Path = typer.Option(..., help="Where the slice goes, with its constants beside it."),
    nodes: str | None = typer.Option(None, help="Numbers and ranges of nodes, such as 3,7-9."),
    between: str | None = typer.Option(None, help="All paths between two sets of nodes, such as 3,4:17."),
    given: str | None = typer.Option(None, help="With --wanted: the values to start from, such as n3,n4.1."),
    wanted: str | None = typer.Option(None, help="The values to compute."),
    element: str | None = typer.Option(None, help="One example of a batch: the batched inputs, such as inputs.x."),
    rows: int = typer.Option(1, min=1, help="With --element: how many examples the slice is for."),
    json: AsJson = False,
) -> None:
    """Cut a part out of a graph; the part is a graph itself, and can be executed alone."""
    if sum(option is not None for option in (nodes, between, wanted, element)) != 1:
        raise UsageError("one of --nodes, --between, --wanted and --element says what the slice is")
    require_writable(out, makes_folders=True)
    graph, constants = program_files.load_program(file)
    part = _part(graph, nodes, between, (given, wanted), element, rows)
    modules = {} if element is not None else _modules(file, graph).paths
    _tell_saved(program_files.save_program(out, part, constants, modules), part, json)


def diff(
    first: Path = typer.Argument(help="A graph."),
    second: Path = typer.Argument(help="Another graph."),
    json: AsJson = False,
) -> None:
    """Name the nodes that were added, removed or changed between two graphs, whatever their numbers."""
    before, after = _read_named(first), _read_named(second)
    difference = graph_difference.diff(before[0], after[0])
    if json:
        print_json(diff_json(difference, before[1], after[1]))
    else:
        print(*diff_lines(difference, before, after), sep="\n")


def draw(
    file: Path = FILE,
    out: Path | None = typer.Option(None, help="NAME.svg or NAME.dot; without it, Graphviz text is printed."),
    depth: int | None = typer.Option(
        None, min=0, help="One box per module, by so many parts of its path; 0: every node, of a large graph too."
    ),
    json: AsJson = False,
) -> None:
    """Draw a graph as SVG, or as text for Graphviz; a large one by modules."""
    if out is not None:
        require_writable(out, makes_folders=True)
    graph, named = _read_named(file)
    if out is None:
        text = drawing.draw_dot(graph, modules=named.paths, depth=depth)
        print_json({"dot": text}) if json else print(text, end="")
        return
    if out.suffix not in {".svg", ".dot"}:
        raise UsageError(f"{out.name}: a picture is an .svg or a .dot file")
    drawn = (drawing.draw_svg if out.suffix == ".svg" else drawing.draw_dot)(graph, modules=named.paths, depth=depth)
    write_atomically(out, drawn.encode())
    talk().print(f"{out}: {len(graph.nodes)} nodes")
    if json:
        print_json({"file": str(out), "nodes": len(graph.nodes)})


def bind(
    template: Path = typer.Argument(help="A template: a graph with named dimensions."),
    out: Path = typer.Option(..., help="Where the ordinary graph goes."),
    size: list[str] = typer.Option([], help="A dimension and its size, such as batch=4; once for each."),
    json: AsJson = False,
) -> None:
    """Give the named dimensions of a template their sizes; the constants of the template are copied."""
    require_writable(out, makes_folders=True)
    read = templates.Template.from_bytes(program_files.read_graph_file(template))
    sizes = {}
    for text in size:
        name, _, given = text.partition("=")
        if not given.isdecimal() or len(given) > 16:
            raise UsageError(f"--size {text}: a name and a size are needed, such as batch=4")
        sizes[name] = int(given)
    graph = read.bind(**sizes)
    constants = safetensors.read_state(program_files.constants_path(template)) if graph.constants else {}
    _tell_saved(program_files.save_program(out, graph, constants), graph, json)


def _tell_saved(target: Path, graph: graphs.Graph, as_json: bool) -> None:
    counts = {"inputs": len(graph.inputs), "nodes": len(graph.nodes), "outputs": len(graph.outputs)}
    talk().print(f"{target}: {', '.join(f'{counts[name]} {name}' for name in ('nodes', 'inputs', 'outputs'))}")
    if as_json:
        print_json({**counts, "file": str(target), "root": str(encoding.graph_root(graph))})


def _read_named(file: Path) -> tuple[graphs.Graph, program_files.NamedNodes]:
    graph = program_files.load_graph(file)
    return graph, _modules(file, graph)


def _modules(file: Path, graph: graphs.Graph) -> program_files.NamedNodes:
    """The modules that the nodes came from; a file of them that does not fit is ignored, and a line says so."""
    named = program_files.load_modules(file, graph)
    if named.problem:
        talk().print(named.problem, soft_wrap=True)
    return named


def _part(
    graph: graphs.Graph,
    nodes: str | None,
    between: str | None,
    cuts: tuple[str | None, str | None],
    element: str | None,
    rows: int,
) -> graphs.Graph:
    if nodes is not None:
        return slicing.subgraph(graph, _numbers(nodes))
    if between is not None:
        sources, colon, targets = between.partition(":")
        if not colon:
            raise UsageError(f"--between {between}: two sets of nodes with a colon, such as 3,4:17")
        return slicing.between(graph, _numbers(sources), _numbers(targets))
    if element is not None:
        return batching.slice_batch(graph, _names(element), rows).graph
    given, wanted = cuts
    return slicing.verification_slice(graph, _names(given or ""), _names(wanted or ""))


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for piece in _names(text):
        first, _, last = piece.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise UsageError(f"{piece!r} is neither a number nor a range such as 7-9")
        numbers += range(int(first), min(int(last or first), int(first) + NUMBERS_MAX) + 1)
    return numbers


def _names(text: str) -> list[str]:
    return [piece.strip() for piece in text.split(",") if piece.strip()]


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
