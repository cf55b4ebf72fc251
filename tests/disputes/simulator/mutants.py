"""The game with one rule missing or wrong: every such game has to be found out."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

from tallystick.disputes.game import bisection, context, game, voting
from tallystick.disputes.game.context import credit
from tallystick.disputes.game.state import MemberStake, Phase, Rules, Status
from tallystick.verdicts.verdict import Fault

GUARDED: tuple[ModuleType, ...] = (bisection, context, game, voting)
Patch = Callable[[], Any]


class Check(NamedTuple):
    """One check of the game: the module and the function that makes it, and the code of its refusal."""

    module: str
    function: str
    code: str

    def __str__(self) -> str:
        return ".".join(self)


def checks() -> list[Check]:
    """Every check of the game, read from its source."""
    return sorted({check for module in GUARDED for check in _checks_of(module)})


def _checks_of(module: ModuleType) -> Iterator[Check]:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "allow":
                code = node.args[1]
                assert isinstance(code, ast.Constant)
                yield Check(module.__name__.rpartition(".")[2], function.name, str(code.value))


@contextmanager
def without(check: Check) -> Iterator[None]:
    """The game without one check."""
    held = context.allow

    def lenient(condition: bool, code: str, sentence: str) -> None:
        if (sys._getframe(1).f_code.co_name, code) != (check.function, check.code):
            held(condition, code, sentence)

    with mock.patch.object(importlib.import_module(f"tallystick.disputes.game.{check.module}"), "allow", lenient):
        yield


# ---- rules that are wrong rather than missing
def _changed(target: Any, name: str, change: Callable[..., Any]) -> Patch:
    """`target.name` replaced by a function that is given the honest one first."""
    held = getattr(target, name)
    return lambda: mock.patch.object(target, name, lambda *a, **k: change(held, *a, **k))


def _late_by_one(held: Any, dispute: Any, time: int) -> int:
    return int(held(dispute, time)) + 1


def _no_extension(held: Any, dispute: Any, time: int, extension: int) -> Any:
    return held(dispute, time, 0)


def _clock_not_charged(held: Any, dispute: Any, time: int, extension: int) -> Any:
    return replace(dispute.clocks, since=time)


def _bond_stays(held: Any, at: Any, number: int, fault: Fault) -> Any:
    after = held(at, number, fault)
    return after.change_dispute(number, bond=at.dispute(number).bond)


def _claim_stays_open(held: Any, at: Any, dispute: Any) -> Any:
    return held(at, dispute).change_claim(dispute.claim, status=Status.OPEN)


def _slashed_twice(held: Any, at: Any, dispute: Any) -> Any:
    bond = at.claim(dispute.claim).bond
    return held(at, dispute).change_claim(dispute.claim, bond=bond)


def _all_to_the_challenger(held: Any, at: Any, dispute: Any) -> Any:
    rules = at.rules.model_copy(update={"treasury": dispute.challenger})
    after = held(at.with_state(replace(at.state, rules=rules)), dispute)
    return after.with_state(replace(after.state, rules=at.rules))


def _loser_paid(held: Any, at: Any, number: int, fault: Fault) -> Any:
    return held(at, number, Fault.NOBODY if fault is Fault.CHALLENGER else fault)


def _appeals_forgotten(held: Any, at: Any, number: int, fault: Fault) -> Any:
    return at


def _appeals_lost(held: Any, at: Any, number: int, fault: Fault) -> Any:
    lost = tuple(replace(each, against=fault) for each in at.dispute(number).appeals)
    held_appeals = at.dispute(number).appeals
    return held(at.change_dispute(number, appeals=lost), number, fault).change_dispute(number, appeals=held_appeals)


def _majority_of_those_who_voted(held: Any, votes: Any) -> Any:
    return held(tuple(vote for vote in votes if vote is not None))


def _largest_minority(held: Any, votes: Any) -> Any:
    cast = [vote for vote in votes if vote is not None]
    return max(cast, key=cast.count) if cast else Fault.NOBODY


def _members_kept(held: Any, at: Any, dispute: Any) -> Any:
    return at


def _unpaid_members(held: Any, at: Any, number: int, sitting: Any) -> Any:
    for name in sitting.drawn:
        member = at.state.members[name]
        at = voting._with_member(at, name, replace(member, serving=member.serving - 1))
    return at


def _absent_are_paid(held: Any, at: Any, number: int, sitting: Any) -> Any:
    return held(at, number, replace(sitting, votes=tuple(vote or Fault.NOBODY for vote in sitting.votes)))


def _no_fine(held: Any, at: Any, name: str, fine: int) -> Any:
    return at


def _fine_burnt(held: Any, at: Any, name: str, fine: int) -> Any:
    after = held(at, name, fine)
    return after.with_state(replace(after.state, owed=at.state.owed))


def _parties_can_be_drawn(held: Any, state: Any, dispute: Any) -> Any:
    return tuple(name for name in state.rules.members if name in state.members)


def _drawn_twice(held: Any, pool: Any, count: int, *more: Any) -> Any:
    return (pool[0],) * count


def _copyable(held: Any, dispute: int, number: int, member: str, vote: Fault, salt: str) -> Any:
    return held(dispute, number, "0" * 64, vote, salt)


def _paid_at_once(held: Any, state: Any, party: str, amount: int, now: int) -> Any:
    return credit(state, party, amount, now - state.rules.withdrawal_delay)


def _paid_again(held: Any, at: Any, move: Any) -> Any:
    after = held(at, move)
    return replace(after, owed=at.state.owed)


def _one_leaf_left_over(held: Any, low: int, high: int, ways: int, number: int) -> Any:
    found = held(low, high, ways, number)
    return (found[0], min(found[1] + 1, high))


def _last_leaf_lost(held: Any, low: int, high: int, ways: int) -> Any:
    return tuple(min(place + 1, high - 1) for place in held(low, high, ways))


def _pause_without_end(held: Any, state: Any, now: int) -> Any:
    return state


def _pause_runs_on(held: Any, state: Any, now: int) -> int:
    return now


def _pause_without_rest(held: Any, state: Any, end: int) -> Any:
    after = held(state, end)
    return replace(after, pausing=replace(after.pausing, allowed_from=end))


def _any_proof(held: Any, dispute: Any, *more: Any) -> None:
    return None


def _any_price(held: Any, at: Any, move: Any) -> None:
    return None


def _disputes_not_counted(held: Any, at: Any, move: Any) -> Any:
    after = held(at, move)
    return at.with_state(after).change_claim(move.claim, disputes=at.claim(move.claim).disputes).state


def _retired_and_kept(held: Any, at: Any, move: Any) -> Any:
    after = held(at, move)
    return replace(after, members={**after.members, move.actor: replace(after.members[move.actor], is_active=True)})


def _came_back_free(held: Any, at: Any, move: Any) -> Any:
    after = held(at, move)
    return replace(after, members={**after.members, move.actor: MemberStake(move.value)})


def _reappealed(held: Any, dispute: Any) -> int:
    return len(dispute.rounds[-1].drawn)


def _unbound(held: Any) -> int:
    return 0


WRONG: dict[str, Patch] = {
    "a clock has one second more": _changed(game, "time_left", _late_by_one),
    "a timeout comes one second late": _changed(bisection, "time_left", _late_by_one),
    "no extension": _changed(bisection, "_turned", _no_extension),
    "a turn costs no time": _changed(bisection, "_turned", _clock_not_charged),
    "a dispute keeps its bond": _changed(context, "_closed", _bond_stays),
    "a slashed claim stays open": _changed(context, "_prover_slashed", _claim_stays_open),
    "a bond is slashed and kept": _changed(context, "_prover_slashed", _slashed_twice),
    "an accuser gets the treasury's part": _changed(context, "_prover_slashed", _all_to_the_challenger),
    "a wrong challenger gets its bond back": _changed(context, "_shared_out", _loser_paid),
    "bonds of appeals are forgotten": _changed(context, "_appeals_returned", _appeals_forgotten),
    "every appeal is lost": _changed(context, "_appeals_returned", _appeals_lost),
    "absent members do not count": _changed(voting, "majority", _majority_of_those_who_voted),
    "the largest minority decides": _changed(voting, "majority", _largest_minority),
    "dismissal keeps members busy": _changed(context, "_released", _members_kept),
    "members are not paid": _changed(voting, "_paid_for", _unpaid_members),
    "absent members are paid": _changed(voting, "_paid_for", _absent_are_paid),
    "nobody is fined": _changed(voting, "_fined", _no_fine),
    "fines vanish": _changed(voting, "_fined", _fine_burnt),
    "parties judge themselves": _changed(voting, "eligible", _parties_can_be_drawn),
    "one member fills all seats": _changed(voting, "draw_members", _drawn_twice),
    "commitments can be copied": _changed(voting, "commitment", _copyable),
    "money does not rest": _changed(context, "credit", _paid_at_once),
    "a withdrawal can be repeated": lambda: _transition("withdraw", _paid_again),
    "a choice reaches one leaf too far": _changed(bisection, "child", _one_leaf_left_over),
    "cuts stand one leaf too far": _changed(bisection, "cut_places", _last_leaf_lost),
    "a pause does not end": _changed(game, "with_expired_pause_lifted", _pause_without_end),
    "clocks run on in a pause": _changed(game, "game_time", _pause_runs_on),
    "the guardian need not rest": _changed(context, "_ended", _pause_without_rest),
    "no proof is checked": _changed(bisection, "_stands_in_the_tree", _any_proof),
    "any evidence convicts": _changed(game, "convict", _any_proof),
    "any price will do": _changed(game, "_pays_exactly", _any_price),
    "a dispute is not counted": lambda: _transition("contest", _disputes_not_counted),
    "a retired member is drawn": lambda: _transition("retire", _retired_and_kept),
    "a member comes back without its duties": lambda: _transition("enlist", _came_back_free),
    "an appeal draws no more members": _changed(voting, "next_seats", _reappealed),
    "votes cannot be held against a member": lambda: mock.patch.object(
        Rules, "holding", property(lambda rules: rules.withdrawal_delay)
    ),
    "a silent beacon stops a dispute": lambda: mock.patch.dict(
        game.TRANSITIONS, {"timeout": replace(game.TRANSITIONS["timeout"], phases=game.BISECTING)}
    ),
    "evidence about any record": _changed(game, "_leaf", lambda held, form: "00" * 32),
    "a claim can be finalised by time alone": lambda: without(Check("bisection", "finalise", "disputed")),
    "anybody may call for anything": _changed(game, "_is_one", lambda held, *more: True),
    "an element is forgotten": lambda: _transition("pinpoint", lambda held, at, move: at.state),
    "an element is named after the draw": lambda: _transition_phases("pinpoint", frozenset(Phase)),
    "a settled dispute goes on": lambda: _transition_phases("choose", frozenset(Phase)),
}


def _transition(kind: str, change: Callable[..., Any]) -> Any:
    held = game.TRANSITIONS[kind]
    changed = replace(held, happens=lambda at, move: change(held.happens, at, move))
    return mock.patch.dict(game.TRANSITIONS, {kind: changed})


def _transition_phases(kind: str, phases: frozenset[Phase]) -> Any:
    return mock.patch.dict(game.TRANSITIONS, {kind: replace(game.TRANSITIONS[kind], phases=phases)})
