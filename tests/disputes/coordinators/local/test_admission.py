"""D-15 and bad input: what is refused leaves no trace, the clock goes on, and the honest twin is accepted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.canonical_json import Json, decode, encode
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, RuleError, TallyError, UsageError
from tallystick.disputes.coordinators.local.signed import (
    MOVE_DOMAIN,
    SIGNED_MOVE_BYTES_MAX,
    SignedMove,
    sign_move,
    signed_body,
)
from tallystick.disputes.game.moves import Concede, Finalise, Partition, Post, Timeout
from tallystick.disputes.game.state import Phase, cut_places
from tallystick.formats.signing import SigningKey
from tests.disputes.coordinators.conformance import RECORDS, Play
from tests.disputes.coordinators.local.keys import LocalWorld, key_of, party_of, set_up
from tests.disputes.coordinators.local.script import a_claim, rules


def signed_claim(world: LocalWorld) -> SignedMove:
    return sign_move(a_claim(world), world.place.identity, key_of("prover"))


def refusal(world: LocalWorld, data: bytes) -> TallyError:
    """The refusal, once it is sure that nothing else has changed."""
    chain, purse = world.place.chain(), world.place.purse(party_of("prover"))
    with pytest.raises(TallyError) as caught:
        world.place.take(data)
    assert (world.place.chain(), world.place.purse(party_of("prover"))) == (chain, purse)
    return caught.value


def edited(data: bytes, **changes: Json) -> bytes:
    document = decode(data, "signed move")
    assert isinstance(document, dict)
    return encode({**document, **changes})


def test_a_signed_move_is_accepted_once_and_its_copy_gets_the_same_receipt(world: LocalWorld) -> None:
    data = signed_claim(world).to_bytes()
    first = world.place.take(data)
    world.advance(50)
    assert world.place.take(data) == first
    assert world.place.chain().count == 1


def test_the_same_move_signed_anew_is_another_move(world: LocalWorld) -> None:
    move = a_claim(world)
    for _ in range(2):
        world.place.take(sign_move(move, world.place.identity, key_of("prover")).to_bytes())
    assert len(world.place.state.claims) == 2


def test_a_move_signed_for_another_coordinator_of_the_same_rules_and_key_is_refused(
    world: LocalWorld, tmp_path: Path
) -> None:
    other = set_up(tmp_path / "other.db", rules())
    with closing(other.place):
        data = signed_claim(other).to_bytes()
        Play(world)  # the claim's statement lies here too
        assert refusal_code(world, data) == "coordinator"
        relabelled = edited(data, coordinator=world.place.identity)
        assert isinstance(refusal(world, relabelled), ProofError)
        other.place.take(data)
    world.place.take(signed_claim(world).to_bytes())


def test_a_move_of_one_dispute_is_refused_in_another(world: LocalWorld) -> None:
    play = Play(world)
    play.post()
    play.contest()
    play.contest("bystander")
    play.partition(0)
    copied = play.entries[-1].move.model_copy(update={"dispute": 1})
    text = copied.to_bytes().decode()
    first = world.place.accepted(3, 1, 1)[0].signed
    assert isinstance(refusal(world, edited(first.to_bytes(), move=text)), ProofError)
    play.partition(1)


def test_a_move_under_another_partys_signature_is_refused(world: LocalWorld) -> None:
    thief = key_of("challenger")
    assert refusal_code(world, sign_move(a_claim(world), world.place.identity, thief).to_bytes()) == "actor"
    honest = signed_claim(world).to_bytes()
    assert isinstance(refusal(world, edited(honest, key=thief.public)), ProofError)
    world.place.take(honest)


def test_a_move_that_anybody_could_have_signed_is_refused(world: LocalWorld) -> None:
    nobody = "01" + 62 * "0"
    move = a_claim(world).model_copy(update={"actor": nobody})
    honest = sign_move(move, world.place.identity, key_of("prover"))
    forged = honest.model_copy(update={"key": nobody, "signature": nobody + 64 * "0"})
    with pytest.raises(UsageError, match="small order"):
        world.place.grant(nobody, 1)
    error = refusal(world, forged.to_bytes())
    assert isinstance(error, ProofError)
    assert "small order" in str(error)
    world.place.take(signed_claim(world).to_bytes())


@pytest.mark.parametrize("domain", [b"", b"tallystick/entry/v1\n", b"tallystick/put/v1\n", b"tallystick/move/v2\n"])
def test_a_signature_under_another_domain_is_refused(world: LocalWorld, domain: bytes) -> None:
    honest = signed_claim(world)
    forged = key_of("prover").sign(domain + honest.body)
    assert isinstance(refusal(world, edited(honest.to_bytes(), signature=forged)), ProofError)
    assert key_of("prover").sign(MOVE_DOMAIN + honest.body) == honest.signature


@pytest.mark.parametrize(
    ("name", "value"),
    [("nonce", "ab" * 16), ("signature", "00" * 64), ("signature", "ff" * 64), ("key", "00" * 32), ("key", "ff" * 32)],
)
def test_whatever_is_changed_in_a_signed_move_its_signature_no_longer_holds(
    world: LocalWorld, name: str, value: str
) -> None:
    honest = signed_claim(world).to_bytes()
    assert isinstance(refusal(world, edited(honest, **{name: value})), ProofError | RuleError)
    world.place.take(honest)


def test_malformed_bytes_are_refused(world: LocalWorld) -> None:
    honest = signed_claim(world).to_bytes()
    for data in malformed(honest):
        assert isinstance(refusal(world, data), MalformedError), data[:80]
    world.place.take(honest)


def malformed(honest: bytes) -> list[bytes]:
    return [
        b"",
        b"null",
        b"{}",
        b"\xff\xfe",
        honest[:-1],
        honest + b"\n",
        b" " + honest,
        honest.replace(b'"nonce"', b'"nonce" '),
        edited(honest, price=1),
        edited(honest, nonce=None),
        edited(honest, nonce="AB" * 16),
        edited(honest, nonce="ab" * 15),
        edited(honest, key=7),
        edited(honest, move={"kind": "post"}),
        edited(honest, signature="00" * 63),
        edited(honest, coordinator="sha256:00"),
        b"[" * 100_000,
        b'{"move":"' + b"x" * SIGNED_MOVE_BYTES_MAX + b'"}',
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"kind":"win","actor":"%s"}',
        '{"actor":"%s","kind":"finalise"}',
        '{"actor":"%s","claim":-1,"kind":"finalise"}',
        '{"actor":"%s","claim":1e3,"kind":"finalise"}',
        '{"actor":"%s","claim":0,"kind":"finalise","value":9}',
        '{"claim":0,"actor":"%s","kind":"finalise"}',
        '{"actor":"%s","claim":0,"claim":1,"kind":"finalise"}',
        "x" * (1 << 18),
        "[" * 1000,
    ],
    ids=lambda text: text[:24],
)
def test_a_malformed_move_under_a_good_signature_is_refused(world: LocalWorld, text: str) -> None:
    key, nonce, identity = key_of("prover"), "00" * 16, world.place.identity
    text = text.replace("%s", key.public)
    signature = key.sign(MOVE_DOMAIN + signed_body(identity, nonce, text))
    signed = SignedMove(coordinator=identity, key=key.public, move=text, nonce=nonce, signature=signature)
    assert isinstance(refusal(world, signed.to_bytes()), MalformedError)


def test_wrong_lengths_and_levels_in_a_dispute_are_refused_while_the_clock_goes_on(world: LocalWorld) -> None:
    play = Play(world)
    play.post()
    play.contest()
    cuts = tuple(RECORDS.cut(place) for place in cut_places(0, 10, 3))
    honest: dict[str, Any] = {"actor": party_of("prover"), "dispute": 0, "turn": 0, "data": play.data}
    too_long = cuts[0].model_copy(update={"proof": cuts[0].proof * 8})
    wrong = Partition(cuts=(too_long, cuts[1]), **honest)
    world.advance(play.rules.clock - 1)
    assert refusal_code(world, sign_move(wrong, world.place.identity, key_of("prover")).to_bytes()) == "proof"
    longer = Partition.model_construct(
        kind="partition", cuts=(too_long.model_copy(update={"proof": cuts[0].proof * 17}), cuts[1]), **honest
    )
    assert isinstance(refusal(world, signed_by_force(world, longer)), MalformedError)
    world.advance(1)
    right = Partition(cuts=cuts, **honest)
    assert refusal_code(world, sign_move(right, world.place.identity, key_of("prover")).to_bytes()) == "late"
    play.do("bystander", Timeout, dispute=0)


def test_a_refused_move_costs_no_time_and_the_right_one_is_accepted_after_it(world: LocalWorld) -> None:
    play = Play(world)
    play.post()
    play.contest()
    assert play.refused("prover", Partition, dispute=0, cuts=(RECORDS.cut(0),), data=play.data) == "cuts"
    assert play.dispute().clocks.prover == play.rules.clock
    play.partition()


@pytest.mark.parametrize("lacking", ["manifest", "file", "form"])
def test_a_move_whose_data_is_not_at_the_board_is_refused_until_it_is(world: LocalWorld, lacking: str) -> None:
    board = world.board("prover")
    files: Json = {"kind": "manifest", "version": 1, "files": {"a.bin": digest("blob", b"a")}}
    manifest = encode(files if lacking != "form" else {"files": {}})
    if lacking != "manifest":
        board.put(manifest)
    move = a_claim(world).model_copy(update={"statement": digest("blob", manifest)})
    data = sign_move(move, world.place.identity, key_of("prover")).to_bytes()
    assert refusal_code(world, data) == "data"
    if lacking != "form":
        board.put(manifest)
        board.put(b"a")
        world.place.take(data)


def test_answers_in_a_dispute_need_their_data_at_the_board_too(world: LocalWorld) -> None:
    play = Play(world)
    play.post()
    play.contest()
    nowhere = digest("blob", b"withheld")
    while play.dispute().phase is not Phase.RULING:
        if play.dispute().phase is Phase.CHOOSE:
            play.choose()
            continue
        answer = play.partition if play.dispute().phase is Phase.PARTITION else play.open_leaf
        honest, play.data = play.data, nowhere
        with pytest.raises(RuleError, match="not at the board"):
            answer()
        play.data = honest
        answer()
    assert {entry.move.kind for entry in play.entries} >= {"partition", "descend", "reveal"}


def test_a_move_that_the_purse_cannot_pay_is_refused_until_it_can(world: LocalWorld) -> None:
    poor = SigningKey(bytes(32))
    move = a_claim(world).model_copy(update={"actor": poor.public})
    data = sign_move(move, world.place.identity, poor).to_bytes()
    assert refusal_code(world, data) == "funds"
    world.place.grant(poor.public, world.place.rules.prover_bond - 1)
    assert refusal_code(world, data) == "funds"
    assert world.place.grant(poor.public, 1) == world.place.rules.prover_bond
    world.place.take(data)
    assert world.place.purse(poor.public) == 0


def test_a_move_that_pays_nothing_needs_no_purse(world: LocalWorld) -> None:
    play = Play(world)
    play.post()
    world.advance(play.rules.challenge_window)
    stranger = SigningKey(bytes(32))
    move = Finalise(actor=stranger.public, claim=0)
    world.place.take(sign_move(move, world.place.identity, stranger).to_bytes())


def refusal_code(world: LocalWorld, data: bytes) -> str:
    error = refusal(world, data)
    assert isinstance(error, RuleError), repr(error)
    return error.code


def signed_by_force(world: LocalWorld, move: Post | Partition | Concede) -> bytes:
    """A signature over a move that no reader takes."""
    text, key, nonce = move.to_bytes().decode(), key_of("prover"), "00" * 16
    signature = key.sign(MOVE_DOMAIN + signed_body(world.place.identity, nonce, text))
    document = {"key": key.public, "move": text, "nonce": nonce, "signature": signature}
    return encode({"coordinator": world.place.identity, **document})
