"""The root of a graph, and the proof of one operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, Hash, digest, leaf_hash, tree_root
from tallystick.core.errors import MalformedError, ProofError, UsageError
from tallystick.programs.encoding import NodeProof, check_node, graph_root, header_json, node_json, prove_node
from tallystick.programs.graph import Graph, Output


def test_the_root_is_that_of_the_header_and_the_node_records(small: Any) -> None:
    graph = small.graph()
    leaves = [leaf_hash(encode(header_json(graph))), *(leaf_hash(encode(node_json(node))) for node in graph.nodes)]
    assert graph_root(graph) == digest("graph", encode({"root": tree_root(leaves).hex(), "size": 12}))


def test_every_node_is_proved(small: Any) -> None:
    graph = small.graph()
    root = graph_root(graph)
    for node in graph.nodes:
        proof = NodeProof.from_json(prove_node(graph, node.number).to_json())
        assert proof == prove_node(graph, node.number)
        assert check_node(proof, root, small.find) == node


def test_a_node_that_is_not_there_is_not_proved(small: Any) -> None:
    with pytest.raises(UsageError, match="no node 2"):
        prove_node(small.graph(), 2)


def changed(graph: Graph) -> list[Graph]:
    first = graph.nodes[0]
    return [
        replace(graph, dialect="stablehlo"),
        replace(graph, inputs=graph.inputs[::-1]),
        replace(graph, constants=()),
        replace(graph, outputs=(*graph.outputs, Output("again", "n3"))),
        replace(graph, nodes=graph.nodes[:-1]),
        replace(graph, nodes=(replace(first, operands={"self": "inputs.x", "mat2": "n3"}), *graph.nodes[1:])),
        replace(graph, nodes=(*graph.nodes[:-1], replace(graph.nodes[-1], number=99))),
    ]


def test_whatever_is_changed_changes_the_root(small: Any) -> None:
    graphs = [small.graph(), *changed(small.graph())]
    assert len({graph_root(graph) for graph in graphs}) == len(graphs)


def test_a_spoiled_proof_is_refused(small: Any) -> None:
    graph = small.graph()
    root, proof = graph_root(graph), prove_node(graph, 4)
    spoiled = [
        replace(proof, index=proof.index + 1),
        replace(proof, index=0),
        replace(proof, index=-1),
        replace(proof, size=proof.size - 1),
        replace(proof, size=proof.size + 1),
        replace(proof, root=Hash(bytes(32))),
        replace(proof, path=proof.path[:-1]),
        replace(proof, path=(*proof.path, proof.root)),
        replace(proof, path=(Hash(bytes(32)), *proof.path[1:])),
        replace(proof, record=prove_node(graph, 5).record),
    ]
    for each in spoiled:
        with pytest.raises(ProofError):
            check_node(each, root, small.find)
    with pytest.raises(ProofError, match="another graph"):
        check_node(proof, Digest("sha256:" + "0" * 64), small.find)


def test_the_header_is_no_node(small: Any) -> None:
    graph = small.graph()
    proof = prove_node(graph, 0)
    forged = replace(proof, record=encode(header_json(graph)), index=0)
    with pytest.raises(ProofError, match="header"):
        check_node(forged, graph_root(graph), small.find)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_proof_of_other_fields_is_refused(small: Any, data: st.DataObject) -> None:
    graph = small.graph()
    document: Any = prove_node(graph, 4).to_json()
    field = data.draw(st.sampled_from(sorted(document)))
    document[field] = data.draw(st.sampled_from([None, 1, -1, "", "00" * 32, [], {}, ["00" * 32] * 70, [3], True]))
    with pytest.raises((MalformedError, ProofError)):
        check_node(NodeProof.from_json(document), graph_root(graph), small.find)
