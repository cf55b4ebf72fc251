"""The HTTP interface: what it answers, what it refuses and with which status, and that nothing makes it fail."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from tallystick.core.canonical_json import decode, encode
from tallystick.core.digests import digest
from tallystick.disputes.coordinators.local.board import BlobStore, Quotas
from tallystick.disputes.coordinators.local.signed import (
    MOVE_DOMAIN,
    SIGNED_MOVE_BYTES_MAX,
    Accepted,
    MoveReceipt,
    put_message,
    sign_move,
    signed_body,
)
from tallystick.disputes.game.moves import Choose, Partition
from tallystick.formats.signing import SigningKey
from tests.disputes.coordinators.conformance import RECORDS, Play
from tests.disputes.coordinators.local.keys import LocalWorld, key_of, party_of
from tests.disputes.coordinators.local.script import a_claim, take_next

FUZZ_SEED = 20261
FUZZ_REQUESTS = 600


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as client:
        yield client


def posted(http: httpx.Client, data: bytes) -> httpx.Response:
    return http.post("/v1/moves", content=data)


def code_of(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    problem = decode(response.content, "problem")
    assert isinstance(problem, dict)
    assert problem["status"] == response.status_code
    return response.status_code, str(problem["code"])


def claim_bytes(world: LocalWorld, name: str = "prover", **changes: Any) -> bytes:
    move = a_claim(world).model_copy(update=changes)
    return sign_move(move, world.place.identity, key_of(name)).to_bytes()


def test_rules_time_entries_and_receipts_are_what_the_coordinator_says(http: httpx.Client, world: LocalWorld) -> None:
    assert http.get("/v1/rules").content == world.place.charter.to_bytes()
    receipt = MoveReceipt.from_bytes(posted(http, claim_bytes(world)).content, "receipt")
    receipt.check(world.place.charter)
    lines = http.get("/v1/entries").content.splitlines()
    assert [Accepted.from_bytes(line, "entry").receipt for line in lines] == [receipt]
    assert http.get("/v1/entries", params={"start": 1}).content == b""
    told = http.get("/v1/time").json()
    assert told == {"entries": 1, "head": receipt.entry.identity, "time": world.clock()}


def test_a_dispute_and_an_account_can_be_read(http: httpx.Client, world: LocalWorld) -> None:
    while take_next(world):
        pass
    dispute = http.get("/v1/disputes/0").json()
    assert (dispute["phase"], dispute["fault"], dispute["challenger"]) == ("settled", "prover", party_of("challenger"))
    assert code_of(http.get("/v1/disputes/1")) == (404, "absent")
    assert code_of(http.get("/v1/disputes/-1")) == (400, "malformed")
    account = http.get(f"/v1/accounts/{party_of('challenger')}").json()
    owed = world.place.state.owed[party_of("challenger")]
    assert account["owed"] == [{"amount": each.amount, "ripe": each.ripe} for each in owed]
    assert (account["purse"], account["withdrawable"]) == (world.place.purse(party_of("challenger")), 0)
    assert code_of(http.get("/v1/accounts/somebody")) == (400, "malformed")


def test_every_refusal_has_its_status_and_code(http: httpx.Client, world: LocalWorld) -> None:
    honest = claim_bytes(world)
    forged = json.dumps({**json.loads(honest), "signature": "00" * 64}, separators=(",", ":"), sort_keys=True).encode()
    stranger = SigningKey(bytes(32))
    unpaid = sign_move(
        a_claim(world).model_copy(update={"actor": stranger.public}), world.place.identity, stranger
    ).to_bytes()
    elsewhere = sign_move(a_claim(world), digest("coordinator", b"another"), key_of("prover")).to_bytes()
    assert code_of(posted(http, b"{}")) == (400, "malformed")
    assert code_of(posted(http, forged)) == (401, "signature")
    assert code_of(posted(http, claim_bytes(world, "challenger"))) == (403, "actor")
    assert code_of(posted(http, elsewhere)) == (409, "coordinator")
    assert code_of(posted(http, unpaid)) == (409, "funds")
    assert code_of(posted(http, b"x" * (SIGNED_MOVE_BYTES_MAX + 1))) == (413, "size")
    assert code_of(posted(http, claim_bytes(world, value=1))) == (422, "value")
    assert code_of(posted(http, claim_bytes(world, statement=digest("blob", b"withheld")))) == (422, "data")
    assert code_of(http.get("/v2/moves")) == (404, "route")
    assert code_of(http.delete("/v1/moves")) == (405, "route")
    assert world.place.chain().count == 0
    assert posted(http, honest).status_code == 200


def test_game_refusals_come_with_the_games_code(http: httpx.Client, world: LocalWorld) -> None:
    play = Play(world)
    play.post()
    play.contest()

    def sent(kind: type[Any], **fields: Any) -> tuple[int, str]:
        move = kind(dispute=0, **{"turn": 0, **fields})
        name = next(each for each in ("prover", "challenger") if party_of(each) == move.actor)
        return code_of(posted(http, sign_move(move, world.place.identity, key_of(name)).to_bytes()))

    cut = RECORDS.cut(0)
    assert sent(Choose, actor=party_of("challenger"), child=0) == (409, "phase")
    assert sent(Partition, actor=party_of("prover"), cuts=(cut,), data=play.data) == (422, "cuts")
    assert sent(Partition, actor=party_of("prover"), cuts=(cut, cut), data=play.data) == (422, "proof")
    assert sent(Partition, actor=party_of("prover"), cuts=(cut, cut), data=play.data, turn=3) == (409, "turn")


def test_a_slow_body_is_cut_off_and_the_server_goes_on(url: str, http: httpx.Client, world: LocalWorld) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(b"POST /v1/moves HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = slow.recv(4096)
    assert b"408" in answer.split(b"\r\n")[0]
    assert posted(http, claim_bytes(world)).status_code == 200


@pytest.mark.parametrize("length", ["1e3", "-5", "99999999999999999999", "600000"])
def test_a_false_length_is_refused_before_the_body_is_read(url: str, length: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(f"POST /v1/moves HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
        status = raw.recv(4096).split(b" ")[1]
    assert status in (b"400", b"413")


def put(http: httpx.Client, world: LocalWorld, data: bytes, name: str = "prover", **changes: str) -> httpx.Response:
    """Put a blob as an honest client does, with some of what it says changed."""
    blob = changes.get("blob", digest("blob", data))
    message = put_message(world.place.identity, digest("blob", data), len(data))
    headers = {"Tally-Key": party_of(name), "Tally-Signature": key_of(name).sign(message)}
    return http.put(f"/v1/blobs/{blob}", content=data, headers={**headers, **changes.get("headers", {})})  # type: ignore[dict-item]


def test_blobs_are_kept_given_back_and_counted(http: httpx.Client, world: LocalWorld) -> None:
    data = bytes(range(256)) * 20_000
    name = digest("blob", data)
    assert code_of(http.get(f"/v1/blobs/{name}")) == (404, "absent")
    assert http.head(f"/v1/blobs/{name}").status_code == 404
    assert [put(http, world, data).status_code for _ in range(2)] == [204, 204]
    assert http.get(f"/v1/blobs/{name}").content == data
    assert http.head(f"/v1/blobs/{name}").headers["content-length"] == str(len(data))
    assert http.get(f"/v1/accounts/{party_of('prover')}").json()["blobs"] == len(data)


def test_blobs_are_refused_unless_signed_by_somebody_with_standing(http: httpx.Client, world: LocalWorld) -> None:
    data, stranger = b"blob", SigningKey(bytes(32))
    assert code_of(http.put(f"/v1/blobs/{digest('blob', data)}", content=data)) == (401, "signature")
    assert code_of(put(http, world, data, headers={"Tally-Key": party_of("challenger")})) == (401, "signature")  # type: ignore[arg-type]
    assert code_of(put(http, world, data, blob=digest("blob", b"other"))) == (401, "signature")
    signature = stranger.sign(put_message(world.place.identity, digest("blob", data), len(data)))
    named = {"Tally-Key": stranger.public, "Tally-Signature": signature}
    assert code_of(put(http, world, data, headers=named)) == (403, "standing")  # type: ignore[arg-type]
    nobody = {"Tally-Key": "01" + 62 * "0", "Tally-Signature": "01" + 126 * "0"}
    assert code_of(put(http, world, data, headers=nobody)) == (401, "signature")  # type: ignore[arg-type]
    assert code_of(http.put("/v1/blobs/notadigest", content=data)) == (400, "malformed")
    assert world.place.blobs.held_for(party_of("prover")) == 0
    assert put(http, world, data).status_code == 204


def test_a_blob_that_is_not_what_its_digest_names_is_refused(http: httpx.Client, world: LocalWorld) -> None:
    name = digest("blob", b"said")
    message = put_message(world.place.identity, name, 4)
    headers = {"Tally-Key": party_of("prover"), "Tally-Signature": key_of("prover").sign(message)}
    assert code_of(http.put(f"/v1/blobs/{name}", content=b"done", headers=headers)) == (422, "digest")
    assert world.place.blobs.missing([name]) == [name]
    assert http.put(f"/v1/blobs/{name}", content=b"said", headers=headers).status_code == 204


def test_a_blob_of_unsaid_or_excessive_size_is_refused_unread(http: httpx.Client, world: LocalWorld) -> None:
    world.place.blobs.quotas = Quotas(blob=1000, party=1500)
    assert code_of(http.put(f"/v1/blobs/{digest('blob', b'')}", content=iter([b"x"]))) == (411, "malformed")
    assert code_of(put(http, world, b"a" * 1001)) == (413, "size")
    assert put(http, world, b"a" * 1000).status_code == 204
    assert code_of(put(http, world, b"b" * 501)) == (413, "quota")
    assert put(http, world, b"b" * 500).status_code == 204


def test_a_failure_of_our_own_is_told_and_leaves_no_trace(
    http: httpx.Client, world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = claim_bytes(world)

    def fail(*_: object) -> None:
        raise AssertionError("a mistake")

    with monkeypatch.context() as patch:
        patch.setattr(BlobStore, "check_whole", fail)
        assert code_of(posted(http, data)) == (500, "failed")
    assert world.place.chain().count == 0
    assert posted(http, data).status_code == 200


def test_a_move_that_would_break_the_books_is_not_accepted(
    http: httpx.Client, world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, path = claim_bytes(world), "tallystick.disputes.coordinators.local.signed.broken"
    with monkeypatch.context() as patch:
        patch.setattr(path, lambda _: ["money appeared"])
        assert code_of(posted(http, data)) == (500, "failed")
    assert world.place.chain().count == 0
    assert posted(http, data).status_code == 200


def test_whatever_is_posted_gets_a_typed_refusal_and_changes_nothing(http: httpx.Client, world: LocalWorld) -> None:
    play = Play(world)
    play.post()
    play.contest()
    chance, chain = random.Random(FUZZ_SEED), world.place.chain()
    honest = sign_move(a_claim(world), world.place.identity, key_of("prover")).to_bytes()
    statuses = set()
    for _ in range(FUZZ_REQUESTS):
        response = posted(http, chance.choice(MUTATIONS)(chance, honest, world))
        status, _code = code_of(response)
        statuses.add(status)
    assert statuses <= {400, 401, 403, 409, 413, 422}
    assert {400, 401, 403, 409, 422} <= statuses
    assert world.place.chain() == chain
    assert posted(http, honest).status_code == 200


def _flipped(chance: random.Random, honest: bytes, _: LocalWorld) -> bytes:
    data = bytearray(honest)
    for _n in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _cut(chance: random.Random, honest: bytes, _: LocalWorld) -> bytes:
    start, end = sorted(chance.sample(range(len(honest)), 2))
    return honest[:start] + honest[end:]


def _random(chance: random.Random, _: bytes, __: LocalWorld) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 100, 10_000]))


def _field(chance: random.Random, honest: bytes, _: LocalWorld) -> bytes:
    document = json.loads(honest)
    document[chance.choice([*document, "extra"])] = chance.choice(ODD)
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _wrong_move(chance: random.Random, _: bytes, world: LocalWorld) -> bytes:
    """A move that no rule allows, well signed; sometimes with a value of another kind in it."""
    kind = chance.choice(
        ["partition", "partition", "choose", "rule", "unseal", "draw", "tally", "retire", "withdraw", "prove"]
    )
    name = chance.choice(["bystander", "prover"])
    fields: dict[str, Any] = {"actor": party_of(name), "kind": kind}
    more = {"partition": ["turn", "cuts", "data"], "choose": ["turn", "child"], "rule": ["fault", "reason"]}
    more |= {"unseal": ["answer", "salt"], "draw": ["nonce"], "prove": ["evidence"]}
    fields |= {name: GOOD[name] for name in more.get(kind, ())}
    fields |= {} if kind in ("retire", "withdraw") else {"dispute": chance.choice([0, 0, 0, 1, 2**53 - 1])}
    if chance.random() < 0.4:
        fields[chance.choice(list(fields))] = chance.choice(ODD)
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return signed_text(text, world, name)


GOOD: dict[str, Any] = {
    "turn": 0,
    "cuts": [{"leaf": "00" * 32, "proof": ["11" * 32] * 4}] * 2,
    "data": "sha256:" + "00" * 32,
    "child": 1,
    "fault": "prover",
    "reason": "sha256:" + "00" * 32,
    "answer": "prover",
    "salt": "00" * 32,
    "nonce": "00" * 32,
    "evidence": {
        "element": 0,
        "ground": "edge",
        "record": {"inputs": [], "node": 0, "operator": "aten.mul.Tensor", "outputs": []},
        "tensors": [],
    },
}
ODD: list[Any] = [
    None,
    True,
    -1,
    2**53,
    1.5,
    "",
    "x" * 9000,
    [],
    {},
    [[]] * 50,
    {"a": {"b": {}}},
    "\u0000",
    "é",
    10**30,
]
MUTATIONS: list[Callable[[random.Random, bytes, LocalWorld], bytes]] = [_flipped, _cut, _random, _field, _wrong_move]


def signed_text(text: str, world: LocalWorld, name: str) -> bytes:
    key, nonce, identity = key_of(name), "00" * 16, world.place.identity
    signature = key.sign(MOVE_DOMAIN + signed_body(identity, nonce, text))
    document = {"coordinator": identity, "key": key.public, "move": text, "nonce": nonce, "signature": signature}
    return encode(document)


def test_entries_come_in_pages_that_are_never_empty_before_the_end(
    http: httpx.Client, world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(http):
        for _ in range(5):
            posted(http, claim_bytes(world))
        monkeypatch.setattr("tallystick.disputes.coordinators.local.server.PAGE_BYTES", 1000)
        sizes, start = [], 0
        while lines := http.get("/v1/entries", params={"start": start}).content.splitlines():
            sizes.append(len(lines))
            start += len(lines)
        assert (sum(sizes), max(sizes)) == (5, 2)
