"""Graphs in files of their own, and how two of them are forms of one computation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.graphs import link_forms
from tallystick.database.query import DatabaseQueries
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.programs.encoding import graph_root
from tallystick.programs.files import load_graph, save_program
from tallystick.programs.slicing import subgraph

EXAMPLE = json.loads(Path("vectors/graph/graphs.json").read_text())[0]["document"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The example of the page on graphs, in a file."""
    path = tmp_path / "program.json"
    path.write_text(EXAMPLE)
    return path


@pytest.fixture
def part(program: Path, tmp_path: Path) -> Path:
    """A slice of the program: its first node."""
    graph = load_graph(program)
    return save_program(tmp_path / "part", subgraph(graph, {graph.nodes[0].number}), {})


def test_a_graph_and_its_operators_are_read_once(empty: WorkloadDatabase, program: Path) -> None:
    graph = load_graph(program)
    assert add_place(empty, program) == add_place(empty, program) == graph_root(graph)
    found = DatabaseQueries(empty)
    assert (found.graphs.one().nodes, found.graphs.one().form) == (len(graph.nodes), str(graph.form))
    assert [(row.number, row.operator) for row in found.operators] == [
        (node.number, node.operator) for node in graph.nodes
    ]
    assert found.operators.first(1).one().results == "F32 2x3"


def test_forms_of_one_computation_are_linked(empty: WorkloadDatabase, program: Path, part: Path) -> None:
    whole, cut = add_place(empty, program), add_place(empty, part)
    link_forms(empty, cut.removeprefix("sha256:")[:12], "slice of", whole)
    link_forms(empty, cut, "slice of", whole)
    found = DatabaseQueries(empty)
    assert [(row.graph, row.relation, row.other) for row in found.about("graph_links")] == [(cut, "slice of", whole)]
    assert [row.root for row in found.graphs.where(root=cut).about("graph_links").about("graphs")] != []


def test_what_cannot_be_linked_is_refused(empty: WorkloadDatabase, part: Path) -> None:
    cut = add_place(empty, part)
    with pytest.raises(UsageError, match="slice of"):
        link_forms(empty, cut, "slices of", cut)
    for missing in ("sha256:00", "%"):
        with pytest.raises(UnavailableError, match="no graph in the database begins so"):
            link_forms(empty, cut, "slice of", missing)
    assert DatabaseQueries(empty).about("graph_links").count() == 0


def test_digits_of_several_graphs_are_refused(empty: WorkloadDatabase, program: Path, part: Path) -> None:
    cut, _ = add_place(empty, part), add_place(empty, program)
    with pytest.raises(UnavailableError, match="several graphs"):
        link_forms(empty, cut, "slice of", "sha256:")


def test_a_file_that_is_no_graph_is_refused(empty: WorkloadDatabase, tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text('{"constants":[]}')
    with pytest.raises(MalformedError):
        add_place(empty, file)
    assert DatabaseQueries(empty).graphs.count() == 0
