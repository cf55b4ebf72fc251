"""The published documents are read as they say, and made again they are the same."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import tree_root
from tallystick.core.errors import MalformedError
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import NodeProof, check_node, graph_bytes, graph_leaves, graph_root, prove_node

ROOT = Path(__file__).parents[2]
GRAPHS: list[Any] = json.loads((ROOT / "vectors/graph/graphs.json").read_text())
REFUSED: list[Any] = json.loads((ROOT / "vectors/graph/refused.json").read_text())
PAGE = (ROOT / "spec" / "graph.md").read_text()


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("graph_vectors", ROOT / "scripts" / "make_graph_vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_made_again_they_are_the_same() -> None:
    assert json.loads(json.dumps(script().vectors())) == {"graphs": GRAPHS, "refused": REFUSED}


@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: case["what"])
def test_a_document_has_its_root_and_its_proofs(case: Any) -> None:
    graph = read_graph(case["document"].encode())
    assert graph_bytes(graph).decode() == case["document"]
    assert graph_root(graph) == case["root"]
    assert [leaf.hex() for leaf in graph_leaves(graph)] == case["leaves"]
    for node, proof in zip(graph.nodes, case["proofs"], strict=True):
        assert prove_node(graph, node.number).to_json() == proof
        assert graph_bytes(graph) == case["document"].encode()
        assert repr(check_node(NodeProof.from_json(proof), graph_root(graph))) == repr(node)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["what"])
def test_a_document_to_refuse_is_refused(case: Any) -> None:
    with pytest.raises(MalformedError):
        read_graph(case["document"].encode())


def test_the_example_of_the_page_is_the_first_document() -> None:
    case = GRAPHS[0]
    block = PAGE.split("```")[1]
    document = json.loads(block[block.index("{") : block.index("\n\n")])
    assert encode(document).decode() == case["document"]
    assert case["root"] in PAGE
    for leaf in case["leaves"]:
        assert f"{leaf[:16]}…" in PAGE
    assert tree_root(graph_leaves(read_graph(case["document"].encode()))).hex() in PAGE


def test_every_vector_folder_that_the_page_names_exists() -> None:
    named = re.findall(r"`(vectors/[^`]+)`", PAGE)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
