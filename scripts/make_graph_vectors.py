#!/usr/bin/env python3
"""Write the test vectors of graphs: documents with their roots and proofs, and documents to refuse.

Usage: python scripts/make_graph_vectors.py vectors/graph

Documents, roots and proofs are computed from spec/graph.md, spec/tree.md and spec/digest.md without the package.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

Document = dict[str, Any]
HEADER = ("constants", "dialect", "form", "graph", "inputs", "outputs")


def main() -> None:
    """Write both files."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, cases in vectors().items():
        (folder / f"{name}.json").write_text(json.dumps(cases, indent=1, ensure_ascii=True) + "\n")


def vectors() -> dict[str, list[Any]]:
    """The contents of both files by name."""
    return {
        "graphs": [graph_case(what, document) for what, document in documents().items()],
        "refused": [refused_case(what) for what in REFUSED],
    }


def canonical(value: Any) -> bytes:
    """The bytes of JSON without floats and with ASCII text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def named(noun: str, data: bytes) -> str:
    """The digest under a domain."""
    return "sha256:" + sha256(f"tallystick/{noun}/v1\n".encode() + data).hexdigest()


def root_of(leaves: list[bytes]) -> bytes:
    """The root of RFC 6962, by its recursive definition."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + root_of(leaves[:split]) + root_of(leaves[split:])).digest()


def path_to(index: int, leaves: list[bytes]) -> list[bytes]:
    """The audit path of a leaf, lowest hash first."""
    if len(leaves) == 1:
        return []
    split = 1 << (len(leaves) - 1).bit_length() - 1
    if index < split:
        return [*path_to(index, leaves[:split]), root_of(leaves[split:])]
    return [*path_to(index - split, leaves[split:]), root_of(leaves[:split])]


def graph_case(what: str, document: Document) -> Any:
    """One document with everything that follows from it."""
    header = {name: document[name] for name in HEADER}
    records = [canonical(each) for each in (header, *document["nodes"])]
    leaves = [sha256(b"\x00" + record).digest() for record in records]
    root = root_of(leaves)
    return {
        "what": what,
        "document": canonical(document).decode(),
        "leaves": [leaf.hex() for leaf in leaves],
        "proofs": [
            {
                "index": index,
                "proof": [each.hex() for each in path_to(index, leaves)],
                "record": json.loads(records[index]),
                "root": root.hex(),
                "size": len(leaves),
            }
            for index in range(1, len(leaves))
        ],
        "root": named("graph", canonical({"root": root.hex(), "size": len(leaves)})),
    }


def softmax(number: int, operand: str, dim: int = 1) -> Document:
    """A node over two rows of three."""
    return {
        "attributes": {"dim": dim, "half_to_float": False},
        "number": number,
        "operands": {"self": operand},
        "operator": "aten._softmax.default",
        "results": [["F32", 2, 3]],
    }


def added(number: int, first: str, second: str, alpha: Any) -> Document:
    """A sum of two rows of three."""
    return {
        "attributes": {"alpha": alpha},
        "number": number,
        "operands": {"other": second, "self": first},
        "operator": "aten.add.Tensor",
        "results": [["F32", 2, 3]],
    }


def example() -> Document:
    """The example of the page."""
    return {
        "constants": [],
        "dialect": "aten",
        "form": "logical",
        "graph": 1,
        "inputs": [{"name": "inputs.x", "role": "input", "spec": ["F32", 2, 3]}],
        "nodes": [softmax(0, "inputs.x"), added(1, "n0", "inputs.x", "0.5")],
        "outputs": [{"name": "outputs.y", "value": "n1"}],
    }


def documents() -> dict[str, Document]:
    """Graphs to accept."""
    empty = example() | {"nodes": [], "outputs": []}
    cut = example() | {
        "form": "verification",
        "inputs": [{"name": "n3", "role": "cut", "spec": ["F32", 2, 3]}],
        "nodes": [softmax(7, "n3")],
        "outputs": [{"name": "n7", "value": "n7"}],
    }
    scalars = [1, -2, "0.1", "1e-05", "-0.0", "inf", "nan", "1e+22"]
    sums = [added(i, f"n{i - 1}" if i else "inputs.x", "inputs.x", alpha) for i, alpha in enumerate(scalars)]
    held = {
        "digest": "sha256:c688207c409689ac94ad6727f4f8fae168140e444331d17810bc307abce3e81a",
        "name": "c0",
        "spec": ["F32", 2],
    }
    return {
        "the example": example(),
        "no nodes": empty,
        "a slice": cut,
        "numbers with gaps": example() | {"nodes": [softmax(5, "inputs.x"), softmax(90, "n5")], "outputs": []},
        "every kind of scalar": example() | {"nodes": sums, "outputs": []},
        "a constant": example() | {"constants": [held]},
    }


def node(place: int, *path: Any, to: Any) -> Callable[[Document], None]:
    """Set one field of a node."""
    return field("nodes", place, *path, to=to)


def field(*path: Any, to: Any) -> Callable[[Document], None]:
    """Set one field of the document."""

    def change(document: Document) -> None:
        found: Any = document
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = to

    return change


REFUSED: dict[str, Callable[[Document], None]] = {
    "an operator that is not allowed": node(0, "operator", to="aten.bernoulli.default"),
    "a custom call": node(0, "operator", to="stablehlo.custom_call"),
    "another format": field("graph", to=2),
    "an unknown field": field("name", to="my model"),
    "a distributed graph": field("form", to="distributed"),
    "a cycle": node(0, "operands", "self", to="n1"),
    "a node that reads itself": node(1, "operands", "self", to="n1"),
    "a dangling reference": node(1, "operands", "self", to="n0.1"),
    "a second spelling of a reference": node(1, "operands", "self", to="n0.0"),
    "an operand that is a graph": node(1, "operands", "self", to={"nodes": []}),
    "a missing attribute": node(0, "attributes", to={"dim": 1}),
    "a bool where an int is needed": node(0, "attributes", "dim", to=True),
    "a float that is not the shortest": node(1, "attributes", "alpha", to="0.50"),
    "an axis outside the shape": node(0, "attributes", "dim", to=2),
    "another shape": node(0, "results", to=[["F32", 3, 2]]),
    "another dtype": node(0, "results", to=[["F64", 2, 3]]),
    "a negative side": node(0, "results", to=[["F32", -2, -3]]),
    "a shape bomb": field("inputs", 0, "spec", to=["F32", 2**52, 2**52]),
    "a result too many": node(0, "results", to=[["F32", 2, 3], ["F32", 2, 3]]),
    "numbers that do not rise": node(1, "number", to=0),
    "an input named like a node": field("inputs", 0, "name", to="n7"),
    "a cut value of a node that is there": field("inputs", 0, to={"name": "n1", "role": "cut", "spec": ["F32", 2, 3]}),
    "two outputs of one name": field("outputs", to=[{"name": "y", "value": "n1"}, {"name": "y", "value": "n0"}]),
    "an output that nothing gives": field("outputs", 0, "value", to="n2"),
}


def refused_case(what: str) -> Any:
    """The example with one thing changed."""
    document = copy.deepcopy(example())
    REFUSED[what](document)
    return {"what": what, "document": canonical(document).decode()}


if __name__ == "__main__":
    main()
