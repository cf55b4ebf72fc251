"""`tally dispute`: open a dispute, list all, show the moves of one, play one side, make the moves that are due.

The moves of members, guardian and planter are in `offices`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tallystick.core.errors import UsageError
from tallystick.tally.cli.dispute_display import accounts_table, claims_table, disputes_table, moves_table, print_table
from tallystick.tally.cli.options import JSON
from tallystick.tally.cli.party_session import (
    BOARD,
    BOARD_KEY,
    BUDGET,
    COORDINATOR,
    DEVICE,
    INITIAL,
    KEY,
    POLL,
    PROFILE,
    WORK,
    PartySession,
    dispute_judge,
    drive,
    party_session,
)
from tallystick.tally.cli.single_moves import pause_left

if TYPE_CHECKING:
    from tallystick.core.canonical_json import Json
    from tallystick.disputes.coordinators.coordinator import Board
    from tallystick.disputes.evidence.judging import DisputeJudge
    from tallystick.disputes.parties.game_view import BoardCache, GameView, PartyAccount
    from tallystick.disputes.parties.history import DisputeEnding, HistoryEntry
    from tallystick.disputes.parties.player import PartyRole


NUMBER = typer.Argument(min=0, help="The dispute's number.")
EXITS: Final = {"won": 0, "lost": 1, "nobody is at fault": 3, "not over": 3}


def open_(
    claim: int = typer.Argument(min=0, help="The claim's number."),
    low: int = typer.Option(0, "--from", min=0, help="The first contested leaf."),
    high: int | None = typer.Option(None, "--to", min=1, help="The leaf after the last contested one."),
    again: bool = typer.Option(False, "--again", help="Even if this party disputes the claim already."),
    coordinator: str = COORDINATOR,
    key: Path = KEY,
    json: bool = JSON,
) -> int:
    """Contest leaves of a claim, all of them by default, with a bond. Prints the dispute's number."""
    from tallystick.disputes.game.moves import Contest
    from tallystick.disputes.parties.connect import connected
    from tallystick.disputes.parties.game_view import GameFollower
    from tallystick.tally.cli.output import show

    with connected(coordinator, key) as connection:
        watch = GameFollower(connection.coordinator)
        view = watch.look()
        if claim >= len(view.state.claims):
            raise UsageError(f"there is no claim {claim}; `tally dispute status` lists them")
        if not again and (number := _open_one(view, claim)) is not None:
            raise UsageError(f"this party contests claim {claim} in dispute {number} already; --again opens another")
        price = view.rules.challenger_bond + view.rules.deposit
        end = view.state.claims[claim].size if high is None else high
        connection.coordinator.submit(Contest(actor=view.party, value=price, claim=claim, low=low, high=end))
        number = _open_one(watch.look(), claim)
        show({"claim": claim, "dispute": number}, "on its way" if number is None else f"dispute {number}", json)
    return 0


def status(coordinator: str = COORDINATOR, json: bool = JSON) -> None:
    """List claims and disputes, with their clocks, and who is owed what."""
    from tallystick.disputes.parties.progress import progress_of, silent_provers, span
    from tallystick.tally.cli.output import print_json, talk

    view, money = _look(coordinator)
    progress = [progress_of(view.state, number, view.now) for number in range(len(view.state.disputes))]
    if json:
        disputes: list[Json] = [each.to_json() for each in progress]
        owed: list[Json] = [each.to_json() for each in money]
        claims = _claims_json(view)
        print_json(
            {
                "accounts": owed,
                "claims": claims,
                "disputes": disputes,
                "paused": pause_left(view),
                "silent": list(silent_provers(view)),
                "time": view.now,
            }
        )
        return
    if (left := pause_left(view)) is not None:
        print(f"paused: no clock runs; over by itself in {span(left)}\n")
    if not view.state.claims:
        talk().print("no claims yet")
        return
    print_table(claims_table(view.state, view.time))
    if progress:
        print()
        print_table(disputes_table(progress, view.now))
    print()
    print_table(accounts_table(money, view.now))
    for line in silent_provers(view):
        print(f"\n{line}")


def show(
    number: int = NUMBER,
    coordinator: str = COORDINATOR,
    board: str | None = BOARD,
    run: Path | None = typer.Option(None, help="The claimed run: its graph says in which module the operator is."),
    json: bool = JSON,
) -> None:
    """Print every move of a dispute, the remaining range, the reason of the ruling, and who moves next."""
    from tallystick.disputes.parties.connect import connected
    from tallystick.disputes.parties.game_view import GameFollower
    from tallystick.disputes.parties.history import dispute_ending, dispute_history
    from tallystick.disputes.parties.progress import progress_of
    from tallystick.tally.cli.output import print_json
    from tallystick.verdicts.words import printable

    with connected(coordinator, board=board) as connection:
        view = GameFollower(connection.coordinator).look()
        _require_dispute(view, number)
        history = dispute_history(connection.coordinator.rules, connection.coordinator.entries(), number)
        reasons, ending = _reasons(history, connection.board), _ending_at(history, connection.board)
    now, module = progress_of(view.state, number, view.now), _module(run, ending)
    if json:
        moves: list[Json] = [each.to_json() for each in history]
        told: dict[str, Json] = {
            "ending": ending.to_json(),
            "moves": moves,
            "now": now.to_json(),
            "reasons": list(reasons),
        }
        if run is not None:
            told["module"] = module
        print_json(told)
        return
    print_table(moves_table(history))
    print(printable(dispute_ending(view.state.disputes[number], number, ending)))
    if module:
        print(f"the operator is in {module}")
    if ending.why:
        print(f"because: {printable(ending.why)}")
    if now.phase != "settled":
        print_table(disputes_table([now], view.now))


def _module(run: Path | None, ending: DisputeEnding) -> str | None:
    """The module of the operator at which a dispute ended, by the graph of the claimed run."""
    if run is None or ending.operator is None:
        return None
    from tallystick.tally.operators import operator_at

    return operator_at(run, *ending.operator).module


def play(
    number: int = NUMBER,
    coordinator: str = COORDINATOR,
    key: Path = KEY,
    run: Path | None = typer.Option(None, help="The prover's run; a challenger needs none."),
    device: str = DEVICE,
    profile: Path | None = PROFILE,
    budget: list[Path] = BUDGET,
    initial: list[Path] = INITIAL,
    board: str | None = BOARD,
    board_key: Path | None = BOARD_KEY,
    work: Path | None = WORK,
    poll: float = POLL,
    json: bool = JSON,
) -> int:
    """Play this party's side of one dispute to its end.

    Exit codes: 0 the other side is at fault, 1 this side is, 3 nobody.
    """
    from tallystick.disputes.parties.game_view import GameFollower
    from tallystick.disputes.parties.programs import only_dispute
    from tallystick.tally.cli.output import show

    judge = dispute_judge(profile, budget, initial=initial)
    with party_session(coordinator, key, board, board_key, work) as session:
        view = GameFollower(session.connection.coordinator).look()
        _require_dispute(view, number)
        side = _side(view, number)
        roles = _roles(session, side, run, device, judge, initial)
        player = session.player(only_dispute(roles, number))
        view = drive(session, player, lambda view: view.state.disputes[number].phase == "settled", poll)
    ending = _ending(view, number, side)
    show({"dispute": number, "ending": ending}, f"dispute {number}: {ending}", json)
    return EXITS[ending]


def settle(number: int = NUMBER, coordinator: str = COORDINATOR, key: Path = KEY, json: bool = JSON) -> int:
    """Make the moves that are due in a dispute and over its claim, and take out what this party is owed."""
    from tallystick.disputes.parties.connect import connected
    from tallystick.disputes.parties.game_view import GameFollower
    from tallystick.disputes.parties.player import DueMoves
    from tallystick.tally.cli.output import print_json, talk

    with connected(coordinator, key) as connection:
        watch, keeper, made = GameFollower(connection.coordinator), DueMoves(everybody=True), dict[str, str]()
        view = watch.look()
        _require_dispute(view, number)
        while task := next((each for each in keeper.about(view, number) if each.key not in made), None):
            move = task.answer()
            assert move is not None  # a due move is known at once
            connection.coordinator.submit(move)
            made[task.key] = move.kind
            if not json:
                print(move.kind, flush=True)
            view = watch.look()
    if json:
        print_json({"dispute": number, "moves": [*made.values()]})
    elif not made:
        talk().print("nothing is due")
    return 0


def _look(coordinator: str) -> tuple[GameView, list[PartyAccount]]:
    from tallystick.disputes.parties.connect import connected
    from tallystick.disputes.parties.game_view import GameFollower, accounts

    with connected(coordinator) as connection:
        place = connection.coordinator
        return GameFollower(place).look(), accounts(place.rules, place.entries())


def _roles(
    session: PartySession, side: str, run: Path | None, device: str, judge: DisputeJudge, initial: Sequence[Path]
) -> tuple[PartyRole, ...]:
    from tallystick.disputes.evidence.doubting import doubter_for
    from tallystick.disputes.evidence.statement import statement_at
    from tallystick.disputes.parties import programs
    from tallystick.disputes.parties.challenger import find_evidence
    from tallystick.disputes.parties.prover import offer_of

    if side == "prover":
        if run is None:
            raise UsageError("--run: the prover answers from its run")
        statement = statement_at(run)
        root = offer_of(run, statement).root
        trace = statement.trace(session.workspace.folder / "trace" / root[:16], device=device)
        return programs.prover(session.cache, session.workspace, lambda _: trace)
    doubter = doubter_for(device=device, budgets=judge.budgets, initial=initial)
    return programs.challenger(
        session.cache, session.workspace, lambda _: doubter, judge, find_evidence, naming=judge.worst
    )


def _side(view: GameView, number: int) -> str:
    dispute = view.state.disputes[number]
    sides = {view.claim_of(dispute).prover: "prover", dispute.challenger: "challenger"}
    if view.party not in sides:
        raise UsageError(f"--key: this party is on neither side of dispute {number}")
    return sides[view.party]


def _ending(view: GameView, number: int, side: str) -> str:
    dispute = view.state.disputes[number]
    if dispute.phase != "settled":
        return "not over"
    if dispute.fault in (None, "nobody"):
        return "nobody is at fault"
    return "lost" if dispute.fault == side else "won"


def _require_dispute(view: GameView, number: int) -> None:
    if not 0 <= number < len(view.state.disputes):
        raise UsageError(f"there is no dispute {number}; `tally dispute status` lists them")


def _open_one(view: GameView, claim: int) -> int | None:
    """The last open dispute of this party over a claim."""
    mine = (n for n, each in enumerate(view.state.disputes) if (each.claim, each.challenger) == (claim, view.party))
    return max((n for n in mine if view.state.disputes[n].phase != "settled"), default=None)


def _reasons(history: Sequence[HistoryEntry], board: Board) -> tuple[str, ...]:
    """What the referee wrote to its rulings, as far as it can be had."""
    from tallystick.disputes.game.moves import Rule
    from tallystick.disputes.parties.history import reason_of

    with _cache(board) as cache:
        ruled = (each.entry.move for each in history if isinstance(each.entry.move, Rule))
        return tuple(filter(None, (reason_of(move.reason, cache.folder_of) for move in ruled)))


def _ending_at(history: Sequence[HistoryEntry], board: Board) -> DisputeEnding:
    from tallystick.disputes.parties.history import ending_of

    with _cache(board) as cache:
        return ending_of(history, cache.folder_of)


@contextmanager
def _cache(board: Board) -> Iterator[BoardCache]:
    """What is fetched from a board, until it has been shown."""
    from tempfile import TemporaryDirectory

    from tallystick.disputes.parties.game_view import BoardCache

    with TemporaryDirectory() as folder:
        yield BoardCache(board, Path(folder))


def _claims_json(view: GameView) -> list[Json]:
    return [_claim_json(view, number) for number in range(len(view.state.claims))]


def _claim_json(view: GameView, number: int) -> Json:
    claim = view.state.claims[number]
    return {
        "bond": claim.bond,
        "claim": number,
        "disputes": claim.disputes,
        "levels": claim.levels,
        "prover": claim.prover,
        "root": claim.root,
        "seconds": max(0, claim.deadline - view.time) if claim.status == "open" else None,
        "size": claim.size,
        "statement": claim.statement,
        "status": claim.status.value,
    }
