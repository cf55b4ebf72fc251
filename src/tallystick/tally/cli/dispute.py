"""`tally dispute`: open, list, show, play and settle disputes, and the single moves of all offices.

A single move is made by whoever the rules allow; the coordinator refuses everybody else.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import typer

from tallystick.core.canonical_json import Json
from tallystick.core.errors import UsageError, refusal
from tallystick.disputes.coordinators.local import signed as signed_moves
from tallystick.disputes.evidence import convicting, doubting, judging, statement as statement_folders, traces
from tallystick.disputes.game import moves as game_moves, state as game_state, voting as committee
from tallystick.disputes.parties import (
    connect,
    game_view,
    player as players,
    programs,
    progress as dispute_progress,
    prover as proving,
)
from tallystick.formats import signing
from tallystick.tally import operators as operators_api
from tallystick.tally.cli import dispute_display as display
from tallystick.tally.cli.options import AsJson
from tallystick.tally.cli.output import print_json, show as show_result, talk
from tallystick.tally.cli.party_session import (
    BOARD,
    COORDINATOR,
    KEY,
    JudgeOptions,
    PartyOptions,
    PartySession,
    ProgramOptions,
    drive,
    party_session,
)
from tallystick.verdicts import verdict as verdicts

NUMBER = typer.Argument(min=0, help="The dispute's number.")
EXITS: Final = {"won": 0, "lost": 1, "nobody is at fault": 3, "not over": 3}


def open_(
    *,
    claim: int = typer.Argument(min=0, help="The claim's number."),
    low: int = typer.Option(0, "--from", min=0, help="The first contested leaf."),
    high: int | None = typer.Option(None, "--to", min=1, help="The leaf after the last contested one."),
    again: bool = typer.Option(False, "--again", help="Even if this party disputes the claim already."),
    party: PartyOptions,
    json: AsJson = False,
) -> None:
    """Contest leaves of a claim, all of them by default, with a bond. Prints the dispute's number."""
    with connect.connected(party.coordinator, party.key) as connection:
        watch = game_view.GameFollower(connection.coordinator)
        view = watch.look()
        if claim >= len(view.state.claims):
            raise UsageError(f"there is no claim {claim}; `tally dispute status` lists them")
        if not again and (number := _open_one(view, claim)) is not None:
            raise UsageError(f"this party contests claim {claim} in dispute {number} already; --again opens another")
        price = view.rules.challenger_bond + view.rules.deposit
        end = view.state.claims[claim].size if high is None else high
        connection.coordinator.submit(game_moves.Contest(actor=view.party, value=price, claim=claim, low=low, high=end))
        number = _open_one(watch.look(), claim)
        show_result({"claim": claim, "dispute": number}, "on its way" if number is None else f"dispute {number}", json)


def status(coordinator: str = COORDINATOR, json: AsJson = False) -> None:
    """List claims and disputes, with their clocks, and who is owed what."""
    with connect.connected(coordinator) as connection:
        place = connection.coordinator
        view, money = game_view.GameFollower(place).look(), game_view.accounts(place.rules, place.entries())
    progress = [
        dispute_progress.progress_of(view.state, number, view.now) for number in range(len(view.state.disputes))
    ]
    if json:
        print_json(
            {
                "accounts": [each.to_json() for each in money],
                "claims": [_claim_json(view, number) for number in range(len(view.state.claims))],
                "disputes": [each.to_json() for each in progress],
                "paused": pause_left(view),
                "silent": list(dispute_progress.silent_provers(view)),
                "time": view.now,
            }
        )
        return
    if (left := pause_left(view)) is not None:
        print(f"paused: no clock runs; over by itself in {dispute_progress.span(left)}\n")
    if not view.state.claims:
        talk().print("no claims yet")
        return
    display.print_table(display.claims_table(view.state, view.time))
    if progress:
        print()
        display.print_table(display.disputes_table(progress, view.now))
    print()
    display.print_table(display.accounts_table(money, view.now))
    for line in dispute_progress.silent_provers(view):
        print(f"\n{line}")


def show(
    number: int = NUMBER,
    coordinator: str = COORDINATOR,
    board: str | None = BOARD,
    run: Path | None = typer.Option(None, help="The claimed run: its graph says in which module the operator is."),
    json: AsJson = False,
) -> None:
    """Print every move of a dispute, the remaining range, the reason of the ruling, and who moves next."""
    with connect.connected(coordinator, board=board) as connection, TemporaryDirectory() as folder:
        view = game_view.GameFollower(connection.coordinator).look()
        _require_dispute(view, number)
        history = dispute_progress.dispute_history(
            connection.coordinator.rules, connection.coordinator.entries(), number
        )
        folder_of = game_view.BoardCache(connection.board, Path(folder)).folder_of
        rulings = [each.entry.move for each in history if isinstance(each.entry.move, game_moves.Rule)]
        reasons = [reason for move in rulings if (reason := dispute_progress.reason_of(move.reason, folder_of))]
        ending = dispute_progress.ending_of(history, folder_of)
    now = dispute_progress.progress_of(view.state, number, view.now)
    module = (
        operators_api.operator_at(run, *ending.operator).module
        if run is not None and ending.operator is not None
        else None
    )
    if json:
        moves: list[Json] = [each.to_json() for each in history]
        result: dict[str, Json] = {
            "ending": ending.to_json(),
            "moves": moves,
            "now": now.to_json(),
            "reasons": [*reasons],
        }
        print_json(result if run is None else {**result, "module": module})
        return
    display.print_table(display.moves_table(history))
    print(*dispute_progress.ending_lines(view.state.disputes[number], number, ending, module), sep="\n")
    if now.phase != "settled":
        display.print_table(display.disputes_table([now], view.now))


def play(
    *,
    number: int = NUMBER,
    party: PartyOptions,
    run: Path | None = typer.Option(None, help="The prover's run; a challenger needs none."),
    tools: JudgeOptions,
    program: ProgramOptions,
    json: AsJson = False,
) -> int:
    """Play this party's side of one dispute to its end.

    Exit codes: 0 the other side is at fault, 1 this side is, 3 nobody.
    """
    judge = tools.judge()
    with party_session(party, program) as session:
        view = game_view.GameFollower(session.connection.coordinator).look()
        _require_dispute(view, number)
        dispute = view.state.disputes[number]
        sides = {view.claim_of(dispute).prover: "prover", dispute.challenger: "challenger"}
        if view.party not in sides:
            raise UsageError(f"--key: this party is on neither side of dispute {number}")
        side = sides[view.party]
        roles = _prover(session, run, tools) if side == "prover" else _challenger(session, judge, tools)
        player = session.player(programs.only_dispute(roles, number))
        view = drive(session, player, lambda view: view.state.disputes[number].phase == "settled", program.poll)
    ending = _ending(view, number, side)
    show_result({"dispute": number, "ending": ending}, f"dispute {number}: {ending}", json)
    return EXITS[ending]


def settle(party: PartyOptions, number: int = NUMBER, json: AsJson = False) -> None:
    """Make the moves that are due in a dispute and over its claim, and take out what this party is owed."""
    with connect.connected(party.coordinator, party.key) as connection:
        watch, keeper, made = (
            game_view.GameFollower(connection.coordinator),
            players.DueMoves(everybody=True),
            dict[str, str](),
        )
        view = watch.look()
        _require_dispute(view, number)
        while task := next((due for due in keeper.about(view, number) if due.key not in made), None):
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


def _prover(session: PartySession, run: Path | None, tools: JudgeOptions) -> tuple[players.PartyRole, ...]:
    if run is None:
        raise UsageError("--run: the prover answers from its run")
    statement = statement_folders.statement_at(run)
    root = proving.offer_of(run, statement).root
    trace = traces.trace_of(statement, session.workspace.folder / "trace" / root[:16], device=tools.device)
    return programs.prover(session.cache, session.workspace, lambda _: trace)


def _challenger(
    session: PartySession, judge: judging.DisputeJudge, tools: JudgeOptions
) -> tuple[players.PartyRole, ...]:
    doubter = doubting.doubter_for(device=tools.device, budgets=judge.budgets, initial=tools.initial)
    return programs.challenger(
        session.cache, session.workspace, lambda _: doubter, judge, convicting.find_evidence, naming=judge.worst
    )


def _ending(view: game_view.GameView, number: int, side: str) -> str:
    dispute = view.state.disputes[number]
    if dispute.phase != "settled":
        return "not over"
    if dispute.fault in (None, "nobody"):
        return "nobody is at fault"
    return "lost" if dispute.fault == side else "won"


def _require_dispute(view: game_view.GameView, number: int) -> None:
    if not 0 <= number < len(view.state.disputes):
        raise UsageError(f"there is no dispute {number}; `tally dispute status` lists them")


def _open_one(view: game_view.GameView, claim: int) -> int | None:
    """The last open dispute of this party over a claim."""
    mine = (n for n, each in enumerate(view.state.disputes) if (each.claim, each.challenger) == (claim, view.party))
    return max((n for n in mine if view.state.disputes[n].phase != "settled"), default=None)


def _claim_json(view: game_view.GameView, number: int) -> Json:
    claim = view.state.claims[number]
    left = max(0, claim.deadline - view.time) if claim.status == "open" else None
    fields = {name: value for name, value in asdict(claim).items() if name not in ("deadline", "seal")}
    return {**fields, "claim": number, "seconds": left}


# Single moves of guardian, members, planter and prover.

ANSWER = typer.Option(..., "--answer", help="Who is at fault, as the planter knows: prover, challenger or nobody.")


def delegate(
    party: str = typer.Argument(help="The key of the watchtower, as `tally new-key` prints it."),
    coordinator: str = COORDINATOR,
    key: Path = KEY,
    days: float = typer.Option(30.0, min=0.001, max=3650, help="For how many days."),
) -> None:
    """Let another key answer in disputes for this party, and do nothing else. Prints what `tally watchtower` reads.

    It reaches no money: it posts, concedes and withdraws nothing. Its answers count as this party's own. Nothing takes
    it back before its end.
    """
    if coordinator.startswith(connect.ETHEREUM):
        raise UsageError("the contract knows no delegates; a watchtower there needs the prover's key")
    try:
        signing.check_public(party)
    except ValueError as error:
        raise UsageError(f"{party[:80]}: no key of 64 hexadecimal digits: {error}") from None
    with connect.connected(coordinator, key) as connection:
        until = connection.coordinator.now() + round(days * game_state.DAY)
        signed = signed_moves.sign_delegation(connection.identity, party, until, signing.SigningKey.read(key))
        print(signed.to_bytes().decode())


def pause(party: PartyOptions, json: AsJson = False) -> None:
    """Stop all clocks and moves, as the guardian; withdrawals go on. A pause ends by itself."""
    view = _moved(party, lambda party: game_moves.Pause(actor=party))
    left = pause_left(view)
    text = "on its way" if left is None else f"paused; over by itself in {dispute_progress.span(left)}"
    show_result({"paused": left}, text, json)


def resume(party: PartyOptions, json: AsJson = False) -> None:
    """End a pause before its time, as the guardian."""
    view = _moved(party, lambda party: game_moves.Resume(actor=party))
    left = pause_left(view)
    show_result({"paused": left}, "resumed" if left is None else "on its way", json)


def retire(party: PartyOptions, json: AsJson = False) -> None:
    """Be drawn no more, as a member; the stake rests, and then goes out by `tally dispute withdraw`."""
    view = _moved(party, lambda party: game_moves.Retire(actor=party))
    member = view.state.members.get(view.party)
    is_retired = member is None or not member.stake
    show_result({"retired": is_retired}, "retired" if is_retired else "on its way", json)


def withdraw(party: PartyOptions, json: AsJson = False) -> None:
    """Take out what this party is owed and has rested long enough. Prints what it is owed still."""
    view = _moved(party, lambda party: game_moves.Withdraw(actor=party))
    owed = sum(each.amount for each in view.state.owed.get(view.party, ()))
    show_result({"owed": owed}, f"still owed {owed:,}", json)


def seal(
    prover: str = typer.Argument(help="Who is to post the claim: a key of 64 hexadecimal digits, or an address."),
    answer: str = ANSWER,
    json: AsJson = False,
) -> None:
    """Seal the answer to a claim that is to be planted. Prints the seal, and the salt that nobody else may see.

    The claim is posted by `tally prover --seal`; `tally dispute unseal` shows answer and salt in the end.
    """
    if not re.fullmatch("0x[0-9a-f]{40}|[0-9a-f]{64}", prover):
        raise UsageError(f"{prover[:80]}: no key of 64 hexadecimal digits, and no address, in lower case")
    salt = secrets.token_hex(32)
    sealed = committee.seal(prover, _answer(answer), salt)
    show_result({"salt": salt, "seal": sealed}, f"seal {sealed}\nsalt {salt}", json)


def unseal(
    *,
    number: int = typer.Argument(min=0, help="The number of a settled dispute over the planted claim."),
    answer: str = ANSWER,
    salt: str = typer.Option(..., "--salt", help="The salt that `tally dispute seal` printed."),
    party: PartyOptions,
    json: AsJson = False,
) -> None:
    """Show, as the planter, what a planted claim's answer was: whoever voted otherwise loses its stake."""
    if not re.fullmatch("[0-9a-f]{64}", salt):
        raise UsageError(f"--salt {salt[:80]}: not 64 lower-case hexadecimal digits")
    known = _answer(answer)
    view = _moved(party, lambda party: game_moves.Unseal(actor=party, dispute=number, answer=known, salt=salt))
    dispute = view.state.disputes[number]
    if not dispute.is_unsealed:
        show_result({"dispute": number, "wrong": None}, "on its way", json)
        return
    votes = [vote for each in dispute.rounds for vote in zip(each.drawn, each.votes, strict=True)]
    wrong = sorted({name for name, vote in votes if vote not in (None, known)})
    text = f"dispute {number} was planted: {len(wrong)} members voted otherwise"
    show_result({"dispute": number, "wrong": [*wrong]}, "\n".join([text, *(f"member {name}" for name in wrong)]), json)


def pause_left(view: game_view.GameView) -> int | None:
    """The seconds after which the present pause ends by itself; `None` while game time runs."""
    return None if view.pause_end is None else view.pause_end - view.now


def _moved(party: PartyOptions, move: Callable[[str], game_moves.Move]) -> game_view.GameView:
    """What a party sees after its move; raises `RuleError` where the rules do not allow it."""
    with connect.connected(party.coordinator, party.key) as place:
        place.coordinator.submit(move(place.coordinator.party))
        return game_view.GameFollower(place.coordinator).look()


def _answer(text: str) -> verdicts.Fault:
    if text not in tuple(verdicts.Fault):
        raise UsageError(f"--answer: {refusal(text, [*verdicts.Fault])}")
    return verdicts.Fault(text)
