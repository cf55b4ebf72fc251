"""G6 and a lying coordinator: whoever saw an entry or holds a receipt finds out, and no client hangs or moves twice."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.responses import Response

from tallystick.core.canonical_json import decode, encode
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, RuleError, UnavailableError, UsageError
from tallystick.core.http.client import RequestLimits
from tallystick.core.http.server import served
from tallystick.disputes.coordinators.local.client import RemoteCoordinator
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.coordinators.local.server import create_app
from tallystick.disputes.coordinators.local.signed import (
    MOVE_DOMAIN,
    Accepted,
    ChainEntry,
    MoveReceipt,
    sign_entry,
    sign_move,
    signed_body,
)
from tallystick.disputes.game.moves import Choose, Timeout
from tallystick.disputes.parties.player import DueMoves, Player, Polling, Workspace
from tallystick.formats.signing import SigningKey
from tests.disputes.coordinators.conformance import Play
from tests.disputes.coordinators.local.keys import LocalWorld, key_of, party_of
from tests.disputes.coordinators.local.script import a_claim, a_contest, rules, take_next
from tests.support.raw_servers import answer, drip, raw_server

Connect = Callable[..., RemoteCoordinator]


def test_a_client_follows_a_whole_dispute_and_checks_every_entry(world: LocalWorld, remote: Connect) -> None:
    place = remote()
    while take_next(world):
        assert place.chain() == world.place.chain()
    assert list(place.entries()) == list(world.place.entries())
    assert place.account(party_of("prover")).purse == world.place.purse(party_of("prover"))


def test_a_client_that_expects_another_coordinator_is_told(url: str, world: LocalWorld, remote: Connect) -> None:
    with pytest.raises(ProofError, match="this is coordinator"):
        RemoteCoordinator(url, digest("coordinator", b"another"))
    assert remote(url, identity=world.place.identity).rules == rules()
    with pytest.raises(ProofError, match="this is coordinator"):
        RemoteCoordinator(f"{url}#{digest('coordinator', b'another')}")
    assert remote(f"{url}#{world.place.identity}").rules == rules()


@pytest.fixture
def played(world: LocalWorld) -> LocalWorld:
    """A coordinator with a claim and a dispute."""
    for _ in range(5):
        take_next(world)
    return world


def forge(path: Path, number: int, accepted: Accepted) -> None:
    """Write another entry over one in the database, as whoever holds the coordinator's key can."""
    with closing(sqlite3.connect(path)) as database:
        values = (accepted.signed.to_bytes(), accepted.receipt.to_bytes(), accepted.signed.identity, number)
        database.execute("update entries set signed = ?, receipt = ?, move = ? where number = ?", values)
        database.commit()


def rewritten(world: LocalWorld, time: int) -> Accepted:
    """The last entry with another time, signed anew and well."""
    last = world.place.accepted(4, 1, 1)[0]
    entry = last.receipt.entry.model_copy(update={"time": time})
    return Accepted(receipt=sign_entry(entry, key_of("coordinator")), signed=last.signed)


def test_a_coordinator_that_rewrites_an_entry_is_found_out_by_whoever_saw_it(
    played: LocalWorld, remote: Connect, tmp_path: Path
) -> None:
    reader, newcomer = remote(), remote()
    reader.chain()
    forge(tmp_path / "coordinator.db", 4, rewritten(played, played.clock() + 7))
    with pytest.raises(ProofError, match="not the one that the coordinator showed before"):
        reader.entries()
    assert newcomer.entries()[4].time == played.clock() + 7


def test_a_coordinator_that_forgets_an_entry_is_found_out_by_whoever_saw_it(
    played: LocalWorld, remote: Connect, tmp_path: Path
) -> None:
    reader = remote()
    reader.chain()
    with closing(sqlite3.connect(tmp_path / "coordinator.db")) as database:
        database.execute("delete from entries where number = 4")
        database.commit()
    with pytest.raises(ProofError, match="not the one that the coordinator showed before"):
        reader.entries()
    assert len(remote().entries()) == 4


def test_a_receipt_is_evidence_against_a_coordinator_that_lets_the_move_fall(
    world: LocalWorld, remote: Connect, tmp_path: Path
) -> None:
    kept = tmp_path / "receipts.jsonl"
    place = remote(receipts=kept)
    place.connect(key_of("prover")).submit(a_claim(world))
    assert len(kept.read_bytes().splitlines()) == 1
    with closing(sqlite3.connect(tmp_path / "coordinator.db")) as database:
        database.execute("delete from entries")
        database.commit()
    fresh = LocalCoordinator.open(tmp_path / "coordinator.db", key_of("coordinator"), world.clock)
    with closing(fresh), served(create_app(fresh)) as url:
        after_restart = remote(url, receipts=kept)
        with pytest.raises(ProofError, match="shows 0 entries, and signed a receipt for entry 0"):
            after_restart.entries()
        fresh.take(sign_move(a_claim(world), fresh.identity, key_of("prover")).to_bytes())
        with pytest.raises(ProofError, match="signed a receipt for another move"):
            after_restart.entries()
        assert len(remote(url).entries()) == 1


def test_receipts_agree_with_an_honest_coordinator_after_a_restart(
    world: LocalWorld, remote: Connect, tmp_path: Path
) -> None:
    kept = tmp_path / "receipts.jsonl"
    for move, name in ((a_claim(world), "prover"), (None, "challenger")):
        remote(receipts=kept).connect(key_of(name)).submit(move or a_contest(world))
    with kept.open("ab") as file:
        file.write(b'{"entry":')  # what a crash leaves
    assert len(remote(receipts=kept).entries()) == 2
    assert len(kept.read_bytes().splitlines()) == 2


def test_receipts_of_another_coordinator_or_forged_ones_are_not_taken(
    world: LocalWorld, remote: Connect, tmp_path: Path
) -> None:
    kept = tmp_path / "receipts.jsonl"
    remote(receipts=kept).connect(key_of("prover")).submit(a_claim(world))
    receipt = MoveReceipt.from_bytes(kept.read_bytes().rstrip(), "receipt")
    foreign = receipt.entry.model_copy(update={"coordinator": digest("coordinator", b"another")})
    kept.write_bytes(sign_entry(foreign, key_of("coordinator")).to_bytes() + b"\n")
    with pytest.raises(MalformedError, match="receipts of another coordinator"):
        remote(receipts=kept)
    kept.write_bytes(sign_entry(receipt.entry, key_of("prover")).to_bytes() + b"\n")
    with pytest.raises(ProofError):
        remote(receipts=kept)


ENTRY_LIES: dict[str, tuple[str, dict[str, object]]] = {
    "another time": ("another move", {"time": 1}),
    "another number": ("chain", {"number": 3}),
    "another predecessor": ("chain", {"previous": digest("entry", b"x")}),
    "another coordinator": ("chain", {"coordinator": digest("coordinator", b"x")}),
}


@pytest.mark.parametrize("change", [lie[1] for lie in ENTRY_LIES.values()], ids=ENTRY_LIES.keys())
def test_an_entry_that_does_not_fit_the_chain_is_refused(
    played: LocalWorld, remote: Connect, tmp_path: Path, change: dict[str, object]
) -> None:
    last = played.place.accepted(4, 1, 1)[0]
    entry = last.receipt.entry.model_copy(update=change)
    forge(
        tmp_path / "coordinator.db",
        4,
        Accepted(receipt=sign_entry(entry, key_of("coordinator")), signed=last.signed),
    )
    with pytest.raises(ProofError, match="entry 4: the chain"):
        remote().entries()


def test_a_coordinator_cannot_move_for_a_party(played: LocalWorld, remote: Connect, tmp_path: Path) -> None:
    last = played.place.accepted(4, 1, 1)[0]
    move = a_contest(played).model_copy(update={"low": 5})
    for key in ("coordinator", "challenger"):
        signed = sign_move(move, played.place.identity, key_of(key))
        entry = last.receipt.entry.model_copy(update={"move": signed.identity})
        forge(
            tmp_path / "coordinator.db",
            4,
            Accepted(receipt=sign_entry(entry, key_of("coordinator")), signed=signed),
        )
        if key == "coordinator":
            with pytest.raises(ProofError, match="signed by another key than its actor's"):
                remote().entries()
    assert remote().chain().state.disputes[0].low == 5  # the party itself can


def test_an_entry_under_another_key_than_the_coordinators_is_refused(
    played: LocalWorld, remote: Connect, tmp_path: Path
) -> None:
    last = played.place.accepted(4, 1, 1)[0]
    forge(
        tmp_path / "coordinator.db",
        4,
        Accepted(receipt=sign_entry(last.receipt.entry, key_of("prover")), signed=last.signed),
    )
    with pytest.raises(ProofError, match="the signature is not one of this key"):
        remote().entries()
    forge(tmp_path / "coordinator.db", 4, last)
    assert len(remote().entries()) == 5


@pytest.mark.parametrize("lie", ["signature", "coordinator"])
def test_an_entry_whose_move_was_not_signed_for_this_coordinator_is_refused(
    played: LocalWorld, remote: Connect, tmp_path: Path, lie: str
) -> None:
    last = played.place.accepted(4, 1, 1)[0]
    lies = {
        "signature": last.signed.model_copy(update={"signature": key_of("challenger").sign(b"another")}),
        "coordinator": sign_move(a_contest(played), digest("coordinator", b"another"), key_of("challenger")),
    }
    entry = last.receipt.entry.model_copy(update={"move": lies[lie].identity})
    forge(
        tmp_path / "coordinator.db",
        4,
        Accepted(receipt=sign_entry(entry, key_of("coordinator")), signed=lies[lie]),
    )
    with pytest.raises(ProofError, match=r"signature is not one|signed for another coordinator"):
        remote().entries()


def test_a_coordinator_that_takes_what_its_rules_refuse_is_found_out(
    played: LocalWorld, remote: Connect, tmp_path: Path
) -> None:
    signed = sign_move(Timeout(actor=party_of("challenger"), dispute=0), played.place.identity, key_of("challenger"))
    last = played.place.accepted(4, 1, 1)[0].receipt.entry
    entry = ChainEntry(
        coordinator=last.coordinator, move=signed.identity, number=5, previous=last.identity, time=last.time
    )
    with closing(sqlite3.connect(tmp_path / "coordinator.db")) as database:
        receipt = sign_entry(entry, key_of("coordinator")).to_bytes()
        values = (5, signed.identity, signed.to_bytes(), receipt)
        database.execute("insert into entries (number, move, signed, receipt) values (?, ?, ?, ?)", values)
        database.commit()
    with pytest.raises(ProofError, match="accepted what its rules refuse: the party to move still has time"):
        remote().entries()


Reply = Callable[[bytes], bytes]


SERVERS: dict[str, Callable[[socket.socket], None]] = {
    "says nothing": lambda connection: time.sleep(1),
    "hangs up": lambda connection: None,
    "drips headers": drip,
    "drips a body": lambda connection: drip(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"),
    "is another program": answer(b"<html>hello</html>"),
    "breaks off": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{}"),
    "answers without end": lambda connection: connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 2_000_000
    ),
    "fails": answer(b"oops", b"500 Internal Server Error"),
    "redirects": answer(b"", b"302 Found\r\nLocation: http://127.0.0.1:1/"),
    "says something odd": answer(b'{"code":[1],"detail":{}}', b"409 Conflict"),
    "is no HTTP": lambda connection: connection.sendall(b"220 mail ready\r\n"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reply", SERVERS.values(), ids=SERVERS.keys())
def test_a_client_never_hangs_and_never_crashes(reply: Callable[[socket.socket], None]) -> None:
    effort = RequestLimits(seconds=0.3, attempts=2, pause=0.01, bytes_per_second=1 << 24)
    with raw_server(reply) as url, pytest.raises((UnavailableError, MalformedError)):
        RemoteCoordinator(url, effort=effort)


def test_nobody_there_is_one_clear_line() -> None:
    with pytest.raises(UnavailableError, match="nothing answers there"):
        RemoteCoordinator("http://127.0.0.1:1", effort=RequestLimits(seconds=1, attempts=99, pause=0.01))
    with pytest.raises(UsageError, match="no URL of an HTTP server"):
        RemoteCoordinator("ftp://127.0.0.1")


def test_a_move_whose_answer_is_lost_is_sent_again_and_made_once(
    world: LocalWorld, remote: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer never arrives; the second is the receipt of the first."""
    place, calls = remote(), []
    take = LocalCoordinator.take

    def losing(self: LocalCoordinator, data: bytes) -> MoveReceipt:
        receipt = take(self, data)
        calls.append(data)
        if len(calls) == 1:
            raise UnavailableError("the answer is lost")
        return receipt

    monkeypatch.setattr(LocalCoordinator, "take", losing)
    place.connect(key_of("prover")).submit(a_claim(world))
    assert calls == [calls[0]] * 2
    assert len(place.entries()) == 1


def test_a_move_whose_answers_are_all_lost_is_reported_as_unknown(
    world: LocalWorld, remote: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, take = remote(), LocalCoordinator.take

    def losing(self: LocalCoordinator, data: bytes) -> MoveReceipt:
        take(self, data)
        raise UnavailableError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(LocalCoordinator, "take", losing)
        with pytest.raises(UnavailableError, match="no answer after 2 attempts"):
            place.connect(key_of("prover")).submit(a_claim(world))
    assert len(place.entries()) == 1


def test_a_receipt_for_another_move_is_refused(
    world: LocalWorld, remote: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, take, first = remote(), LocalCoordinator.take, []

    def mixing_up(self: LocalCoordinator, data: bytes) -> MoveReceipt:
        first.append(take(self, data))
        return first[0]

    monkeypatch.setattr(LocalCoordinator, "take", mixing_up)
    place.connect(key_of("prover")).submit(a_claim(world))
    with pytest.raises(ProofError, match="for another move"):
        place.connect(key_of("prover")).submit(a_claim(world))


def test_a_receipt_that_the_coordinators_key_did_not_sign_is_refused(
    world: LocalWorld, remote: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, take = remote(), LocalCoordinator.take

    def deniably(self: LocalCoordinator, data: bytes) -> MoveReceipt:
        return sign_entry(take(self, data).entry, key_of("prover"))

    with monkeypatch.context() as patch:
        patch.setattr(LocalCoordinator, "take", deniably)
        with pytest.raises(ProofError, match="not one of this key"):
            place.connect(key_of("prover")).submit(a_claim(world))
    place.connect(key_of("prover")).submit(a_claim(world))


def test_what_the_board_refuses_is_the_partys_mistake(world: LocalWorld, remote: Connect) -> None:
    stranger = SigningKey(bytes(32))
    with pytest.raises(UsageError, match="only for parties"):
        remote().board(stranger).put(b"spam")
    world.place.grant(stranger.public, 1)
    remote().board(stranger).put(b"spam")


def test_refusals_arrive_as_the_errors_of_the_game(world: LocalWorld, remote: Connect) -> None:
    play = Play(world)
    play.post()
    play.contest()
    place = remote().connect(key_of("challenger"))
    with pytest.raises(RuleError) as caught:
        place.submit(Choose(actor=place.party, dispute=0, turn=0, child=0))
    assert (caught.value.code, str(caught.value)) == ("phase", "no choose while the dispute is at partition")


def test_blobs_travel_through_the_client_and_are_checked(
    world: LocalWorld, remote: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, data = remote().board(key_of("prover")), bytes(3_000_000)
    name = board.put(data)
    assert board.put(data) == name
    assert remote().board(key_of("challenger")).get(name) == data
    with pytest.raises(UnavailableError, match="not at the board"):
        board.get(digest("blob", b"nothing"))
    monkeypatch.setattr(type(world.place.blobs), "pieces", lambda *_: iter([bytes(2_999_999), b"x"]))
    with pytest.raises(UnavailableError, match="other bytes"):
        board.get(name)


def test_eight_clients_at_once_all_get_their_moves_in(url: str, world: LocalWorld, remote: Connect) -> None:
    clients, moves = 8, 5
    claim = a_claim(world)

    def post_all(place: RemoteCoordinator) -> None:
        connection = place.connect(key_of("prover"))
        for _ in range(moves):
            connection.submit(claim)
            connection.entries()

    places = [remote() for _ in range(clients)]
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(post_all, places))
    books = [place.chain() for place in places]
    assert all(chain == world.place.chain() for chain in books)
    assert books[0].count == clients * moves


def test_one_client_can_be_shared_by_threads(world: LocalWorld, remote: Connect) -> None:
    place, claim = remote(), a_claim(world)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: place.connect(key_of("prover")).submit(claim), range(8)))
    assert len(place.entries()) == 8


class Proxy:
    """An application before a coordinator's, which answers below `path` with a page of its own while it has one."""

    def __init__(self, world: LocalWorld) -> None:
        self.behind = create_app(world.place)
        self.page: bytes | None = None
        self.path = "/"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_open = self.page is None or not scope.get("path", "").startswith(self.path)
        await (self.behind if is_open else Response(self.page))(scope, receive, send)


@pytest.fixture
def proxy(world: LocalWorld) -> Proxy:
    return Proxy(world)


@pytest.fixture
def beyond(proxy: Proxy) -> Iterator[str]:
    with served(proxy) as url:
        yield url


ASKED: dict[str, Callable[[RemoteCoordinator, LocalWorld], object]] = {
    "charter": lambda place, _: RemoteCoordinator(place._http.url),
    "time": lambda place, _: place.now(),
    "entries": lambda place, _: place.entries(),
    "move": lambda place, world: place.make(a_contest(world), key_of("challenger")),
    "put": lambda place, _: place.put(b"an answer", key_of("prover")),
    "get": lambda place, _: place.get(digest("blob", b"nothing")),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_a_proxys_page_is_nobodys_answer_and_no_lie_of_the_coordinator(
    world: LocalWorld, proxy: Proxy, beyond: str, remote: Connect, asked: Any
) -> None:
    place = remote(beyond)
    place.make(a_claim(world), key_of("prover"))
    place.chain()
    for page in (b"", b"<html>maintenance</html>", b"{}", b"[" * 5000):
        proxy.page = page
        with pytest.raises(UnavailableError):
            asked(place, world)
    proxy.page = None
    assert len(place.entries()) == 1
    assert place.get(place.put(b"an answer", key_of("prover"))) == b"an answer"
    place.make(a_contest(world), key_of("challenger"))
    assert len(place.entries()) == 2


def test_a_program_waits_until_a_proxys_page_goes_away(
    world: LocalWorld, proxy: Proxy, beyond: str, remote: Connect, tmp_path: Path
) -> None:
    said, slept, place = list[str](), list[float](), remote(beyond)
    place.make(a_claim(world), key_of("prover"))
    proxy.path = "/v1/entries"

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        proxy.page = b"<html>maintenance</html>" if len(slept) < 3 else None

    with Workspace(tmp_path / "keeper") as workspace:
        player = Player(place.connect(key_of("prover")), workspace, (DueMoves(),), say=said.append)
        player.run(lambda _: len(slept) >= 3, Polling(0.1, sleep))
    assert len(said) == 2
    assert "no answer of a coordinator" in said[0]
    assert said[1] == "the coordinator answers again"


def test_an_entry_of_the_coordinators_that_is_no_move_is_its_lie(
    played: LocalWorld, remote: Connect, tmp_path: Path
) -> None:
    last, key, text = played.place.accepted(4, 1, 1)[0], key_of("challenger"), '{"kind":"win"}'
    signature = key.sign(MOVE_DOMAIN + signed_body(played.place.identity, last.signed.nonce, text))
    signed = last.signed.model_copy(update={"move": text, "signature": signature})
    entry = last.receipt.entry.model_copy(update={"move": signed.identity})
    forge(tmp_path / "coordinator.db", 4, Accepted(receipt=sign_entry(entry, key_of("coordinator")), signed=signed))
    with pytest.raises(ProofError, match="entry 4"):
        remote().entries()


def test_an_answer_that_is_no_number_is_not_believed(remote: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    place = remote()
    for body in (b"[]", b'{"time":-1}', b'{"time":true}', b'{"time":"now"}', b"{}"):
        assert decode(encode(decode(body, "body")), "body") is not None
        monkeypatch.setattr(place, "_get", lambda *_, body=body: body)
        with pytest.raises(UnavailableError):
            place.now()
