"""`tally prover`, `tally challenger`, `tally committee`, `tally rule`: the programs of the parties of disputes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import typer

from tallystick.core.errors import ProofError, UnavailableError, UsageError
from tallystick.disputes.evidence import (
    convicting,
    doubting,
    statement as statement_folders,
    traces as dispute_traces,
)
from tallystick.disputes.game import protocols
from tallystick.disputes.parties import auditing as party_audits, game_view, programs, prover as proving
from tallystick.formats.store.folders import OPENING, RUN, require_folder
from tallystick.tally.attacks import provers
from tallystick.tally.cli.party_session import (
    DEVICE,
    UNTIL_SETTLED,
    WATCH,
    ChallengerFindings,
    JudgeOptions,
    PartyOptions,
    PartySession,
    Posting,
    ProgramOptions,
    ProverOptions,
    Stake,
    Watching,
    dispute_judge,
    drive,
    party_session,
    show_money,
    show_stop,
)

UNFINISHED_EXIT = 3


def prover(
    *,
    run: Path = typer.Argument(help="A finished run, recorded calls, or an opening of all operators."),
    party: PartyOptions,
    once: bool = typer.Option(False, "--once", help="Do what can be done now, and end."),
    concede: bool = typer.Option(
        False, "--concede-if-wrong", help="Concede disputes in which this run does not support the claim."
    ),
    seal: str | None = typer.Option(None, "--seal", help="A planter's seal (`tally dispute seal`), for a new claim."),
    forger: str | None = typer.Option(
        None, "--forger", help="For trying: answer as the forger of `tally attack` NAME does (wrong-rate)."
    ),
    tools: ProverOptions,
    program: ProgramOptions,
) -> int:
    """Post a run as a claim, and answer for it.

    The claim has a bond; its number is printed. The program answers challenges until the claim is final.

    It can be started again after a crash. It computes nothing while nobody disputes. It ends when the claim is
    final (0) or slashed (1) and all money is taken out; stopped before that, its exit code is 3.
    """
    if not concede and (tools.profile or tools.budget):
        raise UsageError("--profile and --budget: for the judge of --concede-if-wrong")
    statement = statement_folders.statement_at(require_folder(run, RUN, OPENING))
    offer = proving.offer_of(run, statement)
    if seal is not None and not re.fullmatch("[0-9a-f]{64}", seal):
        raise UsageError(f"--seal {seal[:80]}: not 64 lower-case hexadecimal digits")
    offer = replace(offer, seal=seal)
    judge = dispute_judge(tools.profile, tools.budget) if concede else None
    with party_session(party, program) as session:
        poster = proving.PostingRole(offer, session.cache)
        view = game_view.GameFollower(session.connection.coordinator).look()
        if (number := poster.number(view)) is None:
            try:  # nobody could defend a part, and a bond would be at stake
                statement.require_whole()
            except ProofError as error:
                raise UnavailableError(f"{error}; nothing is claimed") from None
        elif offer.seal not in (None, view.state.claims[number].seal):
            raise UsageError(f"--seal: claim {number} stands already, with another seal")
        own = proving.LazyTrace(
            _opens(run, statement, session.workspace.folder / "trace" / offer.root[:16], tools.device, forger)
        )
        roles = programs.prover(
            session.cache, session.workspace, lambda claim: own if offer.is_of(claim) else None, offer, judge
        )
        posting = Posting(poster)
        view = drive(session, session.player(roles), posting.is_over, program.poll, not once)
        if not once and posting.printed is not None:
            show_money(session, view, {posting.printed})
        return posting.ending(view, once)


def watchtower(
    *,
    runs: list[Path] = typer.Argument(help="Copies of what was claimed: runs, recorded calls, or openings."),
    party: PartyOptions,
    delegation: Path = typer.Option(..., "--delegation", help="What the prover signed (`tally dispute delegate`)."),
    watch: bool = WATCH,
    at_once: bool = typer.Option(False, "--at-once", help="Answer without leaving the prover half of its time."),
    device: str = DEVICE,
    program: ProgramOptions,
) -> int:
    """Answer for a prover that is silent.

    The prover signed that this key may open what is contested, and nothing else. Its bond stays out of reach, and its
    own program can run beside this one: a move is made once. Openings are computed again here, so this machine needs
    the stack of the prover's once a dispute has begun there.
    """
    statements = [(run, statement_folders.statement_at(require_folder(run, RUN, OPENING))) for run in runs]
    with party_session(party, program, delegation) as session:
        offers = [(proving.offer_of(run, statement), run, statement) for run, statement in statements]
        traces = {
            offer.root: proving.LazyTrace(
                _opens(run, statement, session.workspace.folder / "trace" / offer.root[:16], device, None)
            )
            for offer, run, statement in offers
        }
        roles = programs.watchtower(session.cache, lambda claim: traces.get(claim.root), at_once)
        return _watched(session, Watching(session.player(roles)), program.poll, watch)


def challenger(
    *,
    party: PartyOptions,
    watch: bool = WATCH,
    until_settled: bool = UNTIL_SETTLED,
    claim: list[int] = typer.Option([], "--claim", min=0, help="Look at this claim only; once for each."),
    whole: bool = typer.Option(False, "--whole", help="Contest all of a claim, so that its records are bisected too."),
    tools: JudgeOptions,
    program: ProgramOptions,
) -> int:
    """Recompute claims, and contest what differs.

    The program plays its disputes to their end.

    Every claim is fetched from the board, audited, and contested at most once. Audits run one at a time in a
    process of their own; the claim whose window ends first comes first. Disputes are answered meanwhile. Exit code
    1 if one was lost.
    """
    judge = tools.judge()
    doubter = doubting.doubter_for(
        device=tools.device, contests_all=whole, budgets=judge.budgets, initial=tools.initial
    )
    auditing = partial(doubting.doubter_for, device=tools.device, budgets=judge.budgets, initial=tools.initial)
    with (
        party_session(party, program) as session,
        party_audits.AuditProcess(session.workspace, auditing, doubter) as auditor,
    ):
        wanted = tuple(claim) or None
        roles = programs.challenger(
            session.cache, session.workspace, auditor, judge, convicting.find_evidence, wanted, judge.worst
        )
        shown = ChallengerFindings(session.player(roles), wanted, until_settled)
        return _watched(session, shown, program.poll, watch)


def committee(
    *,
    party: PartyOptions,
    watch: bool = WATCH,
    until_settled: bool = UNTIL_SETTLED,
    tools: JudgeOptions,
    program: ProgramOptions,
) -> int:
    """Vote in the committees this member is drawn for.

    The member stakes first.

    A vote is written to disk before it is committed to, so that it can be disclosed after a crash. A member who
    does not vote pays.
    """
    judge = tools.judge(dispute_traces.torch_engine(tools.device))
    with party_session(party, program) as session:
        if session.connection.coordinator.party not in session.connection.coordinator.rules.members:
            raise UsageError("--key: the rules do not list this member")
        player = session.player(programs.member(session.cache, session.workspace, judge))
        return _watched(session, Stake(player, ends=until_settled), program.poll, watch)


def rule(
    *,
    party: PartyOptions,
    watch: bool = WATCH,
    until_settled: bool = UNTIL_SETTLED,
    replay: bool = typer.Option(False, "--replay", help="Replay where no check decides: for rules without members."),
    tools: JudgeOptions,
    program: ProgramOptions,
) -> int:
    """Rule on disputes at a coordinator, as its referee.

    A check decides; where none does, the program calls a committee.

    To rule on one operator from a file see `tally referee`; to judge all operators of a step see `tally judge`.
    """
    with party_session(party, program) as session:
        if session.connection.coordinator.party != session.connection.coordinator.rules.referee:
            raise UsageError("--key: the rules name another referee")
        judge = tools.judge(dispute_traces.torch_engine(tools.device) if replay else None)
        player = session.player(programs.referee(session.cache, judge, judge.is_large))
        return _watched(session, Watching(player, ends=until_settled), program.poll, watch)


def _opens(
    run: Path, statement: statement_folders.Statement, work: Path, device: str, forger: str | None
) -> Callable[[], protocols.Trace]:
    """What makes the trace that a prover answers from; raises `UsageError` for a forger that there is not."""
    if forger is None:
        return lambda: dispute_traces.trace_of(statement, work, device=device)
    return partial(provers.forger_of(forger), run, work)


def _watched(session: PartySession, shown: Watching, poll: float, is_watching: bool) -> int:
    """Play until Ctrl-C, until all is settled, or once; the exit code, 1 if the party lost a dispute as challenger."""
    view = drive(session, shown.player, shown.is_over, poll, is_watching or shown.ends, shown.waits)
    shown.show(view)
    is_over = shown.ends and shown.is_settled(view)
    if is_watching or shown.ends:
        show_money(session, view, shown.watched(view) if shown.ends else ())
        if not is_over:
            show_stop(view)
    mine = (each for each in view.state.disputes if each.challenger == view.party)
    if any(each.phase == "settled" and each.fault == "challenger" for each in mine):
        return 1
    return UNFINISHED_EXIT if shown.ends and (not is_over or shown.has_missed(view)) else 0
