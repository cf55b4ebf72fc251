"""Every way to cheat in a dispute ends with the prover at fault, and every honest twin with the challenger."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

torch = pytest.importorskip("torch")

from tallystick.disputes.evidence.doubting import doubter_for  # noqa: E402
from tallystick.disputes.evidence.judging import DisputeJudge  # noqa: E402
from tallystick.disputes.evidence.traces import torch_engine  # noqa: E402
from tallystick.verdicts.verdict import Fault  # noqa: E402
from tests.support.attacks.disputes.catalogue import DECEPTIONS  # noqa: E402
from tests.support.attacks.disputes.scene import Scene  # noqa: E402
from tests.support.rehearsal import Outcome, Rehearsal  # noqa: E402

Play = Callable[[str], Outcome]
LIKE_OTHERS = {
    *("one-value", "wrong-attribute", "value-malformed", "value-withheld-at-the-descent", "another-step"),
    *("another-graph", "wrong-rate-shown", "operator-withheld-at-the-leaf"),
    *(f"{place}-layer-in-{name}" for place in ("first", "last") for name in ("bf16", "f16", "int8")),
} - {"first-layer-in-f16"}
"""Those that end as others of their kind do."""
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in LIKE_OTHERS else ()) for name in DECEPTIONS]


@pytest.fixture(scope="module")
def scene(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """An honest run and honest calls. Never write into them."""
    return Scene.make(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module")
def played(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Play:
    folder = tmp_path_factory.mktemp("played")

    @cache
    def play(name: str) -> Outcome:
        staged = DECEPTIONS[name].stage(scene, folder / name)
        rehearsal = Rehearsal(staged.statement, folder / name / "board")
        outcome = rehearsal.play(staged.trace, doubter_for(), DisputeJudge(), staged.doubt)
        assert outcome is not None, "the challenger finds nothing to contest"
        return outcome

    return play


@pytest.mark.parametrize("name", NAMES)
def test_a_referee_rules_as_expected(name: str, played: Play) -> None:
    wanted, outcome = DECEPTIONS[name], played(name)
    assert (outcome.fault, outcome.dispute.ground) == (wanted.referee, wanted.ground), outcome.reason
    assert wanted.operator in outcome.reason


@pytest.mark.parametrize("name", NAMES)
def test_a_member_of_a_committee_finds_who_is_at_fault(name: str, played: Play) -> None:
    fault, reason = DisputeJudge(torch_engine()).rule(played(name).answered)
    assert fault is DECEPTIONS[name].member, reason


@pytest.mark.parametrize("name", DECEPTIONS)
def test_nobody_is_convicted_who_was_honest(name: str) -> None:
    wanted = DECEPTIONS[name]
    assert (wanted.member is Fault.CHALLENGER) == wanted.is_honest
