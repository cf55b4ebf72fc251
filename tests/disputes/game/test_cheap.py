"""Evidence that a contract can check: it convicts what cannot be honest, and never what can."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from tallystick.core.digests import LeafHashes, digest, leaf_hash, prove_inclusion, tree_root
from tallystick.core.errors import RuleError
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor
from tallystick.disputes.game.game import CAST, NAME_MAX, PRODUCT, convict, record_bytes
from tallystick.disputes.game.moves import Evidence, RecordForm, TensorForm, ValueWriter
from tallystick.disputes.game.state import Clocks, Dispute, Phase
from tallystick.formats.records import OperatorRecord
from tests.support.simulator.trees import Run

F32, F64 = np.float32, np.float64
DTYPES = {"F32": F32, "F64": F64}


def form_of(values: Any, dtype: str, shape: tuple[int, ...] | None = None) -> TensorForm:
    array = np.asarray(values, DTYPES[dtype].__name__)
    return TensorForm(dtype=dtype, shape=shape or array.shape, data=array.tobytes().hex())  # type: ignore[arg-type]


def digest_of(form: TensorForm) -> str:
    return tensor_digest(Tensor(form.dtype, form.shape, bytes.fromhex(form.data)))


def opened(record: RecordForm, records: list[RecordForm] | None = None) -> Dispute:
    """A dispute in which `record` was opened, the last of `records`."""
    leaves = [leaf_hash(record_bytes(each)) for each in (*(records or ()), record)]
    root, place = tree_root(leaves).hex(), len(leaves) - 1
    clocks = Clocks(1, 1, 0)
    return Dispute(0, "c", 1, root, len(leaves), place, place + 1, Phase.RULING, clocks, 0, 0, leaf=leaves[-1].hex())


def verdict(dispute: Dispute, evidence: Evidence) -> str:
    try:
        convict(dispute, evidence)
    except RuleError as error:
        return str(error) if error.code == "evidence" else error.code
    return "convicted"


def operator(kind: str, read: list[TensorForm], given_: list[TensorForm]) -> RecordForm:
    inputs = tuple((f"in{place}", digest_of(each)) for place, each in enumerate(read))
    outputs = tuple((f"out{place}", digest_of(each)) for place, each in enumerate(given_))
    return RecordForm(node=3, operator=kind, inputs=inputs, outputs=outputs)  # type: ignore[arg-type]


def cast(source: Any, result: Any, dtypes: tuple[str, str] = ("F64", "F32"), element: int = 0) -> str:
    forms = (form_of(source, dtypes[0]), form_of(result, dtypes[1]))
    record = operator(CAST, [forms[0]], [forms[1]])
    return verdict(opened(record), Evidence(ground="cast", record=record, tensors=forms, element=element))


def product(left: Any, right: Any, result: Any, element: int = 0) -> str:
    forms = tuple(form_of(each, "F32") for each in (left, right, result))
    record = operator(PRODUCT, list(forms[:2]), [forms[2]])
    return verdict(opened(record), Evidence(ground="product", record=record, tensors=forms, element=element))


def moved(value: np.float32, ulps: int) -> np.float32:
    """The number so many places further from zero, in units in the last place of its own binade at first."""
    word = struct.unpack("<I", struct.pack("<f", value))[0]
    return np.float32(struct.unpack("<f", struct.pack("<I", word + ulps))[0])


NO_FAULT = "the evidence does not show a fault"


# ---- honest numbers are never convicted
@given(st.floats(allow_nan=True, allow_infinity=True), st.integers(-1, 1))
@settings(max_examples=400, deadline=None)
def test_no_rounding_of_a_cast_is_convicted(source: float, ulps: int) -> None:
    """Nearest, one place up or one place down: every rounding mode is among them."""
    with np.errstate(all="ignore"):
        nearest = np.float32(source)
        assume(np.isfinite(nearest) or ulps == 0)
        result = nearest if ulps == 0 or nearest == 0 else moved(nearest, ulps)
    assert cast([source], [result]) != "convicted"


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(-1, 1))
@settings(max_examples=400, deadline=None)
def test_no_rounding_of_a_product_is_convicted(left: int, right: int, ulps: int) -> None:
    a, b = (np.frombuffer(struct.pack("<I", word), "<f4")[0] for word in (left, right))
    with np.errstate(all="ignore"):
        nearest = np.float32(a * b)
    result = nearest if ulps == 0 or nearest == 0 or not np.isfinite(nearest) else moved(nearest, ulps)
    assert product([a], [b], [result]) != "convicted"


@given(st.floats(width=32, allow_subnormal=True))
@settings(max_examples=200, deadline=None)
def test_flushing_to_zero_is_not_convicted(value: float) -> None:
    """Numbers below 2⁻¹²⁶ may become zero, and what is zero is left to a committee."""
    tiny = np.float32(value) * np.float32(2.0**-100)
    result = np.float32(0) if abs(tiny) < 2.0**-126 else tiny
    assert product([np.float32(value)], [np.float32(2.0**-100)], [result]) != "convicted"
    assert cast([float(value) * 2.0**-100], [result]) != "convicted"


def test_honest_numbers_at_every_power_of_two() -> None:
    for exponent in range(-149, 128):
        for factor in (1, 1 + 2**-23, 1 - 2**-24, 1 + 2**-24, 1 - 2**-25, 1.5):
            source = math.ldexp(factor, exponent)
            with np.errstate(all="ignore"):
                nearest = np.float32(source)
            assert cast([source], [nearest]) != "convicted"
            for ulps in (-1, 1):
                if nearest and np.isfinite(nearest) and np.isfinite(moved(nearest, ulps)):
                    assert cast([source], [moved(nearest, ulps)]) != "convicted"


# ---- what is further away is
@given(st.floats(2.0**-120, 2.0**120), st.sampled_from([-9, -4, 4, 9, 1 << 20]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_cast_that_is_further_off_is_convicted(source: float, ulps: int, negative: bool) -> None:
    sign = -1 if negative else 1
    result = moved(np.float32(source), ulps)
    assert cast([sign * source], [sign * result]) == "convicted"
    assert cast([sign * source], [sign * np.float32(source)]) == NO_FAULT


@given(st.floats(2.0**-50, 2.0**50, width=32), st.floats(2.0**-50, 2.0**50, width=32), st.sampled_from([-4, 4, 99]))
@settings(max_examples=200, deadline=None)
def test_a_product_that_is_further_off_is_convicted(left: float, right: float, ulps: int) -> None:
    nearest = np.float32(left) * np.float32(right)
    assert product([left], [right], [moved(nearest, ulps)]) == "convicted"
    assert product([left], [right], [nearest]) == NO_FAULT


@pytest.mark.parametrize("ulps", [2, 3])
def test_two_units_in_the_last_place_are_allowed_and_three_are_not(ulps: int) -> None:
    one = np.float32(1.5)
    assert cast([1.5], [moved(one, ulps)]) == (NO_FAULT if ulps == 2 else "convicted")
    assert product([1.5], [1.0], [moved(one, ulps)]) == (NO_FAULT if ulps == 2 else "convicted")


def test_a_wrong_sign_is_convicted() -> None:
    assert cast([1.5], [-1.5]) == "convicted"
    assert product([-2.0], [3.0], [6.0]) == "convicted"
    assert product([-2.0], [-3.0], [6.0]) == NO_FAULT


def test_a_cast_to_more_bits_is_exact() -> None:
    assert cast([1.25], [1.25], ("F32", "F64")) == NO_FAULT
    assert cast([1.25], [1.25 + 2.0**-40], ("F32", "F64")) == "convicted"
    assert cast([1.25], [1.25], ("F64", "F64")) == NO_FAULT


def test_one_element_of_many_is_enough() -> None:
    right, wrong = [1.0, 2.0, 3.0], [1.0, 2.0, 3.5]
    assert cast(right, right, element=2) == NO_FAULT
    assert cast(right, wrong, element=1) == NO_FAULT
    assert cast(right, wrong, element=2) == "convicted"
    assert product(right, right, [1.0, 4.0, 9.5], element=2) == "convicted"


def test_a_factor_of_one_number_multiplies_every_element() -> None:
    scalar = form_of(3.0, "F32", ())
    vector, result = form_of([1.0, 2.0], "F32"), form_of([3.0, 7.0], "F32")
    record = operator(PRODUCT, [scalar, vector], [result])
    for element, expected in ((0, NO_FAULT), (1, "convicted")):
        evidence = Evidence(ground="product", record=record, tensors=(scalar, vector, result), element=element)
        assert verdict(opened(record), evidence) == expected


# ---- what is refused
@pytest.mark.parametrize(
    ("source", "result"),
    [
        *(([0.0], [1.0]), ([1.0], [0.0]), ([math.inf], [1.0]), ([1.0], [math.inf]), ([math.nan], [1.0])),
        *(([1.0], [math.nan]), ([1e-310], [1.0]), ([1.0], [1e-40]), ([1e300], [1.0]), ([1e-39], [1.0])),
        ([2.0**127], [1.0]),
    ],
)
def test_zero_subnormal_infinite_and_huge_numbers_are_left_to_a_committee(source: Any, result: Any) -> None:
    assert cast(source, result) not in ("convicted", NO_FAULT)


SURPLUS = {
    "edge": {"tensors": (form_of([1.0], "F32"),)},
    "cast": {"writer": ValueWriter(record=RecordForm(node=0, operator=CAST, inputs=(), outputs=()), index=0, proof=())},
}


@pytest.mark.parametrize("ground", SURPLUS)
def test_evidence_with_parts_that_its_ground_does_not_need_is_refused(ground: str) -> None:
    """Nobody checks them, and the log would carry them to everybody who reads it."""
    dispute, evidence = edge(row(2, broken_at=1), 1, 0) if ground == "edge" else wrong_cast()
    assert verdict(dispute, evidence) == "convicted"
    surplus = evidence.model_copy(update=SURPLUS[ground])
    assert verdict(dispute, surplus) == "the evidence holds parts that this ground does not need"


def wrong_cast() -> tuple[Dispute, Evidence]:
    forms = (form_of([1.0], "F64"), form_of([1.5], "F32"))
    record = operator(CAST, [forms[0]], [forms[1]])
    return opened(record), Evidence(ground="cast", record=record, tensors=forms)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d, e: (replace(d, leaf="00" * 32), e),
        lambda d, e: (d, e.model_copy(update={"element": 1})),
        lambda d, e: (d, e.model_copy(update={"element": 2**53 - 1})),
        lambda d, e: (d, e.model_copy(update={"tensors": e.tensors[:1]})),
        lambda d, e: (d, e.model_copy(update={"tensors": e.tensors[::-1]})),
        lambda d, e: (d, e.model_copy(update={"tensors": (form_of([2.0], "F64"), e.tensors[1])})),
        lambda d, e: (d, e.model_copy(update={"tensors": (e.tensors[0], form_of([1.25], "F32"))})),
        lambda d, e: (d, e.model_copy(update={"tensors": (form_of([1.0], "F64", (2,)), e.tensors[1])})),
        lambda d, e: (d, e.model_copy(update={"ground": "product"})),
        lambda d, e: (d, e.model_copy(update={"ground": "edge"})),
        lambda d, e: (d, e.model_copy(update={"record": e.record.model_copy(update={"operator": "aten.add.Tensor"})})),
        lambda d, e: (d, e.model_copy(update={"record": e.record.model_copy(update={"node": 4})})),
    ],
    ids=[
        *("another leaf", "no such element", "an enormous element", "too few tensors", "tensors in another order"),
        *("another source", "another result", "another shape", "another ground", "no writer"),
        *("another operator", "another node"),
    ],
)
def test_evidence_with_one_thing_wrong_is_refused(spoil: Any) -> None:
    dispute, evidence = wrong_cast()
    assert verdict(dispute, evidence) == "convicted"
    assert verdict(*spoil(dispute, evidence)) not in ("convicted", NO_FAULT)


# ---- edges
def row(count: int, *, broken_at: int | None = None) -> list[RecordForm]:
    """Operators in a row, each reading what the one before gave, but for one."""

    def value(place: int, other: bool = False) -> str:
        return digest("blob", f"{place} {other}".encode())

    return [
        RecordForm(
            node=place,
            operator="aten.add.Tensor",
            inputs=((f"v{place - 1}", value(place - 1, place == broken_at)),),  # type: ignore[arg-type]
            outputs=((f"v{place}", value(place)),),  # type: ignore[arg-type]
        )
        for place in range(count)
    ]


def edge(records: list[RecordForm], place: int, writer: int) -> tuple[Dispute, Evidence]:
    leaves = [leaf_hash(record_bytes(each)) for each in records]
    proof = tuple(each.hex() for each in prove_inclusion(LeafHashes(leaves), writer, len(leaves)))
    dispute = replace(opened(records[place]), root=tree_root(leaves).hex(), size=len(leaves), low=place, high=place + 1)
    shown = ValueWriter(record=records[writer], index=writer, proof=proof)
    return dispute, Evidence(ground="edge", record=records[place], writer=shown)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9])
def test_a_value_that_changes_between_operators_is_convicted_and_one_that_does_not_is_not(size: int) -> None:
    for place in range(1, size):
        assert verdict(*edge(row(size, broken_at=place), place, place - 1)) == "convicted"
        assert verdict(*edge(row(size), place, place - 1)) == NO_FAULT
        for other in range(size):
            if other != place - 1:
                assert verdict(*edge(row(size, broken_at=place), place, other)) == NO_FAULT


def test_a_value_that_comes_later_is_convicted() -> None:
    records = row(3)
    records[0] = records[0].model_copy(update={"inputs": (records[2].outputs[0],)})
    assert verdict(*edge(records, 0, 2)) == "convicted"
    assert verdict(*edge(records, 1, 0)) == NO_FAULT


def test_an_operator_that_reads_what_it_gives_itself_is_convicted() -> None:
    records = row(2)
    records[1] = records[1].model_copy(update={"inputs": records[1].outputs})
    assert verdict(*edge(records, 1, 1)) == "convicted"


@pytest.mark.parametrize("spoilt", ["index", "proof", "record"])
def test_a_writer_has_to_stand_in_the_tree(spoilt: str) -> None:
    dispute, evidence = edge(row(5, broken_at=3), 3, 2)
    assert evidence.writer is not None
    bad = {"index": 1, "proof": evidence.writer.proof[:-1], "record": row(5)[1]}[spoilt]
    other = evidence.model_copy(update={"writer": evidence.writer.model_copy(update={spoilt: bad})})
    assert verdict(dispute, evidence) == "convicted"
    assert verdict(dispute, other) not in ("convicted", NO_FAULT)


def test_a_conversion_is_one_operator_of_two_tensors() -> None:
    forms = (form_of([1.0], "F64"), form_of([1.5], "F32"))
    for kind, tensors in ((PRODUCT, forms), (CAST, (*forms, forms[1])), (CAST, forms[:1])):
        record = operator(kind, [forms[0]], [forms[1]])
        found = verdict(opened(record), Evidence(ground="cast", record=record, tensors=tensors))
        assert found == "this is no conversion of one tensor"


def test_a_product_is_one_operator_of_three_single_tensors() -> None:
    forms = tuple(form_of([value], "F32") for value in (2.0, 3.0, 7.0))
    for kind, tensors in ((CAST, forms), (PRODUCT, forms[:2]), (PRODUCT, forms)):
        record = operator(kind, list(forms[:2]), [forms[2]])
        found = verdict(opened(record), Evidence(ground="product", record=record, tensors=tensors))
        is_right = kind == PRODUCT and len(tensors) == 3
        assert found == ("convicted" if is_right else "this is no product of two tensors")
    doubles = tuple(form_of([value], "F64") for value in (2.0, 3.0, 7.0))
    record = operator(PRODUCT, list(doubles[:2]), [doubles[2]])
    assert (
        verdict(opened(record), Evidence(ground="product", record=record, tensors=doubles)) == "the numbers are not F32"
    )


@pytest.mark.parametrize(("shape", "expected"), [((2,), "convicted"), ((2, 1), "the shapes are neither")])
def test_factors_have_the_shape_of_the_product(shape: tuple[int, ...], expected: str) -> None:
    forms = (form_of([2.0, 2.0], "F32", shape), form_of([3.0, 3.0], "F32"), form_of([6.0, 7.0], "F32"))
    record = operator(PRODUCT, list(forms[:2]), [forms[2]])
    found = verdict(opened(record), Evidence(ground="product", record=record, tensors=forms, element=1))
    assert found.startswith(expected)


def test_an_element_beyond_the_last_is_none() -> None:
    assert cast([1.0], [1.5], element=1) == "there is no such element"


def test_an_edge_needs_its_writer() -> None:
    dispute, evidence = edge(row(5, broken_at=3), 3, 2)
    assert "missing" in verdict(dispute, evidence.model_copy(update={"writer": None}))


@pytest.mark.parametrize(("name", "expected"), [("w", "convicted"), ("\u00e4", "escaping"), ('"', "escaping")])
def test_a_record_whose_names_need_escaping_is_left_to_a_committee(name: str, expected: str) -> None:
    """Even where it is the one that was opened: contracts do not write such bytes."""
    records = row(2, broken_at=1)
    value = records[1].inputs[0]
    records[1] = records[1].model_copy(update={"outputs": ((name, value[1]),)})
    named = {"inputs": dict(records[1].inputs), "outputs": dict(records[1].outputs)}
    leaf = leaf_hash(OperatorRecord(node=1, operator="aten.add.Tensor", **named).to_bytes())
    leaves = [leaf_hash(record_bytes(records[0])), leaf]
    dispute = replace(opened(records[0]), leaf=leaf.hex(), root=tree_root(leaves).hex(), size=2, low=1, high=2)
    writer = ValueWriter(record=records[0], index=0, proof=(leaf.hex(),))
    assert expected in verdict(dispute, Evidence(ground="edge", record=records[1], writer=writer))


def test_parts_that_a_ground_does_not_need_are_refused() -> None:
    dispute, evidence = edge(row(5, broken_at=3), 3, 2)
    surplus = evidence.model_copy(update={"tensors": (form_of([1.0], "F32"),)})
    assert verdict(dispute, evidence) == "convicted"
    assert "does not need" in verdict(dispute, surplus)
    about, conversion = wrong_cast()
    surplus = conversion.model_copy(update={"writer": evidence.writer})
    assert verdict(about, conversion) == "convicted"
    assert "does not need" in verdict(about, surplus)


@pytest.mark.parametrize("name", ["", "a" * (NAME_MAX + 1), 'a"', "a\\", "ä", "a\n", "\x7f", "\ud7ff"])
def test_a_name_that_no_reference_can_have_is_refused_and_crashes_nobody(name: str) -> None:
    records = row(2, broken_at=1)
    record = records[1].model_copy(update={"inputs": ((name, records[1].inputs[0][1]),)})
    dispute, _ = edge(records, 1, 0)
    assert verdict(dispute, Evidence(ground="edge", record=record)) not in ("convicted", NO_FAULT)


def test_a_name_that_stands_twice_is_refused() -> None:
    records = row(2)
    twice = records[1].model_copy(update={"inputs": records[1].inputs * 2})
    dispute, evidence = edge(records, 1, 0)
    assert "twice" in verdict(dispute, evidence.model_copy(update={"record": twice}))


def test_names_of_one_and_of_the_most_letters_are_taken() -> None:
    for name in ("a", "a" * NAME_MAX):
        record = row(1)[0].model_copy(update={"outputs": ((name, row(1)[0].outputs[0][1]),)})
        assert record_bytes(record)


def test_a_record_has_the_bytes_of_the_transcript() -> None:
    form = Run(0, 3, 3).below(0).form(1)
    record = OperatorRecord(node=1, operator="aten.add.Tensor", inputs=dict(form.inputs), outputs=dict(form.outputs))
    assert record_bytes(form) == record.to_bytes()


# ---- whatever anybody sends
TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
DIGESTS = st.sampled_from([digest("blob", b"a"), digest("blob", b"b")])
RECORDS = st.builds(
    RecordForm,
    node=st.integers(0, 2**53 - 1),
    operator=st.sampled_from([CAST, PRODUCT, "a.b"]),
    inputs=st.lists(st.tuples(TEXT, DIGESTS), max_size=3).map(tuple),
    outputs=st.lists(st.tuples(TEXT, DIGESTS), max_size=2).map(tuple),
)
TENSORS = st.builds(
    TensorForm,
    dtype=st.sampled_from(["F32", "F64"]),
    shape=st.lists(st.sampled_from([0, 1, 2, 3, 2**53 - 1]), max_size=8).map(tuple),
    data=st.binary(max_size=24).map(bytes.hex),
)
EVIDENCE = st.builds(
    Evidence,
    ground=st.sampled_from(["edge", "cast", "product"]),
    record=RECORDS,
    writer=st.none()
    | st.builds(ValueWriter, record=RECORDS, index=st.integers(0, 2**32), proof=st.just(()) | st.just(("00" * 32,))),
    tensors=st.lists(TENSORS, max_size=3).map(tuple),
    element=st.sampled_from([0, 1, 5, 2**53 - 1]),
)


@given(EVIDENCE)
@settings(max_examples=400, deadline=None)
def test_any_evidence_convicts_or_is_refused(evidence: Evidence) -> None:
    try:
        leaf = leaf_hash(record_bytes(evidence.record)).hex()
    except RuleError:
        leaf = "00" * 32
    assert verdict(replace(wrong_cast()[0], leaf=leaf), evidence)
