"""A coordinator in a database: it goes on after a restart, two servers cannot fork it, and it keeps its books."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tallystick.core.errors import MalformedError, RuleError, UnavailableError, UsageError
from tallystick.disputes.coordinators.local.board import Quotas
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.coordinators.local.signed import NONCES, hashed, nonce as beacon_nonce, sign_move
from tallystick.disputes.game.moves import Concede, Convene, Draw, Finalise, Withdraw
from tallystick.disputes.game.state import Phase, Status
from tallystick.disputes.parties.player import DueMoves, Player, Workspace
from tallystick.disputes.parties.programs import Clock, play_out
from tallystick.formats.signing import SigningKey
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.conformance import NAMES, Play
from tests.disputes.coordinators.local.founders import postgresql
from tests.disputes.coordinators.local.keys import PURSE, LocalWorld, key_of, party_of, set_up
from tests.disputes.coordinators.local.script import a_claim, rules, take_next


def reopened(path: Path | str, second: int) -> LocalWorld:
    clock = Clock(second)
    return LocalWorld(LocalCoordinator.open(path, key_of("coordinator"), clock), clock)


def test_a_dispute_goes_on_after_a_restart_before_every_move(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    world, moves = set_up(path, rules()), 0
    while take_next(world):
        world.place.close()
        moves += 1
        world = reopened(path, world.clock())
    with closing(world.place):
        assert (moves, world.place.state.disputes[0].fault) == (25, Fault.PROVER)


def test_time_never_goes_back_even_if_the_clock_does(world: LocalWorld, tmp_path: Path) -> None:
    play = Play(world)
    world.advance(1000)
    play.post()
    at = world.place.now()
    world.clock.now -= 500
    assert world.place.now() == at
    play.post()
    assert [entry.time for entry in play.entries] == [at, at]
    world.place.close()
    later = reopened(tmp_path / "coordinator.db", 5)
    with closing(later.place):
        assert later.place.now() == at
        later.advance(2_000_000)
        assert later.place.now() == 2_000_005


def test_a_coordinator_is_not_set_up_twice_in_one_place(tmp_path: Path) -> None:
    world = set_up(tmp_path / "coordinator.db", rules())
    identity = world.place.identity
    world.place.close()
    with pytest.raises(UsageError, match="database already"):
        LocalCoordinator.create(tmp_path / "coordinator.db", rules(), key_of("coordinator"))
    with closing(reopened(tmp_path / "coordinator.db", 0).place) as place:
        assert place.identity == identity


def test_two_coordinators_of_the_same_rules_and_key_have_two_identities(tmp_path: Path) -> None:
    worlds = [set_up(tmp_path / f"{number}.db", rules()) for number in range(2)]
    assert len({world.place.identity for world in worlds}) == 2
    for world in worlds:
        world.place.close()


def test_a_coordinator_needs_its_own_key(tmp_path: Path) -> None:
    set_up(tmp_path / "coordinator.db", rules()).place.close()
    with pytest.raises(UsageError, match="not the key"):
        LocalCoordinator.open(tmp_path / "coordinator.db", key_of("prover"))


def test_a_key_is_made_beside_the_database_and_found_there(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    with closing(LocalCoordinator.create(path, rules())) as place:
        identity = place.identity
    assert (tmp_path / "coordinator.db.key").stat().st_mode & 0o777 == 0o600
    with closing(LocalCoordinator.open(path)) as place:
        assert place.identity == identity


def test_rules_that_name_an_address_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="treasury: a local coordinator"):
        LocalCoordinator.create(tmp_path / "coordinator.db", rules(treasury="0x" + "ab" * 20))
    assert not (tmp_path / "coordinator.db").exists()


def test_rules_with_members_that_nobody_draws_are_refused(tmp_path: Path) -> None:
    """There is no block whose hash could draw them: whoever brought a nonce would choose."""
    some = rules(beacon=None)
    assert some.members
    with pytest.raises(UsageError, match="beacon: members are drawn by a nonce"):
        LocalCoordinator.create(tmp_path / "coordinator.db", some)
    assert not (tmp_path / "coordinator.db").exists()
    for number, fine in enumerate((rules(beacon=party_of("coordinator")), rules(beacon=None, members=()))):
        LocalCoordinator.create(tmp_path / f"{number}.db", fine).close()


def test_what_is_no_coordinators_database_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"no such database; `tally coordinator init`"):
        LocalCoordinator.open(tmp_path / "nowhere.db", key_of("coordinator"))
    assert not (tmp_path / "nowhere.db").exists()
    (tmp_path / "text.db").write_text("this is a text and no database at all" * 100)
    with pytest.raises(UnavailableError, match="damaged, or no database"):
        LocalCoordinator.open(tmp_path / "text.db", key_of("coordinator"))
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as foreign:
        foreign.execute("create table charter (id integer)")
    with pytest.raises((UnavailableError, MalformedError), match="no database of a coordinator"):
        LocalCoordinator.open(tmp_path / "foreign.db", key_of("coordinator"))
    with pytest.raises(UsageError, match="no path or URL"):
        LocalCoordinator.open("nonsense://x", key_of("coordinator"))


DAMAGES: dict[str, str] = {
    "a move exchanged": "update entries set signed = (select signed from entries where number = 1) where number = 2",
    "a move turned": "update entries set signed = cast(replace(cast(signed as text), 'choose', 'Choose') as blob)",
    "a receipt emptied": "update entries set receipt = x'' where number = 3",
    "a move lost": "delete from entries where number = 4",
    "the first move lost": "delete from entries where number = 0",
    "rules changed": "update charter set document = cast(replace(cast(document as text), '200', '900') as blob)",
    "another format": "update charter set format = 2",
    "no charter": "delete from charter",
    "a table lost": "drop table entries",
}


@pytest.mark.parametrize("statement", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_database_is_one_clear_line(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "coordinator.db"
    world = set_up(path, rules())
    while take_next(world):
        pass
    world.place.close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()
    with pytest.raises((UnavailableError, MalformedError), match=r"^coordinator.db: ") as caught:
        LocalCoordinator.open(path, key_of("coordinator"))
    assert "\n" not in str(caught.value)


def test_flipped_bytes_in_the_file_never_pass_for_another_history(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.db"
    world = set_up(path, rules())
    while take_next(world):
        pass
    chain = world.place.chain()
    world.place.close()
    data = path.read_bytes()
    outcomes = set()
    for place in range(20, len(data), len(data) // 60):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        for leftover in tmp_path.glob("*.db-*"):
            leftover.unlink()
        outcomes.add(outcome(path, chain))
    assert outcomes == {"the same", "refused"}


def outcome(path: Path, chain: object) -> str:
    try:
        with closing(LocalCoordinator.open(path, key_of("coordinator"))) as place:
            return "the same" if place.chain() == chain else "another"
    except (UnavailableError, MalformedError, UsageError):
        return "refused"


def test_purses_are_filled_by_grants_and_withdrawals_and_emptied_by_moves(world: LocalWorld) -> None:
    play, bond = Play(world), world.place.rules.prover_bond
    play.post()
    assert world.place.purse(party_of("prover")) == PURSE - bond
    world.advance(play.rules.challenge_window)
    play.do("bystander", Finalise, claim=0)
    assert world.place.purse(party_of("prover")) == PURSE - bond
    world.advance(play.rules.withdrawal_delay)
    play.do("prover", Withdraw)
    assert world.place.purse(party_of("prover")) == PURSE
    assert world.place.grant(party_of("prover"), -PURSE) == 0
    with pytest.raises(UsageError, match="would hold -1"):
        world.place.grant(party_of("prover"), -1)
    assert world.place.purse(party_of("prover")) == 0


def test_money_in_purses_and_in_the_game_is_what_was_granted(world: LocalWorld) -> None:
    while take_next(world):
        total = sum(world.place.purse(party_of(name)) for name in NAMES) + world.place.state.balance
        assert total == PURSE * len(NAMES)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | str]:
    if request.param == "sqlite":
        yield tmp_path / "coordinator.db"
        return
    with postgresql.database() as url:
        yield url


@pytest.fixture
def twins(database: Path | str) -> Iterator[tuple[LocalWorld, LocalWorld]]:
    """Two servers on one database."""
    first = set_up(database, rules())
    second = reopened(database, first.clock())
    with closing(first.place), closing(second.place):
        yield first, second


def test_two_servers_on_one_database_take_turns(twins: tuple[LocalWorld, LocalWorld]) -> None:
    turn = 0
    while take_next(twins[turn % 2]):
        turn += 1
    assert turn == 25
    assert twins[0].place.chain() == twins[1].place.chain()


def test_two_servers_on_one_database_cannot_fork_it(twins: tuple[LocalWorld, LocalWorld]) -> None:
    for world in twins:
        Play(world)
    moves = 12
    together([lambda world=world: post_many(world, moves) for world in twins for _ in range(2)])  # type: ignore[misc]
    books = [world.place.chain() for world in twins]
    assert books[0] == books[1]
    assert (books[0].count, len(books[0].state.claims)) == (4 * moves, 4 * moves)
    assert [entry.number for entry in twins[0].place.entries()] == list(range(4 * moves))


def test_of_two_servers_that_take_the_same_move_one_gives_the_others_receipt(
    twins: tuple[LocalWorld, LocalWorld],
) -> None:
    data = sign_move(a_claim(twins[0]), twins[0].place.identity, key_of("prover")).to_bytes()
    receipts: list[object] = []
    together([lambda world=world: receipts.append(world.place.take(data)) for world in twins * 3])  # type: ignore[misc]
    assert len(receipts) == 6
    assert all(receipt == receipts[0] for receipt in receipts)
    assert twins[1].place.chain().count == 1


def test_one_purse_is_not_spent_twice_at_two_servers(twins: tuple[LocalWorld, LocalWorld]) -> None:
    poor, bond = SigningKey(bytes(32)), rules().prover_bond
    twins[0].place.grant(poor.public, 3 * bond)
    move = a_claim(twins[0]).model_copy(update={"actor": poor.public})
    codes: list[str] = []

    def spend(world: LocalWorld) -> None:
        try:
            world.place.take(sign_move(move, world.place.identity, poor).to_bytes())
            codes.append("taken")
        except RuleError as error:
            codes.append(error.code)

    together([lambda world=world: spend(world) for world in twins * 3])  # type: ignore[misc]
    assert sorted(codes) == ["funds"] * 3 + ["taken"] * 3
    assert twins[1].place.purse(poor.public) == 0


def post_many(world: LocalWorld, count: int) -> None:
    for _ in range(count):
        world.place.take(sign_move(a_claim(world), world.place.identity, key_of("prover")).to_bytes())


def together(acts: list[Callable[[], object]]) -> None:
    """Do all at once, and fail where one fails."""
    errors: list[BaseException] = []

    def run(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001  told to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_full_board_refuses_and_what_it_has_costs_nothing_again(tmp_path: Path) -> None:
    set_up(tmp_path / "coordinator.db", rules()).place.close()
    place = LocalCoordinator.open(
        tmp_path / "coordinator.db", key_of("coordinator"), quotas=Quotas(blob=100, party=150, all=256)
    )
    with closing(place):
        prover, challenger = place.board(key_of("prover")), place.board(key_of("challenger"))
        name = prover.put(b"a" * 100)
        assert prover.put(b"a" * 100) == name == challenger.put(b"a" * 100)
        with pytest.raises(UsageError, match="100 at most"):
            prover.put(b"b" * 101)
        with pytest.raises(UsageError, match="for this party"):
            prover.put(b"b" * 51)
        challenger.put(b"c" * 90)
        with pytest.raises(UsageError, match="is full"):
            challenger.put(b"d" * 11)
        assert (place.blobs.held_for(party_of("prover")), place.blobs.held_for(party_of("challenger"))) == (100, 90)


def test_the_board_keeps_nothing_for_strangers(world: LocalWorld) -> None:
    stranger = SigningKey(bytes(32))
    with pytest.raises(UsageError, match="only for parties"):
        world.place.board(stranger).put(b"spam")
    world.place.grant(stranger.public, 1)
    world.place.board(stranger).put(b"spam")


def test_a_stranger_can_move_and_still_store_nothing(world: LocalWorld) -> None:
    play, stranger = Play(world), SigningKey(bytes(32))
    play.post()
    world.advance(play.rules.challenge_window)
    world.place.connect(stranger).submit(Finalise(actor=stranger.public, claim=0))
    with pytest.raises(UsageError, match="only for parties"):
        world.place.board(stranger).put(b"spam")


def test_a_large_blob_comes_back_in_pieces(world: LocalWorld) -> None:
    data = bytes(range(256)) * 10_000
    name = world.board("prover").put(data)
    pieces = list(world.place.blobs.pieces(name))
    assert (len(pieces), b"".join(pieces)) == (3, data)
    assert world.board("challenger").get(name) == data


def test_a_damaged_blob_is_not_given_out(world: LocalWorld, tmp_path: Path) -> None:
    name = world.board("prover").put(b"data")
    with closing(sqlite3.connect(tmp_path / "coordinator.db")) as database:
        database.execute("update chunks set data = x'00' where name = ?", (name,))
        database.commit()
    with pytest.raises(UnavailableError, match="damaged"):
        world.board("prover").get(name)


def test_the_beacons_nonces_hang_on_a_chain_that_the_charter_names(tmp_path: Path) -> None:
    world = set_up(tmp_path / "coordinator.db", rules(beacon=party_of("coordinator")))
    with closing(world.place) as place:
        play = convened(world)
        nonce = place.next_nonce()
        assert hashed(nonce) == place.charter.beacon
        with pytest.raises(RuleError, match="nonce") as caught:
            place.own().submit(Draw(actor=party_of("coordinator"), dispute=0, nonce="ab" * 32))
        assert caught.value.code == "nonce"
        place.own().submit(Draw(actor=party_of("coordinator"), dispute=0, nonce=nonce))
        assert play.dispute().phase is Phase.COMMITTING
        assert hashed(place.next_nonce()) == nonce


def test_a_used_up_beacon_says_so() -> None:
    key = key_of("coordinator")
    assert len(beacon_nonce(key, "00" * 32, NONCES - 1)) == 64
    with pytest.raises(UnavailableError, match="used up"):
        beacon_nonce(key, "00" * 32, NONCES)


def convened(world: LocalWorld) -> Play:
    """A dispute that waits for the nonce."""
    play = Play(world)
    play.enlist_all() if len(play.rules.members) == 5 else [take_next(world) for _ in range(3)]
    play.post()
    play.contest()
    play.bisect()
    play.do("referee", Convene, dispute=0)
    return play


def test_a_keeper_with_the_coordinators_key_makes_all_due_moves(tmp_path: Path) -> None:
    world = set_up(tmp_path / "coordinator.db", rules(beacon=party_of("coordinator")))
    with closing(world.place) as place, Workspace(tmp_path / "keeper") as workspace:
        play = convened(world)
        keeper = Player(place.own(), workspace, (DueMoves(everybody=True, nonce=place.next_nonce),))
        play_out([keeper], world.clock.advance)
        assert play.dispute().fault is Fault.NOBODY
        assert play.claim().status is Status.FINAL


def test_what_another_process_accepts_is_seen_at_once(twins: tuple[LocalWorld, LocalWorld]) -> None:
    first, second = (Play(world) for world in twins)
    first.post()
    second.contest()
    first.world.connect("challenger").submit(Concede(actor=party_of("challenger"), dispute=0))
    assert second.dispute().fault is Fault.CHALLENGER
