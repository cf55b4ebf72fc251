"""Depth and memory of an execution, computed from the graph alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tallystick.graphs.graph import Graph, Ref


def last_readers(graph: Graph) -> dict[int, list[Ref]]:
    """For each node, the values whose last reader it is; outputs of the graph are left out."""
    reader: dict[Ref, int] = {}
    for node in graph.nodes:
        reader |= dict.fromkeys((*filter(None, node.outputs), *node.refs), node.number)
    for output in graph.outputs:
        reader.pop(output.value, None)
    return _grouped(reader.items())


def depths(graph: Graph) -> dict[int, int]:
    """For each node, the length of the longest chain of nodes that ends with it; 1 if it reads no other node."""
    found: dict[int, int] = {}
    of_value: dict[Ref, int] = {}
    for node in graph.nodes:
        found[node.number] = 1 + max((of_value.get(ref, 0) for ref in node.refs), default=0)
        of_value |= dict.fromkeys(filter(None, node.outputs), found[node.number])
    return found


def peak_bytes(graph: Graph, scratch: Mapping[int, int]) -> int:
    """The largest number of bytes in memory at one time in `execute`, with the `scratch` bytes of the running node.

    Inputs and constants are loaded before the first node. Every value is freed after its last reader.
    """
    specs, last = graph.specs(), last_readers(graph)
    held = sum(value.spec.nbytes for value in graph.sources)
    peak = held
    for node in graph.nodes:
        held += sum(spec.nbytes for spec in node.results if spec is not None)
        peak = max(peak, held + scratch.get(node.number, 0))
        held -= sum(specs[ref].nbytes for ref in last.get(node.number, ()))
    return peak


def _grouped(pairs: Iterable[tuple[Ref, int]]) -> dict[int, list[Ref]]:
    found: dict[int, list[Ref]] = {}
    for ref, number in pairs:
        found.setdefault(number, []).append(ref)
    return found
