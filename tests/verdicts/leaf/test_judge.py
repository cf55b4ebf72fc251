"""The ruling at the leaf, each both ways: who is at fault over one opened operator."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_from, leaf_hash, tree_root
from tallystick.core.errors import ProofError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.formats.claims import Log
from tallystick.formats.records import OperatorRecord
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.programs.operators.balls.bound import bound
from tallystick.programs.operators.definition import Exactness, operator
from tallystick.programs.operators.precision import TENSOR_FLOAT
from tallystick.verdicts.bounds import errors_of
from tallystick.verdicts.leaf.bundle import GraphHeader, LeafBundle, OperandEdges, read_bundle, write_bundle
from tallystick.verdicts.leaf.judge import conclude, rule_leaf
from tallystick.verdicts.leaf.request import BANDS, Ground, LeafLimits, LeafRequest, Ruling
from tallystick.verdicts.opening.judge import judge_operator
from tallystick.verdicts.opening.published import Published
from tallystick.verdicts.operator.judge import OperatorJudge
from tallystick.verdicts.profiles import Calibrated, Profile
from tallystick.verdicts.verdict import Fault, Findings
from tests.programs.operators.examples import collected, mapped
from tests.verdicts.leaf.leaves import Change, Leaves, alone, bindings, classifier, lookup, node, opened, shifted

NUMBERS = [each.number for each in classifier().nodes]
SEVERAL_ROUNDINGS = [
    each.number
    for each in classifier().nodes
    if operator(each.operator).exactness not in {Exactness.MOVES, Exactness.EXACT, Exactness.ROUNDS}
]
ROUNDING = [
    each.number
    for each in classifier().nodes
    if operator(each.operator).exactness not in {Exactness.MOVES, Exactness.EXACT}
]
SAMPLED = LeafRequest(nonce=b"drawn later", limits=LeafLimits(whole_flops=0, whole_bytes=0, elements=8))
Arrays = tuple[np.ndarray[Any, Any], ...]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Leaves:
    return opened(tmp_path_factory.mktemp("honest") / "opening")


@pytest.fixture
def forged(tmp_path: Path) -> Callable[[Mapping[int, Change]], Leaves]:
    """An opening whose prover changes results, computes on from them, and commits to all of it."""
    return lambda changes: opened(tmp_path / "forged", changes)


def outcome(bundle: LeafBundle, question: LeafRequest | None = None) -> tuple[Fault | None, Ground]:
    ruling = rule_leaf(bundle, question or LeafRequest())
    return ruling.fault, ruling.ground


# ---- what holds


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("question", [LeafRequest(), SAMPLED], ids=["whole", "sampled"])
def test_an_honest_operator_holds(honest: Leaves, number: int, question: LeafRequest) -> None:
    asked = replace(question, published=Published(honest.claim))
    assert outcome(honest.whole.bundle(number), asked) == (Fault.CHALLENGER, Ground.HOLDS)


def reversed_sum(results: Arrays, operands: Mapping[str, Any]) -> Arrays:
    """Products added up from the last to the first, in float32."""
    left, right, total = factors(operands)
    for column in reversed(range(left.shape[1] if left is not None else 0)):
        total = total + left[:, column : column + 1] * right[column]
    return jittered(results, operands) if left is None else (total.astype(np.float32),)


def in_float64(results: Arrays, operands: Mapping[str, Any]) -> Arrays:
    """Exact sums, rounded once."""
    left, right, added = factors(operands)
    if left is None:
        return jittered(results, operands)
    return ((left.astype(np.float64) @ right + added).astype(np.float32),)


def factors(operands: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Both factors of a product, and what is added to it."""
    if "mat2" not in operands:
        return None, None, None
    is_sum = "mat1" in operands
    left, added = (operands["mat1"], operands["self"]) if is_sum else (operands["self"], np.float32(0.0))
    return left, operands["mat2"], added


def jittered(results: Arrays, _: Mapping[str, Any]) -> Arrays:
    """Every second element one unit in the last place farther from 0."""
    moved = results[0].copy().reshape(-1)
    farther = np.nextafter(moved[::2], np.copysign(np.float32(np.inf), moved[::2]))
    moved[::2] = np.where(moved[::2] == 0, moved[::2], farther)
    return (moved.reshape(results[0].shape),)


@pytest.mark.parametrize("number", SEVERAL_ROUNDINGS)
@pytest.mark.parametrize("stack", [reversed_sum, in_float64, jittered], ids=lambda change: change.__name__)
def test_other_bits_within_the_bound_never_cost_the_prover(
    forged: Callable[..., Leaves], honest: Leaves, number: int, stack: Change
) -> None:
    leaves = forged({number: stack})
    changed = leaves.whole.record(leaves.whole.places[number]).outputs
    assert changed != honest.whole.record(honest.whole.places[number]).outputs or stack is not jittered
    for each in NUMBERS:
        for question in (LeafRequest(), SAMPLED):
            assert outcome(leaves.whole.bundle(each), question)[0] is Fault.CHALLENGER


# ---- what does not


def radius(leaves: Leaves, number: int) -> float:
    bundle = leaves.whole.bundle(number)
    where = next(each for each in leaves.whole.graph.nodes if each.number == number)
    arguments = {name: bundle.values[str(ref)] for name, ref in where.operands.items()} | dict(where.attributes)
    found = bound(operator(where.operator), arguments)[0]
    assert found is not None
    return float(found.radius.reshape(-1)[0])


@pytest.mark.parametrize("number", ROUNDING)
def test_an_element_beyond_its_bound_convicts(forged: Callable[..., Leaves], honest: Leaves, number: int) -> None:
    leaves = forged({number: shifted(3.0 * radius(honest, number))})
    assert outcome(leaves.whole.bundle(number)) == (Fault.PROVER, Ground.BOUND)
    others = [each for each in NUMBERS if each != number]
    assert {outcome(leaves.whole.bundle(each))[0] for each in others} == {Fault.CHALLENGER}


@pytest.mark.parametrize("number", ROUNDING)
def test_so_does_one_that_the_challenger_names(forged: Callable[..., Leaves], honest: Leaves, number: int) -> None:
    leaves = forged({number: shifted(3.0 * radius(honest, number))})
    few = replace(SAMPLED, limits=LeafLimits(whole_flops=0, whole_bytes=0, elements=1, vectors=1))
    named = replace(few, element=(f"n{number}", 0))
    assert outcome(leaves.whole.bundle(number), named) == (Fault.PROVER, Ground.BOUND)
    assert outcome(honest.whole.bundle(number), named) == (Fault.CHALLENGER, Ground.HOLDS)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_referee_judges_a_named_element_alone(honest: Leaves, number: int) -> None:
    bundle = honest.whole.bundle(number)
    for ref in bundle.operator.record.outputs:
        ruling = rule_leaf(bundle, LeafRequest(element=(ref, 0)))
        assert (ruling.fault, ruling.ground, ruling.work.judged) == (Fault.CHALLENGER, Ground.HOLDS, 1)
        assert "judged alone" in ruling.reason or ruling.work.elements == 1


@pytest.mark.parametrize("number", ROUNDING)
def test_only_the_named_element_convicts(forged: Callable[..., Leaves], honest: Leaves, number: int) -> None:
    leaves = forged({number: shifted(3.0 * radius(honest, number))})
    whole = rule_leaf(leaves.whole.bundle(number), LeafRequest())
    assert whole.worst == (f"n{number}", 0)
    named, beside = (
        rule_leaf(leaves.whole.bundle(number), LeafRequest(element=(f"n{number}", place))) for place in (0, 1)
    )
    assert (named.fault, named.ground, named.work.judged) == (Fault.PROVER, Ground.BOUND, 1)
    assert (beside.fault, beside.ground, beside.work.judged) == (Fault.CHALLENGER, Ground.HOLDS, 1)


def test_a_named_element_of_a_choice_is_tied_or_wrong(tmp_path: Path) -> None:
    near, far = (choices(tmp_path / str(i), step) for i, step in enumerate((1, 9)))
    assert outcome(near.whole.bundle(1), LeafRequest(element=("n1", 0))) == (Fault.NOBODY, Ground.TIE)
    assert outcome(far.whole.bundle(1), LeafRequest(element=("n1", 0))) == (Fault.PROVER, Ground.BOUND)
    assert rule_leaf(far.whole.bundle(1), LeafRequest()).worst == ("n1", 0)


def test_a_named_element_about_which_the_bound_says_nothing_goes_to_a_committee(tmp_path: Path) -> None:
    large = {"inputs.x": Tensor.of(np.full((6, 16), 1e38, np.float32))}
    leaves = opened(tmp_path / "opening", given=bindings() | large)
    assert outcome(leaves.whole.bundle(0), LeafRequest(element=("n0", 0))) == (None, Ground.UNDECIDED)


@pytest.mark.parametrize("asked", [LeafRequest(), SAMPLED], ids=["referee", "committee"])
@pytest.mark.parametrize("element", [("n0", 96), ("n0", -1), ("n77", 0), ("", 0)])
def test_an_element_that_does_not_exist_is_the_challengers_fault(
    forged: Callable[..., Leaves], element: tuple[str, int], asked: LeafRequest
) -> None:
    """Even of an operator that is wrong somewhere; but not of one whose opening is not consistent."""
    bundle = forged({0: shifted(1e6)}).whole.bundle(0)
    assert outcome(bundle, replace(asked, element=("n0", 95)))[1] is not Ground.ELEMENT
    assert outcome(bundle, replace(asked, element=element)) == (Fault.CHALLENGER, Ground.ELEMENT)
    ruling = rule_leaf(bundle, replace(asked, element=element))
    assert ruling.verdict.outcome == "inconclusive"  # the challenger is at fault, and the operator was not judged
    assert ruling.verdict.unavailable == ("node 0: nothing of it was judged",)
    broken = replace(bundle, edges=OperandEdges(producers=bundle.edges.producers[1:]), values={})
    assert outcome(broken, replace(asked, element=element))[0] is Fault.PROVER


@pytest.mark.parametrize("number", [0, 3])
def test_an_element_that_nobody_chose_is_found_by_signs(forged: Callable[..., Leaves], number: int) -> None:
    leaves = forged({number: shifted(1.0, place=7)})
    blind = LeafLimits(whole_flops=0, whole_bytes=0, elements=1, vectors=20)
    nonce = next(n for n in range(99) if 7 not in places_of(leaves, number, bytes([n])))
    ruling = rule_leaf(leaves.whole.bundle(number), replace(SAMPLED, nonce=bytes([nonce]), limits=blind))
    assert (ruling.fault, ruling.ground) == (Fault.PROVER, Ground.BOUND)
    assert ruling.verdict.objections[0].name == "product"


def places_of(leaves: Leaves, number: int, nonce: bytes) -> set[int]:
    from tallystick.verdicts.leaf.judge import chosen_places

    opening, place = leaves.whole.opening, leaves.whole.places[number]
    size = leaves.whole.bundle(number).values[f"n{number}"].array().size
    return set(chosen_places(nonce, f"{opening.operators.root}/{place}/n{number}", size, 1).tolist())


@pytest.mark.parametrize("number", [2, 13])
def test_what_rounds_nothing_is_exact(forged: Callable[..., Leaves], number: int) -> None:
    leaves = forged({number: jittered})
    assert outcome(leaves.whole.bundle(number)) == (Fault.PROVER, Ground.BOUND)


def test_a_coarser_precision_has_to_be_stated(forged: Callable[..., Leaves]) -> None:
    def coarse(_: Arrays, operands: Mapping[str, Any]) -> Arrays:
        cut = {name: (operands[name].view(np.int32) & -(1 << 13)).view(np.float32) for name in ("self", "mat2")}
        return (cut["self"] @ cut["mat2"],)

    bundle = forged({0: coarse}).whole.bundle(0)
    assert outcome(bundle) == (Fault.PROVER, Ground.BOUND)
    assert outcome(bundle, LeafRequest(precision=TENSOR_FLOAT)) == (Fault.CHALLENGER, Ground.HOLDS)


# ---- what a committee decides


def profile(leaves: Leaves, number: int, widest: float) -> Profile:
    """Thresholds for one operator: shares of its bound that honest stacks took."""
    where = next(each for each in leaves.whole.graph.nodes if each.number == number)
    one = errors_of(np.full(9, widest), np.zeros(9), np.ones(9), 2.0**-24)
    return Profile(
        stacks=("a",), machines=("m",), inputs=1, safety=1.0, operators={f"{where.operator} F32": Calibrated.of(one)}
    )


@pytest.mark.parametrize("question", [LeafRequest(), SAMPLED], ids=["whole", "sampled"])
def test_between_threshold_and_bound_a_committee_decides(
    forged: Callable[..., Leaves], honest: Leaves, question: LeafRequest
) -> None:
    leaves = forged({0: shifted(0.5 * radius(honest, 0))})
    asked = replace(question, element=("n0", 0))
    tight, wide = (replace(asked, profile=profile(honest, 0, share)) for share in (0.3, 0.9))
    assert outcome(leaves.whole.bundle(0), tight) == (None, Ground.THRESHOLD)
    assert outcome(leaves.whole.bundle(0), replace(tight, nonce=b"")) == (None, Ground.THRESHOLD)
    assert outcome(leaves.whole.bundle(0), wide) == (Fault.CHALLENGER, Ground.HOLDS)
    assert rule_leaf(leaves.whole.bundle(0), tight).verdict.outcome == "inconclusive"


def test_an_operator_that_the_profile_does_not_know_is_undecided(honest: Leaves) -> None:
    known = LeafRequest(profile=profile(honest, 0, 0.9))
    assert outcome(honest.whole.bundle(0), known) == (Fault.CHALLENGER, Ground.HOLDS)
    assert outcome(honest.whole.bundle(5), known) == (None, Ground.UNDECIDED)


@pytest.mark.parametrize(("size", "expected"), [(1e10, Fault.CHALLENGER), (1e38, None)])
def test_a_bound_that_says_nothing_is_undecided(tmp_path: Path, size: float, expected: Fault | None) -> None:
    large = {"inputs.x": Tensor.of(np.full((6, 16), size, np.float32))}
    leaves = opened(tmp_path / "opening", given=bindings() | large)
    assert outcome(leaves.whole.bundle(0)) == (
        expected,
        Ground.HOLDS if expected else Ground.UNDECIDED,
    )


def test_an_element_about_which_the_bound_says_nothing_passes_only_as_it_is(tmp_path: Path) -> None:
    x, graph = np.full((1, 4), 2.0, np.float32), division()
    y = np.array([1.0, 0.0, 1e-40, 4.0], np.float32)  # a divisor that may be taken for 0
    given = {"inputs.x": Tensor.of(x), "inputs.y": Tensor.of(y[None])}
    assert outcome(opened(tmp_path / "a", graph=graph, given=given).whole.bundle(0))[0] is Fault.CHALLENGER
    moved = opened(tmp_path / "b", {0: lambda results, _: (np.array([[2, np.inf, 7, 0.5]], np.float32),)}, graph, given)
    assert outcome(moved.whole.bundle(0)) == (None, Ground.UNDECIDED)


def division() -> Graph:
    sides = TensorSpec("F32", (1, 4))
    inputs = (Input("inputs.x", Role.INPUT, sides), Input("inputs.y", Role.INPUT, sides))
    nodes = (node(0, "div.Tensor", {"self": "inputs.x", "other": "inputs.y"}, [["F32", 1, 4]]),)
    return read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, (Output("outputs.z", "n0"),))))


def test_an_operator_that_is_too_large_for_a_referee_goes_to_a_committee(honest: Leaves) -> None:
    assert outcome(honest.whole.bundle(0), LeafRequest(limits=LeafLimits(memory_bytes=100))) == (None, Ground.UNDECIDED)


def test_operands_that_the_operator_does_not_take_are_left_to_a_committee(tmp_path: Path) -> None:
    table, inside, outside = (Tensor.of(x) for x in (np.ones((4, 3), np.float32), np.array([0, 3]), np.array([0, 9])))
    fine = opened(tmp_path / "a", graph=lookup(), given={"inputs.x": inside, "weights.w": table})
    assert outcome(fine.whole.bundle(0)) == (Fault.CHALLENGER, Ground.HOLDS)
    bundle = fine.whole.bundle(0)
    record = bundle.operator.record.model_copy(
        update={"inputs": {"inputs.x": tensor_digest(outside), "weights.w": tensor_digest(table)}}
    )
    assert outcome(reopened(bundle, record, {"inputs.x": outside})) == (None, Ground.OPERANDS)


def test_a_definition_that_fails_is_not_one_that_refuses(honest: Leaves, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise IndexError("its author did not think of this")

    monkeypatch.setattr("tallystick.verdicts.operator.judge.bound", failing)
    assert outcome(honest.whole.bundle(0)) == (None, Ground.UNDECIDED)


def reopened(bundle: LeafBundle, record: OperatorRecord, values: Mapping[str, Tensor]) -> LeafBundle:
    """A bundle over a call with one operator, recommitted by a forger to another record."""
    from tallystick.core.tensor_digests import state_digest

    line = record.to_bytes()
    opening = bundle.opening.model_copy(
        update={
            "operators": Log(root=digest_from(tree_root([leaf_hash(line)])), size=1),
            "sources": bundle.opening.sources | {n: d for n, d in record.inputs.items() if n in bundle.opening.sources},
        }
    )
    call = bundle.opening.opened_record().model_copy(update={"inputs": state_digest({"x": values["inputs.x"]})})
    text = call.to_bytes()
    log = Log(root=digest_from(tree_root([leaf_hash(text)])), size=1)
    opening = opening.model_copy(update={"record": text.decode(), "transcript": log, "proof": ()})
    operator_ = bundle.operator.model_copy(update={"record": record, "index": 0, "proof": ()})
    return replace(bundle, opening=opening, operator=operator_, values=dict(bundle.values) | dict(values))


# ---- choices


def test_a_choice_within_the_margin_is_nobodys_fault(tmp_path: Path) -> None:
    near, far = (choices(tmp_path / str(i), step) for i, step in enumerate((1, 9)))
    ruling = rule_leaf(near.whole.bundle(1), LeafRequest())
    assert (ruling.fault, ruling.ground) == (Fault.NOBODY, Ground.TIE)
    assert ruling.verdict.outcome == "inconclusive"
    assert outcome(far.whole.bundle(1)) == (Fault.PROVER, Ground.BOUND)
    assert outcome(far.whole.bundle(1), LeafRequest(bands=100.0)) == (Fault.NOBODY, Ground.TIE)
    assert outcome(near.whole.bundle(1), replace(SAMPLED, element=("n1", 0))) == (Fault.NOBODY, Ground.TIE)


def choices(folder: Path, steps: int) -> Leaves:
    """The second of two scores that lie so many steps of float32 apart is claimed to be the largest."""
    inputs = (Input("inputs.x", Role.INPUT, TensorSpec("F32", (1, 3))),)
    nodes = (
        node(0, "neg.default", {"self": "inputs.x"}, [["F32", 1, 3]]),
        node(1, "argmax.default", {"self": "n0"}, [["I64", 1]], dim=1, keepdim=False),
    )
    graph = read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, (Output("outputs.z", "n1"),))))
    x = np.array([[-1.0, -1.0 - steps * 2.0**-23, 5.0]], np.float32)
    changes = {1: lambda results, _: (np.array([0]),)}
    return opened(folder, changes, graph, {"inputs.x": Tensor.of(x)})


@pytest.mark.parametrize("number", [0, 1, 2], ids=["equal", "one rounding apart", "far apart"])
def test_a_comparison_is_what_its_operands_say(tmp_path: Path, number: int) -> None:
    """Whoever opens operators one by one has the bits that are compared, so that nothing hangs by a rounding."""
    above = float(np.nextafter(np.float32(0.25), np.float32(1.0)))
    given = {"inputs.x": Tensor.of(np.array([[0.25, above, 0.5]], np.float32))}

    def flipped(results: Arrays, _: Mapping[str, Any]) -> Arrays:
        results[0].flat[number] ^= True
        return results

    for name in ("eq", "ge", "gt", "le", "lt", "ne"):
        one = node(0, f"{name}.Scalar", {"self": "inputs.x"}, [["BOOL", 1, 3]], other=0.25)
        graph = alone(one, Input("inputs.x", Role.INPUT, TensorSpec("F32", (1, 3))))
        fine, wrong = (
            opened(tmp_path / name / str(i), {0: c} if c else {}, graph, given) for i, c in enumerate((None, flipped))
        )
        assert outcome(fine.whole.bundle(0)) == (Fault.CHALLENGER, Ground.HOLDS)
        assert outcome(wrong.whole.bundle(0)) == (Fault.PROVER, Ground.BOUND)


def test_whether_a_subnormal_number_is_zero_depends_on_the_device(tmp_path: Path) -> None:
    given = {"inputs.x": Tensor.of(np.array([[1e-40, 0.0, 1.0]], np.float32))}
    one = node(0, "eq.Scalar", {"self": "inputs.x"}, [["BOOL", 1, 3]], other=0.0)
    graph = alone(one, Input("inputs.x", Role.INPUT, TensorSpec("F32", (1, 3))))
    for claimed, expected in (([0, 1, 0], Fault.CHALLENGER), ([1, 1, 0], None), ([0, 0, 0], Fault.PROVER)):
        change = {0: lambda *_, claimed=claimed: (np.array([claimed], np.bool_),)}
        leaves = opened(tmp_path / "".join(map(str, claimed)), change, graph, given)
        assert outcome(leaves.whole.bundle(0))[0] is expected


# ---- structure: every forgery has its honest twin in `test_an_honest_operator_holds`


def objected(bundle: LeafBundle, **asked: Any) -> str:
    """The check that objects, of a ruling that convicts by structure."""
    ruling = rule_leaf(bundle, LeafRequest(**asked))
    assert (ruling.fault, ruling.ground) == (Fault.PROVER, Ground.STRUCTURE), ruling.reason
    return ruling.verdict.objections[0].name


def edited(document: Any, **changes: Any) -> Any:
    return document.model_copy(update=changes)


def test_a_value_that_is_not_opened_is_held_against_the_prover(honest: Leaves) -> None:
    bundle = honest.whole.bundle(14)
    for ref in ("n3", "n5", "n14"):
        cut = replace(bundle, values={name: value for name, value in bundle.values.items() if name != ref})
        assert outcome(cut) == (Fault.PROVER, Ground.DATA)


def test_a_value_of_other_bytes_is_none(honest: Leaves) -> None:
    bundle = honest.whole.bundle(14)
    assert objected(replace(bundle, values={**bundle.values, "n3": bundle.values["n5"]})) == "value"
    assert objected(replace(bundle, values={**bundle.values, "n99": bundle.values["n5"]})) == "value"


def test_an_edge_that_is_cut_or_leads_elsewhere(honest: Leaves) -> None:
    bundle = honest.whole.bundle(14)
    first, second = bundle.edges.producers
    for producers in (
        (first,),
        (),
        (first, second, second),
        (first, second, honest.whole.bundle(5).edges.producers[0]),
    ):
        if producers != (first, second):
            assert objected(replace(bundle, edges=OperandEdges(producers=producers))) in {"edges"}
    other = edited(first, record=edited(first.record, outputs={"n3": second.record.outputs["n5"]}))
    assert objected(replace(bundle, edges=OperandEdges(producers=(other, second)))) == "edges"


def test_an_edge_with_a_proof_of_another_length_or_place(honest: Leaves) -> None:
    bundle = honest.whole.bundle(14)
    first, second = bundle.edges.producers
    for changed in (
        *(edited(first, proof=first.proof[:-1]), edited(first, proof=(*first.proof, first.proof[0]))),
        *(edited(first, index=first.index + 1), edited(first, index=10**9)),
    ):
        assert objected(replace(bundle, edges=OperandEdges(producers=(changed, second)))) == "edges"


def test_an_operator_at_another_place_than_its_node(honest: Leaves) -> None:
    bundle, other = honest.whole.bundle(14), honest.whole.bundle(13)
    swapped = edited(bundle.operator, node=other.operator.node)
    assert objected(replace(bundle, operator=swapped)) == "operator record"
    moved = edited(bundle.operator, index=bundle.operator.index - 1)
    assert objected(replace(bundle, operator=moved)) == "operator record"
    for proof in (bundle.operator.proof[:-1], (*bundle.operator.proof, "0" * 64)):
        assert objected(replace(bundle, operator=edited(bundle.operator, proof=proof))) == "operator record"


@pytest.mark.parametrize("change", [{"dim": 0}, {"half_to_float": True}])
def test_an_attribute_that_the_graph_does_not_have(honest: Leaves, change: dict[str, Any]) -> None:
    bundle = honest.whole.bundle(6)
    node_ = json.loads(json.dumps(bundle.operator.node))
    node_["record"]["attributes"] |= change
    assert objected(replace(bundle, operator=edited(bundle.operator, node=node_))) == "operator record"


def test_a_graph_of_its_own_is_not_the_claimed_one(honest: Leaves, tmp_path: Path) -> None:
    graph = classifier()
    wrong = [
        replace(each, attributes={**each.attributes, "alpha": 2}) if each.number == 14 else each for each in graph.nodes
    ]
    forged = opened(tmp_path / "forged", graph=read_graph(graph_bytes(replace(graph, nodes=tuple(wrong)))))
    assert outcome(forged.whole.bundle(14))[0] is Fault.CHALLENGER
    kept = edited(honest.claim, transcript=forged.claim.transcript)
    assert objected(forged.whole.bundle(14), published=Published(kept)) in {"claim", "model"}


def test_other_weights_than_the_claimed_ones(honest: Leaves, tmp_path: Path) -> None:
    given = bindings() | {"weights.first": bindings(9)["weights.first"]}
    swapped = opened(tmp_path / "forged", given=given)
    bundle = swapped.whole.bundle(0)
    assert outcome(bundle, LeafRequest(published=Published(swapped.claim)))[0] is Fault.CHALLENGER
    kept = edited(swapped.claim, weights=honest.claim.weights)
    opening = edited(bundle.opening, claim=kept.identity)
    assert objected(replace(bundle, opening=opening), published=Published(kept)) == "model"


def test_a_source_or_constant_that_the_graph_does_not_have(honest: Leaves) -> None:
    bundle = honest.whole.bundle(5)
    sources = bundle.opening.sources
    for changed in (
        sources | {"c0": sources["weights.bias"]},
        sources | {"n3": sources["weights.bias"]},
        {name: found for name, found in sources.items() if name != "c0"},
    ):
        forged = replace(bundle, opening=edited(bundle.opening, sources=changed))
        assert objected(forged) in {"graph header", "opened record"}


def test_a_header_of_another_graph(honest: Leaves) -> None:
    bundle = honest.whole.bundle(5)
    record = json.loads(json.dumps(bundle.header.record))
    record["constants"] = []
    assert objected(replace(bundle, header=GraphHeader(record=record, proof=bundle.header.proof))) == "graph header"
    short = edited(bundle.header, proof=bundle.header.proof[:-1])
    assert objected(replace(bundle, header=short)) == "graph header"


def test_a_result_that_is_not_what_the_operator_gave(honest: Leaves) -> None:
    bundle = honest.whole.bundle(10)
    results = bundle.opening.results | {"outputs.sum": bundle.opening.results["outputs.class"]}
    assert objected(replace(bundle, opening=edited(bundle.opening, results=results))) == "opened record"
    forged = recommitted(bundle, results)
    assert objected(forged) == "results"
    assert outcome(recommitted(bundle, dict(bundle.opening.results)))[0] is Fault.CHALLENGER


def recommitted(bundle: LeafBundle, results: Mapping[str, Any]) -> LeafBundle:
    """The call's record says what the opening's results are."""
    from tallystick.formats.openings import state_digest_of

    call = bundle.opening.opened_record().model_copy(update={"outputs": state_digest_of(results)})
    log = Log(root=digest_from(tree_root([leaf_hash(call.to_bytes())])), size=1)
    changes = {"record": call.to_bytes().decode(), "transcript": log, "results": dict(results)}
    return replace(bundle, opening=edited(bundle.opening, **changes))


def test_an_input_that_nothing_gave(honest: Leaves) -> None:
    bundle = honest.whole.bundle(14)
    inputs = bundle.operator.record.inputs | {"n3": bundle.operator.record.inputs["n5"]}
    forged = edited(bundle.operator, record=edited(bundle.operator.record, inputs=inputs))
    assert objected(replace(bundle, operator=forged)) == "operator record"
    lines = [*honest.whole.lines[:-1], forged.record.to_bytes()]
    assert objected(relogged(honest, bundle, lines, forged.record)) == "edges"
    assert outcome(relogged(honest, bundle, list(honest.whole.lines), bundle.operator.record))[0] is Fault.CHALLENGER


def relogged(honest: Leaves, bundle: LeafBundle, lines: list[bytes], record: OperatorRecord) -> LeafBundle:
    """The operators of an opening under another root; values and proofs follow."""
    from tallystick.core.digests import LeafHashes, prove_inclusion

    leaves = LeafHashes([leaf_hash(line) for line in lines])

    def proof(place: int) -> tuple[str, ...]:
        return tuple(each.hex() for each in prove_inclusion(leaves, place, len(lines)))

    log = Log(root=digest_from(tree_root(leaves.leaves)), size=len(lines))
    edges = tuple(edited(each, proof=proof(each.index)) for each in bundle.edges.producers)
    held = edited(bundle.operator, record=record, proof=proof(bundle.operator.index))
    by_digest = {str(tensor_digest(value)): value for value in bundle.values.values()}
    values = {ref: by_digest[found] for ref, found in {**record.inputs, **record.outputs}.items()}
    opening = edited(bundle.opening, operators=log)
    return replace(bundle, opening=opening, operator=held, edges=OperandEdges(producers=edges), values=values)


def test_values_of_other_types_than_the_node_gives(honest: Leaves) -> None:
    bundle = honest.whole.bundle(14)
    wide = Tensor.of(bundle.values["n14"].array().astype(np.float64))
    record = edited(bundle.operator.record, outputs={"n14": tensor_digest(wide)})
    forged = relogged(honest, replace(bundle, values={**bundle.values, "n14": wide}),
                      [*honest.whole.lines[:-1], record.to_bytes()], record)  # fmt: skip
    assert objected(forged) == "operator types"


def test_a_replay_with_other_bits_is_bound_by_its_inputs_alone(honest: Leaves, tmp_path: Path) -> None:
    """What a prover opens anew may differ from its record in the last bits: the parties compare values instead."""
    other = opened(tmp_path / "again", {0: in_float64})
    bundle = other.whole.bundle(10)
    assert other.whole.opening.results != honest.whole.opening.results
    changes = {name: getattr(honest.whole.opening, name) for name in ("record", "transcript", "index", "proof")}
    replayed = replace(bundle, opening=edited(bundle.opening, **changes))
    assert objected(replayed) == "opened record"
    assert outcome(replayed, LeafRequest(bits=False))[0] is Fault.CHALLENGER


def test_a_bundle_about_another_leaf_is_no_ground_for_a_ruling(honest: Leaves) -> None:
    bundle = honest.whole.bundle(14)
    mine = LeafRequest(opening=bundle.opening.identity, index=bundle.operator.index)
    assert outcome(bundle, mine)[0] is Fault.CHALLENGER
    for asked in (LeafRequest(opening=digest("opening", b"")), replace(mine, index=0)):
        with pytest.raises(ProofError, match="another one than is contested"):
            rule_leaf(bundle, asked)


# ---- what a ruling says


def test_the_same_bytes_and_question_give_the_same_ruling(honest: Leaves, tmp_path: Path) -> None:
    for number in NUMBERS:
        bundle = honest.whole.bundle(number)
        write_bundle(tmp_path / "leaf", bundle)
        texts = {
            encode(rule_leaf(each, SAMPLED).to_json())
            for each in (bundle, read_bundle(tmp_path / "leaf"), read_bundle((tmp_path / "leaf").read_bytes()))
        }
        assert len(texts) == 1


def test_a_ruling_on_some_elements_says_what_it_may_have_missed(honest: Leaves) -> None:
    whole, some = (rule_leaf(honest.whole.bundle(0), question) for question in (LeafRequest(), SAMPLED))
    assert (whole.work.judged, whole.work.elements) == (96, 96)
    assert "missed" not in whole.reason
    assert 0 < some.work.drawn <= 8 < some.work.judged < 96
    assert f"{0.99**some.work.drawn:.2g} if 1.0% are" in some.reason
    assert "2^-20" in some.reason
    assert some.verdict.gist == f"{some.work.judged} of 96 elements judged"


def normalisation() -> Graph:
    """One operator with results of 2,048, 256 and 256 elements."""
    one = node(0, "native_layer_norm.default", {"input": "inputs.x", "weight": None, "bias": None},
               [["F32", 256, 8], ["F32", 256, 1], ["F32", 256, 1]], normalized_shape=(8,), eps=1e-5)  # fmt: skip
    return alone(one, Input("inputs.x", Role.INPUT, TensorSpec("F32", (256, 8))))


def test_the_stated_probability_to_miss_is_that_of_a_single_result(tmp_path: Path) -> None:
    """200 nonces over 1 % wrong elements of the largest of three results: as many are missed as the ruling says."""
    rng = np.random.default_rng(5)
    given = {"inputs.x": Tensor.of(rng.normal(size=(256, 8)).astype(np.float32))}
    wrong = rng.permutation(2048)[:20]

    def change(results: Arrays, _: Mapping[str, Any]) -> Arrays:
        results[0].flat[wrong] += np.float32(1.0)
        return results

    bundle = opened(tmp_path / "a", {0: change}, normalisation(), given).whole.bundle(0)
    few = LeafLimits(whole_flops=1, whole_bytes=1, elements=64)
    rulings = [rule_leaf(bundle, LeafRequest(nonce=bytes([n >> 8, n & 255]), limits=few)) for n in range(200)]
    missed = [ruling for ruling in rulings if ruling.fault is Fault.CHALLENGER]
    stated = (1 - 0.01) ** missed[0].work.drawn
    assert f"at most {stated:.2g} if 1.0% are" in missed[0].reason
    assert abs(len(missed) / 200 - stated) < 4 * np.sqrt(stated * (1 - stated) / 200)
    named = rule_leaf(bundle, LeafRequest(nonce=b"\0\0", limits=few, element=("n0", int(wrong[0]))))
    assert named.fault is Fault.PROVER


def test_rows_without_a_tolerance_are_told_apart(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(6, 16)).astype(np.float32)
    whole = rule_leaf(opened(tmp_path / "a").whole.bundle(0), SAMPLED)
    assert whole.reason.endswith(
        "; an element beyond the sum of its row's bounds passes with probability at most 2^-20"
    )
    x[2] *= np.float32(5e37)
    leaves = opened(tmp_path / "b", given=bindings() | {"inputs.x": Tensor.of(x)})
    nonce = next(n for n in range(99) if not {p // 16 for p in places_of(leaves, 0, bytes([n]))} & {2})
    blind = LeafLimits(whole_flops=0, whole_bytes=0, elements=1)
    some = rule_leaf(leaves.whole.bundle(0), LeafRequest(nonce=bytes([nonce]), limits=blind))
    assert (some.work.rows, some.work.unbounded) == (5, 1)
    assert "in 5 of 6 rows an element beyond" in some.reason


@pytest.mark.parametrize("number", [6, 10])
def test_deviating_elements_are_judged_besides_those_that_are_drawn(
    forged: Callable[..., Leaves], honest: Leaves, number: int
) -> None:
    leaves, ref = forged({number: shifted(3.0 * radius(honest, number))}), f"n{number}"
    few = LeafLimits(whole_flops=0, whole_bytes=0, elements=1)
    nonce = next(bytes([n]) for n in range(99) if 0 not in places_of(leaves, number, bytes([n])))
    blind = LeafRequest(nonce=nonce, limits=few)
    looking = replace(blind, deviating={ref: np.array([0, 3])})
    assert outcome(leaves.whole.bundle(number), blind) == (Fault.CHALLENGER, Ground.HOLDS)
    assert outcome(leaves.whole.bundle(number), looking) == (Fault.PROVER, Ground.BOUND)
    assert outcome(honest.whole.bundle(number), looking) == (Fault.CHALLENGER, Ground.HOLDS)


def test_without_a_nonce_every_element_of_a_large_operator_is_judged(honest: Leaves) -> None:
    question = replace(SAMPLED, nonce=b"")
    assert rule_leaf(honest.whole.bundle(0), question).work.judged == 96


def test_a_large_product_costs_a_small_part_of_it(tmp_path: Path) -> None:
    side = 512
    inputs = tuple(Input(f"inputs.{name}", Role.INPUT, TensorSpec("F32", (side, side))) for name in "xy")
    nodes = (node(0, "mm.default", {"self": "inputs.x", "mat2": "inputs.y"}, [["F32", side, side]]),)
    graph = read_graph(graph_bytes(Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, (Output("outputs.z", "n0"),))))
    rng = np.random.default_rng(0)
    given = {each.name: Tensor.of(rng.normal(size=(side, side)).astype(np.float32)) for each in inputs}
    ruling = rule_leaf(opened(tmp_path / "a", graph=graph, given=given).whole.bundle(0), LeafRequest(nonce=b"n"))
    assert (ruling.fault, ruling.work.vectors) == (Fault.CHALLENGER, 20)
    assert ruling.work.flops == 2 * side**3
    assert ruling.work.drawn <= 1024 < ruling.work.judged <= 1024 + 64
    wrong = opened(tmp_path / "b", {0: shifted(0.5, place=777)}, graph, given)
    assert outcome(wrong.whole.bundle(0), LeafRequest(nonce=b"n")) == (Fault.PROVER, Ground.BOUND)


EXAMPLES = {name: calls[0] for name, calls in collected("EXAMPLES").items() if name.startswith(("aten.", "tally."))}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_verdict_on_an_opening_agrees_with_the_ruling_on_a_leaf(name: str) -> None:
    """Of exact results, rounded to their dtype; where the bound says nothing the referee is undecided too."""
    values: dict[str, Tensor] = {}

    def load(tensor: Tensor) -> str:
        return values.setdefault(f"v{len(values)}", tensor) and f"v{len(values) - 1}"

    arguments = mapped(EXAMPLES[name].arguments, lambda tensor: tensor)
    given = mapped(EXAMPLES[name].arguments, load)
    meaning = operator(name)
    operands = {each.name: given[each.name] for each in meaning.parameters if each.is_operand}
    attributes = {each.name: given[each.name] for each in meaning.parameters if not each.is_operand}
    results = [None if each is None else rounded(each.value, each.dtype) for each in bound(meaning, arguments)]
    specs = tuple(None if each is None else TensorSpec.of(each) for each in results)
    where = Node(7, name, operands, attributes, specs)
    values |= {ref: each for ref, each in zip(where.outputs, results, strict=True) if ref and each}
    notes, found = Findings(), Findings()
    judge = OperatorJudge(digest("graph", b""))
    line = judge_operator(notes, judge, where, values)
    concluded = conclude(found, judge, where, values, BANDS)
    assert bool(concluded.wrong) is notes.rejected
    assert bool(concluded.undecided) is bool(line)


def rounded(value: np.ndarray[Any, Any], dtype: str) -> Tensor:
    from tallystick.core.tensors import numpy_dtype, round_to_bfloat16

    with np.errstate(all="ignore"):
        if dtype == "BF16":
            return Tensor.of(round_to_bfloat16(value.astype(np.float32)), "BF16")
        return Tensor.of(np.asarray(value).astype(numpy_dtype(dtype)), dtype)


def test_rulings_are_printed_as_json(honest: Leaves) -> None:
    ruling = rule_leaf(honest.whole.bundle(0), LeafRequest())
    assert isinstance(ruling, Ruling)
    written = json.loads(encode(ruling.to_json()))
    assert (written["fault"], written["ground"], written["verdict"]) == ("challenger", "holds", "accepted")
    assert written["work"]["proof_hash_bytes"] == ruling.work.sizes["proof_hash_bytes"]
    undecided = rule_leaf(honest.whole.bundle(0), LeafRequest(limits=LeafLimits(memory_bytes=1)))
    assert undecided.to_json()["fault"] == "committee"
