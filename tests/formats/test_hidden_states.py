import base64
import json
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, UsageError
from tallystick.core.tensors import Tensor, round_to_bfloat16
from tallystick.formats.hidden_states import (
    LEAVES_MAX,
    StatesOpening,
    challenged,
    check_states_opening,
    commit_states,
    direction_seed,
    drawn_layer,
    judged_layers,
    leaf_count,
    places_of_layer,
)
from tallystick.formats.receipt import PARTS_MAX, StatesCommitment
from tests.support.effort import bounded_calls

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "fingerprint" / "states.json").read_text())
NONCE = bytes(range(32))
LAYERS = (0, 2, 5)


def states(seed=0, rows=21, size=6):
    rng = np.random.default_rng(seed)
    return {layer: rng.normal(size=(rows, size)).astype(np.float32) for layer in LAYERS}


COMMITTED = commit_states(states(), LAYERS, 4)


@pytest.mark.parametrize("case", VECTORS)
def test_vectors(case):
    rows = {int(layer): np.array(each, np.float32) for layer, each in case["rows"].items()}
    committed = commit_states(rows, case["layers"], case["block"])
    opening = StatesOpening.from_json(case["opening"], "opening")
    nonce = bytes.fromhex(case["opening"]["nonce"])
    assert committed.statement.root == opening.states
    assert committed.open(nonce, case["count"], opening.layer) == opening
    found = check_states_opening(opening, committed.statement, nonce, case["count"], opening.layer)
    assert len(found) == case["count"]


def test_a_layer_is_opened_with_all_rows_and_those_of_the_layer_before():
    committed = commit_states({layer: states()[5] * (layer + 1) for layer in (0, 1, 3, 4)}, (0, 1, 3, 4), 4)
    assert judged_layers(committed.statement) == [0, 1, 4]
    for layer, pair in ((0, (0,)), (1, (0, 1)), (4, (3, 4))):
        opening = StatesOpening.from_bytes(committed.open(NONCE, layer=layer).to_bytes(), "opening")
        found = check_states_opening(opening, committed.statement, NONCE, 1, layer)
        assert list(found) == [(block, each) for block in range(6) for each in pair]
        for other in {0, 1, 4} - {layer}:
            with pytest.raises(ProofError, match=f"of layer {other} and the one before"):
                check_states_opening(opening, committed.statement, NONCE, 1, other)
        with pytest.raises(ProofError, match="that the nonce selects"):
            check_states_opening(opening, committed.statement, NONCE, 1)
    with pytest.raises(UsageError, match="layer 3: its states, or those of the layer before it"):
        committed.open(NONCE, layer=3)
    many = committed.statement.model_copy(update={"rows": 4 * PARTS_MAX})
    with pytest.raises(UsageError, match="2048 parts are more than"):
        places_of_layer(many, 1)
    drawn = {drawn_layer(bytes([number]), committed.statement, [0, 1, 4]) for number in range(30)}
    assert drawn == {0, 1, 4}


def test_an_opening_gives_the_rows_that_the_nonce_selects():
    opening = StatesOpening.from_bytes(COMMITTED.open(NONCE, 5).to_bytes(), "opening")
    found = check_states_opening(opening, COMMITTED.statement, NONCE, 5)
    assert list(found) == challenged(NONCE, COMMITTED.statement, 5)
    for (block, layer), rows in found.items():
        assert rows.tobytes() == states()[layer][4 * block : 4 * block + 4].tobytes()


def test_everything_is_opened_where_more_is_asked_for():
    found = check_states_opening(COMMITTED.open(NONCE, 1000), COMMITTED.statement, NONCE, 1000)
    assert list(found) == [(block, layer) for block in range(6) for layer in LAYERS]
    assert found[5, 0].shape == (1, 6)


def test_the_choice_follows_from_nonce_and_root_and_grows_with_the_count():
    chosen = {count: set(challenged(NONCE, COMMITTED.statement, count)) for count in range(1, 19)}
    assert all(chosen[count] < chosen[count + 1] for count in range(1, 18))
    assert set(challenged(b"another", COMMITTED.statement, 4)) != chosen[4]
    other = commit_states(states(1), LAYERS, 4).statement
    assert set(challenged(NONCE, other, 4)) != chosen[4]
    assert direction_seed(NONCE, other) != direction_seed(NONCE, COMMITTED.statement) != direction_seed(b"x", other)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_narrow_states_are_opened_in_their_own_bytes(dtype):
    values = states()[0]
    bits = round_to_bfloat16(values) if dtype == "BF16" else values.astype(np.float16)
    committed = commit_states({0: Tensor.of(bits, dtype)}, (0,), 8)
    assert committed.statement.dtype == dtype
    found = check_states_opening(committed.open(NONCE, 1), committed.statement, NONCE, 1)
    rows = next(iter(found.values()))
    assert rows.dtype == np.float32
    assert np.allclose(rows, values[: len(rows)] if (0, 0) in found else rows, rtol=0.01)


@pytest.mark.parametrize(
    "changed",
    [
        {**states(), 0: -states()[0]},
        {**states(), 0: states()[2], 2: states()[0]},
        {layer: np.roll(each, 1, axis=0) for layer, each in states().items()},
        {layer: each.reshape(42, 3)[:21] for layer, each in states().items()},
    ],
    ids=["negated", "layers swapped", "shifted", "half as wide"],
)
def test_a_root_binds_values_layers_places_and_width(changed):
    assert commit_states(states(), LAYERS, 4).statement.root == COMMITTED.statement.root
    assert commit_states(changed, LAYERS, 4).statement.root != COMMITTED.statement.root


def altered(**changes):
    opening = COMMITTED.open(NONCE, 5)
    part = opening.parts[1].model_copy(update=changes)
    return opening.model_copy(update={"parts": (opening.parts[0], part, *opening.parts[2:])})


def with_parts(choose):
    opening = COMMITTED.open(NONCE, 5)
    return opening.model_copy(update={"parts": tuple(choose(opening.parts))})


def rows_as_text(rows):
    return base64.b64encode(rows.astype("<f4").tobytes()).decode()


FOREIGN = commit_states(states(1), LAYERS, 4)


@pytest.mark.parametrize(
    "opening",
    [
        altered(data=rows_as_text(np.zeros((4, 6)))),
        altered(data=rows_as_text(np.zeros((4, 7)))),
        altered(proof=()),
        altered(proof=COMMITTED.open(NONCE, 5).parts[0].proof),
        altered(proof=(*COMMITTED.open(NONCE, 5).parts[1].proof, "00" * 32)),
        altered(layer=4),
        altered(block=2**50),
        with_parts(lambda parts: parts[:-1]),
        with_parts(lambda parts: parts[::-1]),
        with_parts(lambda parts: (*parts, parts[-1])),
        with_parts(lambda parts: (*parts[:-1], parts[0])),
        COMMITTED.open(NONCE, 4),
        COMMITTED.open(b"another nonce", 5),
        FOREIGN.open(NONCE, 5),
        FOREIGN.open(NONCE, 5).model_copy(update={"states": COMMITTED.statement.root}),
    ],
    ids=[
        *("values", "width", "no proof", "another's proof", "longer proof", "layer", "block", "a part missing"),
        *("another order", "a part twice", "a part instead", "fewer parts", "nonce", "foreign", "foreign, renamed"),
    ],
)
def test_what_is_not_the_opening_is_refused(opening):
    assert check_states_opening(COMMITTED.open(NONCE, 5), COMMITTED.statement, NONCE, 5)
    with pytest.raises(ProofError):
        check_states_opening(opening, COMMITTED.statement, NONCE, 5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("AAA", "data: no base64"),
        ("AAB=", "not canonical base64"),
        ("", "0 bytes are not 4 rows"),
        (base64.b64encode(b"0" * 95).decode(), "95 bytes are not 4 rows"),
    ],
)
def test_bytes_that_are_no_rows_are_refused(data, message):
    with pytest.raises(MalformedError, match=message):
        check_states_opening(altered(data=data), COMMITTED.statement, NONCE, 5)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("nonce", {"nonce": "xyz"}),
        ("states", {"states": "sha256:00"}),
        ("parts", {"parts": []}),
        ("parts", {"parts": COMMITTED.open(NONCE, 1).to_json()["parts"] * (PARTS_MAX + 1)}),
        ("opening", {"opening": 2}),
        ("surplus", {"surplus": 1}),
    ],
)
def test_documents_are_strict(field, change):
    value = COMMITTED.open(NONCE, 1).to_json()
    assert StatesOpening.from_json(value, "opening").parts
    with pytest.raises(MalformedError, match=field):
        StatesOpening.from_json({**value, **change}, "opening")


def statement_of(**changes):
    return StatesCommitment.from_json({**COMMITTED.statement.to_json(), **changes}, "states")


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("leaves", {"rows": 0}),
        ("leaves", {"rows": 1 << 20, "block": 1, "layers": list(range(1024))}),
        ("twice", {"layers": [1, 1]}),
    ],
)
def test_statements_that_ask_for_endless_work_are_refused_at_once(message, changes):
    assert leaf_count(statement_of(rows=1 << 20, block=1, layers=[0, 1, 2, 3])) == LEAVES_MAX
    with bounded_calls(50_000), pytest.raises(MalformedError, match=message):
        challenged(NONCE, statement_of(**changes), 4)


@pytest.mark.parametrize(
    ("nonce", "count"), [(b"", 1), (b"0" * 65, 1), (NONCE, 0), (NONCE, PARTS_MAX + 1), (NONCE, -1)]
)
def test_challenges_have_bounds(nonce, count):
    with pytest.raises(UsageError):
        COMMITTED.open(nonce, count)


@pytest.mark.parametrize(
    "rows",
    [
        {},
        {0: np.zeros((0, 4), np.float32)},
        {0: np.zeros(4, np.float32)},
        {0: np.zeros((4, 4), np.float32), 1: np.zeros((5, 4), np.float32)},
        {0: np.zeros((4, 4), np.float32), 1: np.zeros((4, 4), np.float16)},
        {0: np.zeros((4, 4), np.int32)},
    ],
    ids=["none", "no rows", "no matrix", "other numbers", "other dtypes", "integers"],
)
def test_what_cannot_be_committed_to(rows):
    with pytest.raises(UsageError):
        commit_states(rows, tuple(rows), 4)


def test_a_statement_is_bound_to_the_receipt_by_its_root():
    assert COMMITTED.statement.root.startswith("sha256:")
    assert COMMITTED.statement.root != digest("hidden", b"")
    assert COMMITTED.size_bytes == 3 * 21 * 6 * 4
