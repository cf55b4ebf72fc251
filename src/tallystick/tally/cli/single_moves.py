"""Single moves at a coordinator: `tally dispute pause`, `resume`, `seal`, `unseal`, `retire`, `withdraw`.

Each is made by whoever the rules allow; the coordinator refuses everybody else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.core.errors import UsageError
from tallystick.tally.cli.options import JSON
from tallystick.tally.cli.party_session import COORDINATOR, KEY

if TYPE_CHECKING:
    from tallystick.disputes.game.moves import Move
    from tallystick.disputes.parties.game_view import GameView
    from tallystick.verdicts.verdict import Fault


ANSWER = typer.Option(..., "--answer", help="Who is at fault, as the planter knows: prover, challenger or nobody.")


def delegate(
    party: str = typer.Argument(help="The key of the watchtower, as `tally new-key` prints it."),
    coordinator: str = COORDINATOR,
    key: Path = KEY,
    days: float = typer.Option(30.0, min=0.001, max=3650, help="For how many days."),
) -> int:
    """Let another key answer in disputes for this party, and do nothing else. Prints what `tally watchtower` reads.

    It reaches no money: it posts, concedes and withdraws nothing. Its answers count as this party's own. Nothing takes
    it back before its end.
    """
    from tallystick.core.ed25519 import check_public
    from tallystick.disputes.coordinators.local.signed import sign_delegation
    from tallystick.disputes.game.state import DAY
    from tallystick.disputes.parties.connect import ETHEREUM, connected
    from tallystick.formats.signing import SigningKey

    if coordinator.startswith(ETHEREUM):
        raise UsageError("the contract knows no delegates; a watchtower there needs the prover's key")
    try:
        check_public(party)
    except ValueError as error:
        raise UsageError(f"{party[:80]}: no key of 64 hexadecimal digits: {error}") from None
    with connected(coordinator, key) as connection:
        until = connection.coordinator.now() + round(days * DAY)
        signed = sign_delegation(connection.identity, party, until, SigningKey.read(key))
        print(signed.to_bytes().decode())
    return 0


def pause(coordinator: str = COORDINATOR, key: Path = KEY, json: bool = JSON) -> int:
    """Stop all clocks and moves, as the guardian; withdrawals go on. A pause ends by itself."""
    from tallystick.disputes.game.moves import Pause
    from tallystick.disputes.parties.progress import span
    from tallystick.tally.cli.output import show

    view = _moved(coordinator, key, lambda party: Pause(actor=party))
    left = pause_left(view)
    text = "on its way" if left is None else f"paused; over by itself in {span(left)}"
    show({"paused": left}, text, json)
    return 0


def resume(coordinator: str = COORDINATOR, key: Path = KEY, json: bool = JSON) -> int:
    """End a pause before its time, as the guardian."""
    from tallystick.disputes.game.moves import Resume
    from tallystick.tally.cli.output import show

    view = _moved(coordinator, key, lambda party: Resume(actor=party))
    left = pause_left(view)
    show({"paused": left}, "resumed" if left is None else "on its way", json)
    return 0


def retire(coordinator: str = COORDINATOR, key: Path = KEY, json: bool = JSON) -> int:
    """Be drawn no more, as a member; the stake rests, and then goes out by `tally dispute withdraw`."""
    from tallystick.disputes.game.moves import Retire
    from tallystick.tally.cli.output import show

    view = _moved(coordinator, key, lambda party: Retire(actor=party))
    member = view.state.members.get(view.party)
    is_retired = member is None or not member.stake
    show({"retired": is_retired}, "retired" if is_retired else "on its way", json)
    return 0


def withdraw(coordinator: str = COORDINATOR, key: Path = KEY, json: bool = JSON) -> int:
    """Take out what this party is owed and has rested long enough. Prints what it is owed still."""
    from tallystick.disputes.game.moves import Withdraw
    from tallystick.tally.cli.output import show

    view = _moved(coordinator, key, lambda party: Withdraw(actor=party))
    owed = sum(each.amount for each in view.state.owed.get(view.party, ()))
    show({"owed": owed}, f"still owed {owed:,}", json)
    return 0


def seal(
    prover: str = typer.Argument(help="Who is to post the claim: a key of 64 hexadecimal digits, or an address."),
    answer: str = ANSWER,
    json: bool = JSON,
) -> int:
    """Seal the answer to a claim that is to be planted. Prints the seal, and the salt that nobody else may see.

    The claim is posted by `tally prover --seal`; `tally dispute unseal` shows answer and salt in the end.
    """
    import re
    import secrets

    from tallystick.disputes.game import voting as committee
    from tallystick.tally.cli.output import show

    if not re.fullmatch("0x[0-9a-f]{40}|[0-9a-f]{64}", prover):
        raise UsageError(f"{prover[:80]}: no key of 64 hexadecimal digits, and no address, in lower case")
    salt = secrets.token_hex(32)
    sealed = committee.seal(prover, _answer(answer), salt)
    show({"salt": salt, "seal": sealed}, f"seal {sealed}\nsalt {salt}", json)
    return 0


def unseal(
    number: int = typer.Argument(min=0, help="The number of a settled dispute over the planted claim."),
    answer: str = ANSWER,
    salt: str = typer.Option(..., "--salt", help="The salt that `tally dispute seal` printed."),
    coordinator: str = COORDINATOR,
    key: Path = KEY,
    json: bool = JSON,
) -> int:
    """Show, as the planter, what a planted claim's answer was: whoever voted otherwise loses its stake."""
    import re

    from tallystick.disputes.game.moves import Unseal
    from tallystick.tally.cli.output import show

    if not re.fullmatch("[0-9a-f]{64}", salt):
        raise UsageError(f"--salt {salt[:80]}: not 64 lower-case hexadecimal digits")
    known = _answer(answer)
    view = _moved(coordinator, key, lambda party: Unseal(actor=party, dispute=number, answer=known, salt=salt))
    dispute = view.state.disputes[number]
    if not dispute.is_unsealed:
        show({"dispute": number, "wrong": None}, "on its way", json)
        return 0
    votes = [vote for each in dispute.rounds for vote in zip(each.drawn, each.votes, strict=True)]
    wrong = sorted({name for name, vote in votes if vote not in (None, known)})
    told = f"dispute {number} was planted: {len(wrong)} members voted otherwise"
    show({"dispute": number, "wrong": [*wrong]}, "\n".join([told, *(f"member {name}" for name in wrong)]), json)
    return 0


def pause_left(view: GameView) -> int | None:
    """The seconds after which the present pause ends by itself; `None` while game time runs."""
    from tallystick.disputes.game.context import with_expired_pause_lifted

    since = with_expired_pause_lifted(view.state, view.now).pausing.since
    return None if since is None else since + view.rules.pause_max - view.now


def _moved(coordinator: str, key: Path, move: Callable[[str], Move]) -> GameView:
    """What a party sees after its move; raises `RuleError` where the rules do not allow it."""
    from tallystick.disputes.parties.connect import connected
    from tallystick.disputes.parties.game_view import GameFollower

    with connected(coordinator, key) as place:
        place.coordinator.submit(move(place.coordinator.party))
        return GameFollower(place.coordinator).look()


def _answer(text: str) -> Fault:
    from tallystick.verdicts.verdict import Fault

    if text not in tuple(Fault):
        from tallystick.core.errors import refusal

        raise UsageError(f"--answer: {refusal(text, [*Fault])}")
    return Fault(text)
