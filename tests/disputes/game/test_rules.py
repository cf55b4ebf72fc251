"""The rules of a coordinator: what they have to be, what follows from them, and what is refused at the door."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tallystick.core.errors import MalformedError
from tallystick.disputes.game.state import MONEY_MAX, Rules
from tests.disputes.playing import MEMBERS, OTHER, RULES, TREASURY


def test_rules_are_a_document_with_one_identity() -> None:
    again = Rules.from_bytes(RULES.to_bytes(), "rules")
    assert again == RULES
    assert again.identity == RULES.identity
    assert RULES.model_copy(update={"clock": RULES.clock + 1}).identity != RULES.identity


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"members": (MEMBERS[0], MEMBERS[0])}, "the same member twice"),
        ({"vote_fee": 1_000_000, "committee": 63}, "prover_bond"),
        ({"vote_fee": 300_000, "committee": 1}, "stake"),
        ({"ways": 1}, "ways"),
        ({"ways": 33}, "ways"),
        ({"clock": 0}, "clock"),
        ({"reward": 1001}, "reward"),
        ({"appeals": 5}, "appeals"),
        ({"prover_bond": MONEY_MAX + 1}, "prover_bond"),
        ({"prover_bond": -1}, "prover_bond"),
        ({"prover_bond": True}, "prover_bond"),
        ({"prover_bond": 1.0}, "prover_bond"),
        ({"treasury": "0x" + "AB" * 20}, "treasury"),
        ({"treasury": "ab" * 20}, "treasury"),
        ({"treasury": "ab" * 32 + "\n"}, "treasury"),
        ({"members": tuple(f"{place:064x}" for place in range(256))}, "members"),
    ],
)
def test_rules_that_make_no_sense_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Rules(**{"treasury": TREASURY, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"members": MEMBERS},
        {"vote_fee": 1_000_000, "committee": 1, "stake": 1_000_000},
        {"ways": 2},
        {"ways": 32},
        {"clock": 1},
        {"reward": 1000},
        {"appeals": 4},
        {"prover_bond": MONEY_MAX},
        {"treasury": "0x" + "ab" * 20},
        {"members": tuple(f"{place:064x}" for place in range(255))},
    ],
)
def test_the_widest_rules_are_taken(changes: dict[str, object]) -> None:
    rules = Rules(**{"treasury": OTHER, **changes})  # type: ignore[arg-type]
    assert Rules.from_bytes(rules.to_bytes(), "rules") == rules


def test_a_deposit_pays_one_committee() -> None:
    assert Rules(treasury=TREASURY, vote_fee=7, committee=5).deposit == 35


def test_a_vote_can_be_held_against_a_member_until_all_that_may_follow_is_over() -> None:
    times = {"vote_window": 10, "reveal_window": 20, "appeal_window": 40, "withdrawal_delay": 80}
    assert Rules(treasury=TREASURY, appeals=0, **times).holding == 40 + 80
    assert Rules(treasury=TREASURY, appeals=2, **times).holding == 2 * (2 * 10 + 20 + 40) + 40 + 80


@pytest.mark.parametrize("data", [b"{}", b"[]", b"null", b'{"treasury":"0"}', RULES.to_bytes() + b"\n", b""])
def test_bytes_that_are_no_rules_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="rules"):
        Rules.from_bytes(data, "rules")
