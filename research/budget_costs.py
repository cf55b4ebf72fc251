"""What a proof of an accumulated error takes, and what a referee pays who checks it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from research.budget_page import Figures
from tallystick.audits.opening import OpeningSource, open_operators
from tallystick.core.digests import digest, digest_from, leaf_hash, tree_root
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.claims import Log
from tallystick.formats.records import CallRecord
from tallystick.formats.store.log import OpenedLine
from tallystick.programs.admission import read_graph
from tallystick.programs.graph import Graph
from tallystick.tally.calibration.operator_runs import all_values, base_engine
from tallystick.verdicts.leaf.bundling import WholeOpening
from tallystick.verdicts.leaf.judge import rule_leaf
from tallystick.verdicts.leaf.request import LeafLimits, LeafRequest

SIDE, NODES = 2048, 3000
started = time.perf_counter()


def tell(what: str) -> None:
    """Progress, on stderr."""
    print(f"{time.perf_counter() - started:6.0f} s  {what}", file=sys.stderr, flush=True)


def proof_sizes(folder: Path) -> Figures:
    """Bytes of proof of the operators of a graph of 3,000, by how many producers they read."""
    whole = open_chain(folder / "chain", chain(NODES))
    sizes: dict[int, list[Any]] = {}
    for number in range(NODES // 3, 2 * NODES // 3, 7):
        bundle = whole.bundle(number)
        sizes.setdefault(len(bundle.edges.producers), []).append(bundle.sizes)
    rows = [
        {
            "producers": count,
            "hashes": max(size["proof_hash_bytes"] for size in found),
            "documents": max(size["proof_bytes"] for size in found),
        }
        for count, found in sorted(sizes.items())
    ]
    tell("proofs")
    return {"operators": NODES, "rows": rows, "statement": found_statement(whole)}


def found_statement(whole: WholeOpening) -> int:
    """Bytes of opening and header, which all leaves share."""
    return whole.bundle(0).sizes["statement_bytes"]


def referee_cost(folder: Path) -> Figures:
    """Seconds of a ruling on one product of matrices: all of its elements, or some and 20 vectors."""
    whole = open_chain(folder / "product", product(SIDE))
    bundle = whole.bundle(0)
    found: Figures = {"side": SIDE}
    for name, question in (
        ("whole", LeafRequest(limits=LeafLimits(whole_flops=1 << 40, whole_bytes=1 << 40))),
        ("sampled", LeafRequest(nonce=b"drawn later")),
    ):
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            ruling = rule_leaf(bundle, question)
            times.append(time.perf_counter() - begin)
        found |= {name: min(times), f"{name}_judged": ruling.work.judged}
    left, right = (bundle.values[name].values().astype(np.float64) for name in ("inputs.x", "weights.w"))
    begin = time.perf_counter()
    assert (left @ right).shape == (SIDE, SIDE)
    found["product"] = time.perf_counter() - begin
    tell("referee")
    return found


def chain(length: int) -> tuple[Graph, dict[str, Tensor]]:
    """Operators that read no, one, two or three results of others."""
    nodes: list[dict[str, Any]] = []
    for number in range(length):
        back = [f"n{max(number - step, 0)}" for step in (1, 2, 700)]
        name, operands, attributes = (
            ("add.Tensor", {"self": back[0], "other": back[1]}, {"alpha": 1}),
            ("mm.default", {"self": back[0], "mat2": "weights.w"}, {}),
            ("addcmul.default", {"self": back[0], "tensor1": back[1], "tensor2": back[2]}, {"value": 1}),
            ("mm.default", {"self": "inputs.x", "mat2": "weights.w"}, {}),
        )[3 if number < 3 else number % 4]
        nodes.append(node_json(number, name, operands, attributes, 4))
    return program(nodes, 4, f"n{length - 1}")


def product(side: int) -> tuple[Graph, dict[str, Tensor]]:
    """One product of square matrices."""
    return program([node_json(0, "mm.default", {"self": "inputs.x", "mat2": "weights.w"}, {}, side)], side, "n0")


def node_json(number: int, name: str, operands: Figures, attributes: Figures, side: int) -> Figures:
    """A node record over square matrices."""
    spec = [["F32", side, side]]
    node = {"attributes": attributes, "number": number, "operands": operands, "operator": f"aten.{name}"}
    return node | {"results": spec}


def program(nodes: list[Figures], side: int, result: str) -> tuple[Graph, dict[str, Tensor]]:
    """A graph over an input and weights, and numbers for both."""
    spec = ["F32", side, side]
    document = {
        "constants": [],
        "dialect": "aten",
        "form": "logical",
        "graph": 1,
        "inputs": [
            {"name": "inputs.x", "role": "input", "spec": spec},
            {"name": "weights.w", "role": "weight", "spec": spec},
        ],
        "nodes": nodes,
        "outputs": [{"name": "outputs.y", "value": result}],
    }
    rng = np.random.default_rng(0)
    numbers = {name: rng.normal(size=(side, side)) / (8 * side**0.5) for name in ("inputs.x", "weights.w")}
    graph = read_graph(json.dumps(document, separators=(",", ":"), sort_keys=True).encode())
    return graph, {name: Tensor.of(value.astype(np.float32)) for name, value in numbers.items()}


def open_chain(folder: Path, made: tuple[Graph, dict[str, Tensor]]) -> WholeOpening:
    """Open all operators of one call of a graph."""
    graph, bindings = made
    values = all_values(graph, bindings, base_engine())
    results = {output.name: values[output.value] for output in graph.outputs}
    inputs = {"x": bindings["inputs.x"]}
    line = CallRecord(index=1, inputs=state_digest(inputs), outputs=state_digest(results)).to_bytes()
    log = Log(root=digest_from(tree_root([leaf_hash(line)])), size=1)
    subject = OpeningSource(digest("claim", b"{}"), log, OpenedLine(0, line, ()), graph, bindings)
    open_operators(subject, folder, base_engine())
    return WholeOpening.read(folder)
