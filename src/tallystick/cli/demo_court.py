"""`tally coordinator init --demo`: a coordinator for trying disputes, with the keys of all parties beside it."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.commitments.encoding import Json

DATABASE: Final = Path("court") / "court.db"
HONEST: Final = Path("run")
"""The run that the printed commands claim."""
PARTIES: Final = ("lab", "forger", "auditor", "referee")
PURSE: Final = 2_000_000
MINUTE_WINDOWS: Final = ("clock", "referee_window", "vote_window", "reveal_window", "appeal_window")
SHORT: Final = dict.fromkeys(MINUTE_WINDOWS, 120) | {
    "challenge_window": 300,
    "committee": 1,
    "extension": 20,
    "withdrawal_delay": 1,
}
"""Seconds in the place of days; the window for contests is longer where an audit takes long."""


def init_demo(database: Path, as_json: bool = False, window: int | None = None) -> None:
    """Set up the coordinator, make and write all keys, fill the purses, and print what to paste next.

    `window` is how long claims can be contested at least. Raises `UsageError` where a file of that name is there.
    """
    from tallystick.attestation.signing import SigningKey
    from tallystick.cli.output import show
    from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
    from tallystick.disputes.game.rules import Rules

    taken = [path for path in (database, *(_key(database, name) for name in PARTIES)) if path.exists()]
    if taken:
        raise UsageError(f"{taken[0]}: there is a file already; choose another folder with --db FOLDER/court.db")
    database.parent.mkdir(parents=True, exist_ok=True)
    own, keys = SigningKey.generate(), {name: SigningKey.generate() for name in PARTIES}
    own.write(Path(f"{database}.key"))
    for name, key in keys.items():
        key.write(_key(database, name))
    named = {"treasury": own.public, "beacon": own.public, "referee": keys["referee"].public}
    seconds = max(SHORT["challenge_window"], window or 0)
    slow = {name: SHORT[name] * seconds // SHORT["challenge_window"] for name in ("clock", "extension")}
    rules = Rules.from_json({**SHORT, **named, **slow, "challenge_window": seconds}, "rules")
    with closing(LocalCoordinator.create(database, rules, own)) as place:
        for name in PARTIES[:3]:
            place.grant(keys[name].public, PURSE)
        found: Json = {"coordinator": place.identity, "key": place.charter.key}
        show(found, f"coordinator {place.identity}\nkey {place.charter.key}", as_json)
    _tell(database, seconds)


def _key(database: Path, name: str) -> Path:
    return database.with_name(f"{name}.key")


def _tell(database: Path, window: int) -> None:
    from tallystick.cli.output import talk
    from tallystick.disputes.parties.waiting import in_words

    for line in next_commands(database):
        talk().print(line, soft_wrap=True)
    talk().print(f"Claims can be contested for {in_words(window)}.")


def next_commands(database: Path) -> list[str]:
    """What to paste into two terminals, with a line about each, and what a coordinator like this one is for."""
    folder = f"{database.parent}/"

    def at(name: str) -> str:
        words = ("--coordinator", str(database), "--key", str(_key(database, name)), "--poll", "0.2")
        return " ".join(map(shlex.quote, words))

    return [
        f"For trying only: clocks are short, and the keys of all parties lie in {folder}, open to anybody.",
        "Terminal 1, who checks; start it first:",
        f"    tally challenger --until-settled {at('auditor')}",
        "Terminal 2, who claims: the honest `run`, and `forged`, which `tally attack wrong-rate run forged` makes:",
        f"    tally prover forged --once {at('forger')}",
        f"    tally prover run --once {at('lab')}",
        f"    tally prover forged --forger wrong-rate {at('forger')}",
        f"    tally prover run {at('lab')}",
        "Where a program waits for the referee's ruling (not for this forgery):",
        f"    tally rule --until-settled {at('referee')}",
    ]
