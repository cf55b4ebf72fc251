"""Moves come through one door: canonical bytes become a move, everything else is malformed."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError
from tallystick.disputes.game import moves
from tallystick.disputes.game.game import TRANSITIONS
from tallystick.disputes.game.moves import Move, read_move, value_of
from tallystick.disputes.game.state import LEAVES_MAX, MONEY_MAX
from tests.disputes.examples import EXAMPLES

KINDS = {kind.model_fields["kind"].default: kind for kind in get_args(Move)}


def test_there_is_an_example_of_every_move_and_every_move_is_in_the_table() -> None:
    assert {move.kind for move in EXAMPLES} == set(KINDS) == set(TRANSITIONS)


@pytest.mark.parametrize("move", EXAMPLES, ids=lambda move: move.kind)
def test_a_move_is_read_back_from_its_bytes(move: Move) -> None:
    again = read_move(move.to_bytes())
    assert again == move
    assert type(again) is type(move)
    assert again.digest_as("move") == move.digest_as("move")


def test_moves_that_differ_have_digests_that_differ() -> None:
    digests = {move.digest_as("move") for move in EXAMPLES}
    assert len(digests) == len(EXAMPLES)


@pytest.mark.parametrize("move", EXAMPLES, ids=lambda move: move.kind)
def test_what_a_move_pays_is_its_value(move: Move) -> None:
    assert value_of(move) == getattr(move, "value", 0)
    assert move.pays == hasattr(move, "value")


def spoilt(line: bytes, **changes: object) -> bytes:
    return encode({**json.loads(line), **changes})


PARTITION = next(move for move in EXAMPLES if move.kind == "partition").to_bytes()
POST = next(move for move in EXAMPLES if move.kind == "post").to_bytes()
CONTEST = next(move for move in EXAMPLES if move.kind == "contest").to_bytes()
DESCEND = next(move for move in EXAMPLES if move.kind == "descend").to_bytes()
DISCLOSE = next(move for move in EXAMPLES if move.kind == "disclose").to_bytes()
PINPOINT = next(move for move in EXAMPLES if move.kind == "pinpoint").to_bytes()
PROVE = next(move for move in EXAMPLES if move.kind == "prove").to_bytes()
CUT = {"leaf": "00" * 32, "proof": []}
BAD = {
    "empty": b"",
    "no json": b"{",
    "a list": b"[]",
    "no kind": spoilt(POST, kind="x"),
    "another kind's fields": spoilt(POST, kind="withdraw"),
    "a field too many": spoilt(POST, extra=1),
    "a field that is missing": encode({k: v for k, v in json.loads(POST).items() if k != "root"}),
    "an explicit null": spoilt(POST, levels=None),
    "spaces": POST.replace(b",", b", ", 1),
    "a line feed": POST + b"\n",
    "a byte order mark": b"\xef\xbb\xbf" + POST,
    "a duplicate key": POST.replace(b"{", b'{"actor":"' + b"0" * 64 + b'",', 1),
    "keys out of order": json.dumps(dict(reversed(json.loads(POST).items())), separators=(",", ":")).encode(),
    "text for a number": spoilt(POST, size="9"),
    "a number with a point": spoilt(POST, size=9.5),
    "a number as text of a float": POST.replace(b'"size":9', b'"size":9.0'),
    "a boolean for a number": spoilt(POST, size=True),
    "no leaves": spoilt(POST, size=0),
    "too many leaves": spoilt(POST, size=LEAVES_MAX + 1),
    "too much money": POST.replace(b'"value":1000000', b'"value":9007199254740992'),
    "money that is owed": spoilt(POST, value=-1),
    "three levels": spoilt(POST, levels=3),
    "an actor in capitals": spoilt(POST, actor="AB" * 32),
    "an actor that is too short": spoilt(POST, actor="ab" * 31),
    "an actor with a line feed": spoilt(POST, actor="ab" * 32 + "\n"),
    "a root with a prefix": spoilt(POST, root="0x" + "ab" * 32),
    "a root in other letters": spoilt(POST, root="AB" * 32),
    "a statement without its prefix": spoilt(POST, statement="ab" * 32),
    "a range before the first leaf": spoilt(CONTEST, low=-1),
    "no cuts": spoilt(PARTITION, cuts=[]),
    "more cuts than children": spoilt(PARTITION, cuts=[CUT] * 32),
    "a proof that is too long": spoilt(PARTITION, cuts=[{**CUT, "proof": ["00" * 32] * 65}]),
    "a proof of short hashes": spoilt(PARTITION, cuts=[{**CUT, "proof": ["00"]}]),
    "a cut with more in it": spoilt(PARTITION, cuts=[{**CUT, "value": 1}]),
    "a turn below zero": spoilt(PARTITION, turn=-1),
    "a finer tree without leaves": spoilt(DESCEND, size=0),
    "a vote for somebody else": spoilt(DISCLOSE, vote="both"),
    "an element before the first": spoilt(PINPOINT, element=-1),
    "an element beyond any tensor": spoilt(PINPOINT, element=1 << 48),
    "a result beyond any operator": spoilt(PINPOINT, result=1 << 32),
    "evidence of another kind": spoilt(PROVE, evidence={**json.loads(PROVE)["evidence"], "ground": "sum"}),
    "evidence with a null": spoilt(PROVE, evidence={**json.loads(PROVE)["evidence"], "writer": None}),
    "too long": encode({**json.loads(POST), "seal": "0" * (1 << 18)}),
    "not UTF-8": POST[:-2] + b"\xff}",
    "a lone surrogate": b'{"kind":"\\ud800"}',
    "deeper than any move": b"[" * 5000 + b"]" * 5000,
    "a huge number": b'{"kind":' + b"9" * 100_000 + b"}",
    "NaN": b'{"kind":NaN}',
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_a_move_is_malformed(name: str) -> None:
    with pytest.raises(MalformedError, match="move"):
        read_move(BAD[name])


def test_the_widest_moves_are_taken() -> None:
    wide = [
        spoilt(POST, size=LEAVES_MAX, value=MONEY_MAX, levels=1, actor="0x" + "ab" * 20),
        spoilt(PARTITION, cuts=[{**CUT, "proof": ["00" * 32] * 64}] * 31),
        spoilt(CONTEST, low=LEAVES_MAX - 1, high=LEAVES_MAX),
        spoilt(PINPOINT, result=(1 << 32) - 1, element=(1 << 48) - 1),
    ]
    for line in wide:
        assert read_move(line).to_bytes() == line


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(EXAMPLES), st.data())
@settings(max_examples=300, deadline=None)
def test_a_move_with_anything_in_a_field_is_read_or_malformed(move: Move, data: st.DataObject) -> None:
    fields = json.loads(move.to_bytes())
    name = data.draw(st.sampled_from(sorted(fields)))
    try:
        line = encode({**fields, name: data.draw(JSON)})
    except MalformedError:
        return
    _is_read_or_malformed(line)


@given(st.sampled_from(EXAMPLES), st.data())
@settings(max_examples=300, deadline=None)
def test_a_move_with_damaged_bytes_is_read_or_malformed(move: Move, data: st.DataObject) -> None:
    line = bytearray(move.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(line) - 1))
        line[place] = data.draw(st.integers(0, 255))
    _is_read_or_malformed(bytes(line[: data.draw(st.integers(0, len(line)))]))


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_malformed(line: bytes) -> None:
    _is_read_or_malformed(line)


def _is_read_or_malformed(line: bytes) -> None:
    try:
        move = read_move(line)
    except MalformedError:
        return
    assert move.to_bytes() == line


def test_a_move_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        moves.Withdraw(actor="0" * 64).actor = "1" * 64  # type: ignore[misc]
