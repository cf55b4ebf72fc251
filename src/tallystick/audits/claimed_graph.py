"""Reads a graph that a claim names by its root, with its constants."""

from __future__ import annotations

from pathlib import Path

from tallystick.audits.claimed import check_graph_file, other_graph
from tallystick.commitments.digests import Digest
from tallystick.errors import MalformedError
from tallystick.graphs.files import load_constants, load_graph
from tallystick.graphs.graph import Graph
from tallystick.graphs.root import graph_root
from tallystick.judging.findings import bound_by_digest, require
from tallystick.tensors.tensor import Tensor


def read_claimed_graph(path: Path, root: Digest | None, named_by: str) -> tuple[Graph, dict[str, Tensor]]:
    """The graph `root` and its constants.

    Raises `ProofError` where the files hold another one, `MalformedError` where they hold that one and no verifier
    would run it, `UnavailableError` where a file is missing.
    """
    try:
        graph = load_graph(path)
    except MalformedError:
        check_graph_file(path, root, named_by)
        raise
    require(graph_root(graph) == root, other_graph(path, named_by))
    with bound_by_digest():
        return graph, load_constants(path, graph)
