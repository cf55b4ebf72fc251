"""What a coordinator keeps free for the honest: room at the board, uploads, and its own time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.digests import digest
from tallystick.core.errors import UsageError
from tallystick.core.http.problems import Problem
from tallystick.core.http.server import AT_ONCE, OF_ONE_OWNER, Uploads, served
from tallystick.disputes.coordinators.local.board import BlobStore, Quotas
from tallystick.disputes.coordinators.local.client import RemoteCoordinator
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.coordinators.local.server import BodyTimeouts, create_app
from tallystick.disputes.coordinators.local.signed import put_message, sign_move
from tallystick.disputes.game.moves import Concede
from tallystick.formats.signing import SigningKey
from tests.disputes.coordinators.conformance import Play
from tests.disputes.coordinators.local.keys import LocalWorld, key_of, set_up
from tests.disputes.coordinators.local.script import a_claim, rules

Connect = Callable[..., RemoteCoordinator]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[LocalWorld]:
    """A coordinator that keeps 20,000 bytes for a party, 30,000 more for a dispute, and 200,000 in all."""
    first = set_up(tmp_path / "coordinator.db", rules())
    first.place.close()
    quotas = Quotas(party=20_000, dispute=30_000, all=200_000)
    with closing(
        LocalCoordinator.open(tmp_path / "coordinator.db", key_of("coordinator"), first.clock, quotas)
    ) as place:
        yield LocalWorld(place, first.clock)


def filled(world: LocalWorld, key: SigningKey) -> int:
    """How many whole thousands of bytes lie at the board for a party that puts a thousand at a time while it may."""
    for number in range(300):
        try:
            world.place.board(key).put(f"{key.public} {world.place.chain().count} {number}".ljust(1000).encode())
        except UsageError as error:
            assert any(line in str(error) for line in ("for this party", "is full"))  # noqa: PT017
            break
    return world.place.blobs.held_for(key.public) // 1000 * 1000


def test_each_dispute_over_its_claims_brings_a_prover_room_of_its_own(small: LocalWorld) -> None:
    play, prover = Play(small), key_of("prover")
    play.post()
    assert filled(small, prover) == 19_000
    play.contest()
    assert filled(small, prover) == 49_000
    play.contest("bystander")
    assert filled(small, prover) == 79_000
    play.do("challenger", Concede, dispute=0)
    assert (filled(small, prover), filled(small, key_of("challenger"))) == (79_000, 20_000)


def test_parties_that_could_not_pay_for_a_claim_leave_half_of_the_board(small: LocalWorld) -> None:
    poor = [SigningKey(bytes([number]) * 32) for number in range(7)]
    for key in poor:
        small.place.grant(key.public, 1)
    assert [filled(small, key) for key in poor] == [20_000] * 5 + [0] * 2
    prover, rich = key_of("prover"), [SigningKey(bytes([number]) * 32) for number in range(10, 14)]
    for key in rich:
        small.place.grant(key.public, small.place.rules.prover_bond)
    assert [filled(small, key) for key in rich[:2]] == [20_000] * 2
    play = Play(small)
    play.post()
    assert [filled(small, key) for key in rich[2:]] == [9_000, 0]
    assert filled(small, prover) == 0
    play.contest()
    assert filled(small, prover) == 49_000
    assert small.place.board(key_of("referee")).put(b"a reason") == digest("blob", b"a reason")


@pytest.fixture
def hasty(world: LocalWorld) -> Iterator[str]:
    """A server that waits 0.3 seconds for a blob whose sender is behind."""
    with served(create_app(world.place, BodyTimeouts(blob=1.5))) as url:
        yield url


def begin_upload(url: str, world: LocalWorld, data: bytes, key: SigningKey) -> socket.socket:
    """Announce a blob, and send nothing of it."""
    host, port = url.removeprefix("http://").split(":")
    name = digest("blob", data)
    signature = key.sign(put_message(world.place.identity, name, len(data)))
    head = f"PUT /v1/blobs/{name} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    begun = socket.create_connection((host, int(port)), timeout=60)
    begun.sendall(f"{head}Tally-Key: {key.public}\r\nTally-Signature: {signature}\r\n\r\n".encode())
    return begun


def statuses(begun: list[socket.socket]) -> list[bytes]:
    return [each.recv(4096).split(b" ")[1] for each in begun]


def test_silent_uploads_of_one_party_hinder_nobody_else_and_are_ended(
    hasty: str, world: LocalWorld, remote: Connect
) -> None:
    with ExitStack() as held:
        silent = [
            held.enter_context(begin_upload(hasty, world, b"never sent %d" % number, key_of("bystander")))
            for number in range(AT_ONCE)
        ]
        name = remote(hasty).put(b"an answer", key_of("prover"))
        assert sorted(statuses(silent)) == [b"408"] * OF_ONE_OWNER + [b"429"] * (AT_ONCE - OF_ONE_OWNER)
    assert world.place.blobs.missing([name]) == []
    assert remote(hasty).put(b"of the same party", key_of("bystander"))


def test_a_slow_upload_that_makes_progress_is_waited_for(hasty: str, world: LocalWorld) -> None:
    data = bytes(5 << 16)
    with begin_upload(hasty, world, data, key_of("prover")) as begun:
        for first in range(0, len(data), 1 << 16):
            time.sleep(0.4)
            begun.sendall(data[first : first + (1 << 16)])
        assert statuses([begun]) == [b"204"]
    with begin_upload(hasty, world, b"stops" * 300_000, key_of("prover")) as begun:
        begun.sendall(b"stops")
        assert statuses([begun]) == [b"408"]


def test_half_of_the_uploads_are_for_parties_with_a_bond() -> None:
    uploads, half = Uploads(), Fraction(1, 2)
    with ExitStack() as held:
        for number in range(AT_ONCE // 2):
            held.enter_context(uploads.one(f"poor {number}", half))
        with pytest.raises(Problem, match="429"), uploads.one("poor", half):
            pass
        for number in range(AT_ONCE // 2):
            held.enter_context(uploads.one(f"prover {number}", Fraction(1)))
        with pytest.raises(Problem, match="429"), uploads.one("prover", Fraction(1)):
            pass
    with uploads.one("poor", half):
        pass


def slowly(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> None:
    """Let a coordinator do something else while it looks at a move's data."""
    check = BlobStore.check_whole

    def looking(self: BlobStore, *told: Any) -> None:
        meanwhile()
        check(self, *told)

    monkeypatch.setattr(BlobStore, "check_whole", looking)


def test_nobody_waits_while_the_data_of_a_move_is_looked_at(world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, done = sign_move(a_claim(world), world.place.identity, key_of("prover")).to_bytes(), list[object]()

    def others() -> None:
        acts = (world.place.chain, lambda: world.board("bystander").put(b"data"))
        threads = [threading.Thread(target=lambda act=act: done.append(act()), daemon=True) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    slowly(monkeypatch, lambda: (others(), done.append("looked at")))
    world.place.take(claim)
    assert done[-1] == "looked at"
    assert len(done) == 3


def test_data_is_looked_at_for_moves_that_the_rules_allow_alone_and_once(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, get, identity = list[str](), BlobStore.get, world.place.identity
    monkeypatch.setattr(BlobStore, "get", lambda self, name: read.append(name) or get(self, name))
    claim, poor = a_claim(world), SigningKey(bytes(32))
    with pytest.raises(Exception, match="the purse holds 0"):
        world.place.take(sign_move(claim.model_copy(update={"actor": poor.public}), identity, poor).to_bytes())
    assert read == []
    for _ in range(3):
        world.place.take(sign_move(claim, identity, key_of("prover")).to_bytes())
    assert len(read) == 1


def test_moves_of_one_party_take_one_thread_of_the_server(
    world: LocalWorld, url: str, remote: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, together, most = a_claim(world), list[int](), list[int]()

    def look() -> None:
        together.append(1)
        most.append(len(together))
        time.sleep(0.05)
        together.pop()

    slowly(monkeypatch, look)
    places = [remote() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda place: place.make(claim, key_of("prover")), places))
    assert most == [1] * 4
