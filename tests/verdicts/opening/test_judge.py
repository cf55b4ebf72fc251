"""Operators of one step, opened under its record and judged one by one; and what each check of an opening refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest
from tallystick.core.errors import TallyError, UnavailableError, UsageError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.formats.openings import Opening
from tallystick.formats.store.log import LogWriter
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.files import load_program
from tallystick.programs.graph import Graph, Node
from tallystick.verdicts.opening.judge import OpeningRequest, judge_opening, judge_operator
from tallystick.verdicts.operator.judge import OperatorJudge
from tallystick.verdicts.verdict import Findings
from tests.support.opened_values import read_values, write_values

STILL = {
    "model": {
        "config": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "max_position_embeddings": 32,
            "tie_word_embeddings": True,
        }
    },
    "training": {"steps": 4, "batch": 2, "sequence": 8, "seed": 11},
    "record": {"anchor_stride": 2, "summaries": ["exact"]},
}


@pytest.fixture(scope="session")
def run(
    recipe_of: Callable[..., Any], source: Path, one_thread: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run with a step graph. Never write into it."""
    from tallystick.recording.training import Config, train

    said: list[str] = []
    out = tmp_path_factory.mktemp("graph") / "run"
    train(Config(recipe_of(STILL), source), out, capture_with=said.append)
    assert said == []
    return out


def opened_step(run: Path, out: Path, node: int | None = None) -> Path:
    from tallystick.tally.training import open_operators

    open_operators(run, 2, out, node=node)
    return out


@pytest.fixture(scope="session")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All operators of step 2. Never write into it."""
    return opened_step(run, tmp_path_factory.mktemp("opening") / "step")


@pytest.fixture
def opening(whole: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(whole, tmp_path / "opening"))


def judged(folder: Path, **asked: Any) -> tuple[str, list[str]]:
    verdict = judge_opening(folder, OpeningRequest(**asked))
    return verdict.outcome, sorted({finding.name for finding in verdict.objections})


def graph_of(folder: Path) -> Graph:
    return load_program(folder / "graph.json")[0]


def matmul(graph: Graph) -> Node:
    return next(node for node in graph.nodes if node.operator in {"aten.mm.default", "aten.linear.default"})


def write_opening(folder: Path, **changes: Any) -> None:
    held = json.loads((folder / "opening.json").read_bytes())
    (folder / "opening.json").write_bytes(encode(held | changes))


def forge_value(folder: Path, ref: str, change: Callable[[np.ndarray[Any, Any]], None], follow: bool = True) -> str:
    """Replace one value by another, and every record that names it, under a new root: a forger who recommits."""
    lines = [json.loads(line) for line in (folder / "operators.jsonl").read_bytes().splitlines()]
    old = next(line["outputs"][ref] for line in lines if ref in line["outputs"])
    values = read_values(folder)
    value = values[old]
    array = np.array(value.array(), copy=True)
    change(array)
    forged = Tensor.of(array, value.dtype)
    name = tensor_digest(forged)
    write_values(folder, values | {name: forged})
    for line in lines:
        for part in ("inputs", "outputs") if follow else ("outputs",):
            if ref in line[part]:
                line[part][ref] = str(name)
    (folder / "operators.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    shutil.rmtree(folder / "tiles", ignore_errors=True)
    held = json.loads((folder / "opening.json").read_bytes())
    results = {n: str(name) if found == old else found for n, found in held["results"].items()}
    write_opening(folder, operators=LogWriter(folder / "operators.jsonl").close().to_json(), results=results)
    return str(name)


def test_every_operator_of_an_honest_step_is_accepted(whole: Path) -> None:
    verdict = judge_opening(whole, OpeningRequest())
    assert verdict.outcome == "accepted"
    results = sum(len([ref for ref in node.outputs if ref]) for node in graph_of(whole).nodes)
    assert sum(finding.name == "operator" for finding in verdict.findings) == results


def test_an_opening_hangs_below_the_record_of_its_step(run: Path, whole: Path) -> None:
    opening = Opening.from_bytes((whole / "opening.json").read_bytes(), "opening.json")
    assert opening.claim == RunDirectory(run).claim().identity
    record = opening.opened_record()
    assert (record.kind, record.index) == ("step", 2)
    assert judged(whole, claim=opening.claim) == ("accepted", [])
    assert judged(whole, claim="sha256:" + "0" * 64) == ("rejected", ["claim"])


def test_a_result_beyond_its_bound_is_rejected_although_the_forger_recommits(opening: Path) -> None:
    node = matmul(graph_of(opening))

    def push(array: np.ndarray[Any, Any]) -> None:
        array.flat[0] += np.float32(0.01)

    forge_value(opening, f"n{node.number}", push)
    verdict = judge_opening(opening, OpeningRequest())
    assert verdict.outcome == "rejected"
    assert any(f"n{node.number} ({node.operator})" in finding.where for finding in verdict.objections)


def test_a_moved_value_has_to_be_exact(opening: Path) -> None:
    graph = graph_of(opening)
    node = next(n for n in graph.nodes if n.operator == "aten.t.default" or n.operator == "aten.transpose.int")

    def push(array: np.ndarray[Any, Any]) -> None:
        array.flat[0] = np.nextafter(array.flat[0], np.float32(np.inf))

    forge_value(opening, f"n{node.number}", push)
    assert judged(opening, nodes=frozenset({node.number})) == ("rejected", ["operator"])


def test_a_reader_that_is_given_another_value_is_rejected(opening: Path) -> None:
    graph = graph_of(opening)
    read = {ref for node in graph.nodes for ref in node.refs}
    node = next(n for n in graph.nodes if f"n{n.number}" in read and n.results[0] is not None and n.results[0].is_float)
    forge_value(opening, f"n{node.number}", lambda array: array.fill(0), follow=False)
    assert judged(opening) == ("rejected", ["operators"])


def test_a_value_that_is_not_opened_leaves_its_operator_unjudged(opening: Path) -> None:
    line = json.loads((opening / "operators.jsonl").read_bytes().splitlines()[-1])
    values = read_values(opening)
    del values[next(iter(line["outputs"].values()))]
    write_values(opening, values)
    verdict = judge_opening(opening, OpeningRequest())
    assert verdict.outcome == "inconclusive"
    assert any("is not opened" in reason for reason in verdict.unavailable)


def test_other_bytes_under_the_name_of_a_value_are_rejected(opening: Path) -> None:
    data = bytearray((opening / "values.safetensors").read_bytes())
    data[-1] ^= 1
    (opening / "values.safetensors").write_bytes(data)
    assert judged(opening) == ("rejected", ["value"])


def test_a_record_that_is_missing_or_changed_does_not_have_the_root(opening: Path) -> None:
    lines = (opening / "operators.jsonl").read_bytes().splitlines(keepends=True)
    (opening / "operators.jsonl").write_bytes(b"".join(lines[:-1]))
    assert judged(opening)[1] == ["operators", "operators root"]


def test_another_graph_is_rejected(opening: Path) -> None:
    write_opening(opening, graph="sha256:" + "1" * 64)
    assert judged(opening)[1] == ["graph"]


def test_the_operators_of_another_state_or_batch_are_rejected(opening: Path) -> None:
    held = json.loads((opening / "opening.json").read_bytes())
    other = "sha256:" + "2" * 64
    weight = next(name for name in held["sources"] if name.startswith("weights."))
    write_opening(opening, sources=held["sources"] | {weight: other})
    assert "opened record" in judged(opening)[1]
    write_opening(opening, sources=held["sources"], results=held["results"] | {weight: other})
    assert "opened record" in judged(opening)[1]


def test_a_record_outside_the_transcript_is_rejected(opening: Path) -> None:
    write_opening(opening, index=0)
    assert judged(opening)[1] == ["opened record"]


def test_one_operator_alone_is_opened_with_both_proofs_and_judged(run: Path, whole: Path, tmp_path: Path) -> None:
    number = matmul(graph_of(whole)).number
    alone = opened_step(run, tmp_path / "one", number)
    assert not (alone / "graph.json").exists()
    assert len(read_values(alone)) <= 4
    assert judged(alone) == ("accepted", [])
    assert (alone / "opening.json").read_bytes() == (whole / "opening.json").read_bytes()
    with pytest.raises(UsageError, match=f"node {number + 1} is not opened here"):
        judged(alone, nodes=frozenset({number + 1}))


@pytest.mark.parametrize("part", ["index", "proof", "record", "node"])
def test_one_operator_with_a_wrong_proof_is_refused(run: Path, whole: Path, tmp_path: Path, part: str) -> None:
    alone = opened_step(run, tmp_path / "one", matmul(graph_of(whole)).number)
    held = json.loads((alone / "operator.json").read_bytes())
    if part == "index":
        held["index"] += 1
    elif part == "proof":
        held["proof"] = held["proof"][:-1]
    elif part == "record":
        held["record"]["outputs"] = dict.fromkeys(held["record"]["outputs"], "sha256:" + "3" * 64)
    else:
        held["node"]["record"]["number"] += 1
    (alone / "operator.json").write_bytes(encode(held))
    assert judged(alone) == ("rejected", ["operator"])


def test_properties_are_judged_beside_the_operators(whole: Path) -> None:
    from tallystick.verdicts.properties import PROPERTIES

    verdict = judge_opening(
        whole, OpeningRequest(properties=("shapes", "finite", "positions", "conservation", "ranges"))
    )
    assert verdict.outcome == "accepted"
    assert {finding.name for finding in verdict.findings} >= {"shapes", "finite", "positions", "conservation"}
    assert "softmax" in PROPERTIES


@pytest.mark.parametrize(
    ("order", "agrees"),
    [
        ([1, 3, 0, 2], True),
        ([3, 1, 2, 0], True),  # equal numbers in another order: sorting is not stable
        ([1, 1, 0, 2], False),  # an index twice
        ([1, 0, 3, 2], False),  # not the numbers that stand beside them
    ],
)
def test_equal_numbers_may_be_sorted_in_any_order(order: list[int], agrees: bool) -> None:
    spec, dim = TensorSpec("I64", (4,)), {"dim": -1, "descending": False}
    node = Node(0, "aten.sort.default", {"self": "inputs.x"}, dim, (spec, spec))
    lists = {"inputs.x": [5, 2, 5, 2], "n0": [2, 2, 5, 5], "n0.1": order}
    values, notes = {ref: Tensor.of(np.array(each)) for ref, each in lists.items()}, Findings()
    assert judge_operator(notes, OperatorJudge(Digest(b"")), node, values) == ""
    assert all(finding.agrees for finding in notes.seen) == agrees


def test_a_profile_that_knows_an_operator_is_asked_too(whole: Path) -> None:
    from tallystick.verdicts.profiles import Calibrated, Profile

    node, graph = matmul(graph_of(whole)), graph_of(whole)

    def profile(share: float) -> Profile:
        shares = (share,) * 4
        entry = Calibrated(share=shares, absolute=shares, relative=shares, ulp=shares, bias=share, elements=9)
        known = {f"{node.operator} F32": entry}
        return Profile(stacks=("a",), machines=("m",), inputs=1, safety=3.0, operators=known)

    chosen = frozenset({node.number})
    assert judged(whole, nodes=chosen, profile=profile(1.0)) == ("accepted", [])
    assert judged(whole, nodes=chosen, profile=profile(1e-9)) == ("rejected", ["operator threshold"])
    unknown = next(n for n in graph.nodes if n.operator == "aten.div.Tensor")
    verdict = judge_opening(whole, OpeningRequest(nodes=frozenset({unknown.number}), profile=profile(1.0)))
    assert verdict.outcome == "inconclusive"


def test_files_that_are_missing_or_no_opening_are_named(opening: Path, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"opening\.json: not there"):
        judged(tmp_path)


@pytest.mark.parametrize(
    ("file", "data", "outcome", "check"),
    [
        ("opening.json", b"{", "inconclusive", "opening.json: "),
        ("operators.jsonl", b'{"kind":"operator"}\n', "rejected", "operators root"),
        ("operators.jsonl", None, "inconclusive", "operator: operator.json"),
        ("graph.json", b"{", "rejected", "graph"),
        ("graph.json", None, "inconclusive", "graph: graph.json"),
        ("values.safetensors", b"no tensor", "inconclusive", "values.safetensors: "),
    ],
)
def test_a_damaged_opening_has_a_verdict(
    opening: Path, file: str, data: bytes | None, outcome: str, check: str
) -> None:
    found = opening / file
    found.unlink() if data is None else found.write_bytes(data)
    verdict = judge_opening(opening, OpeningRequest())
    assert verdict.outcome == outcome
    if outcome == "rejected":
        assert check in {each.name for each in verdict.objections}
    else:
        assert verdict.unavailable[0].startswith(check)


def test_an_opening_goes_into_an_empty_directory_and_names_a_step_and_a_node_that_exist(
    run: Path, opening: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="not empty"):
        opened_step(run, opening)
    with pytest.raises(UsageError, match="the graph has no node 99999"):
        opened_step(run, tmp_path / "x", 99999)


def test_the_graph_of_a_run_is_replayed_and_has_to_be_that_of_its_recipe(
    run: Path, tmp_path: Path, recipe_of: Callable[..., Any], source: Path
) -> None:
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training
    from tallystick.verdicts.replayer import VerifierStack
    from tests.support.this_machine import verifier_stack

    policy = Policy(full=True)
    directory = RunDirectory(run)
    stack = verifier_stack(directory, None, policy)
    report = audit_training(directory, policy, bytes(32), stack)
    assert (report.verdict.outcome, report.replayed) == ("accepted", f"graph {directory.spec().graph}")
    other = VerifierStack(stack.environment, stack.replayer, stack.graph_replayer, lambda spec: "sha256:" + "4" * 64)
    found = audit_training(directory, policy, bytes(32), other)
    assert {finding.name for finding in found.verdict.objections} == {"step graph of the recipe"}
    blind = VerifierStack(stack.environment, stack.replayer, stack.graph_replayer)
    assert audit_training(directory, policy, bytes(32), blind).verdict.outcome == "inconclusive"
    by_recipe = audit_training(directory, Policy(full=True, replay="recipe"), bytes(32), blind)
    assert (by_recipe.verdict.outcome, by_recipe.replayed) == ("accepted", "the recipe")
    assert any(line.startswith("what the step graph computes") for line in by_recipe.verdict.not_checked)


def test_where_the_recipe_is_replayed_another_graph_file_is_seen_all_the_same(run: Path, tmp_path: Path) -> None:
    from tallystick.audits.policy import Policy
    from tallystick.tally.auditing import audit

    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    asked = Policy(full=True, replay="recipe")
    assert audit(copy, asked).outcome == "accepted"
    file = copy / "graphs" / "step.json"
    file.write_bytes(file.read_bytes().replace(b'"form":"', b'"form":"x', 1))
    assert {finding.name for finding in audit(copy, asked).objections} == {"step graph"}
    file.write_bytes(file.read_bytes()[:40])
    assert {finding.name for finding in audit(copy, asked).objections} == {"step graph"}


def test_a_recipe_with_dropout_says_why_it_has_no_graph(
    recipe_of: Callable[..., Any], source: Path, one_thread: None, tmp_path: Path
) -> None:
    from tallystick.recording.training import Config, train

    said: list[str] = []
    dropout = {"model": {"config": STILL["model"]["config"] | {"attention_dropout": 0.1}}}  # type: ignore[index,dict-item]
    train(Config(recipe_of(STILL, dropout), source), tmp_path / "run", capture_with=said.append)
    (line,) = said
    assert line.startswith("the run has no step graph, and is replayed from its recipe: ")
    assert RunDirectory(tmp_path / "run").spec().graph is None


def test_a_step_graph_that_no_verifier_would_run_is_refused(run: Path, tmp_path: Path, answered: Any) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    path = copy / "graphs" / "step.json"
    path.write_bytes(path.read_bytes().replace(b"aten.addcdiv.default", b"aten.system.default"))
    assert answered(copy) == "rejected"
    path.unlink()
    assert answered(copy) == "inconclusive"


def test_refusals_are_errors_of_the_project(whole: Path) -> None:
    with pytest.raises(TallyError, match="no such property"):
        judged(whole, properties=("honesty",))
