"""The disputes that end the demo: an honest claim becomes final, two frauds are found, bisected, ruled and paid for."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tallystick.tally.cli.demo import Ended, honest_claim, record_calls, swapped_layer
from tallystick.verdicts.verdict import Fault


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Path:
    folder = tmp_path_factory.mktemp("served")
    record_calls(model_directory, folder / "calls", calls=2)
    return folder


def lost(ended: Ended, party: str) -> int:
    return -ended.gained[party]


def test_an_honest_claim_becomes_final_and_costs_nothing(
    one_thread: None, tmp_path: Path, model_directory: Path
) -> None:
    ended = honest_claim(model_directory, tmp_path / "calls")
    assert (ended.outcome, ended.dispute) == ("final", None)
    assert set(ended.gained.values()) == {0}


def test_a_swapped_layer_ends_at_the_operator_that_reads_it(one_thread: None, served: Path, tmp_path: Path) -> None:
    ended = swapped_layer(served / "calls", tmp_path / "swapped")
    assert ended.dispute is not None
    assert (ended.outcome, ended.dispute.fault, ended.dispute.level) == ("slashed", Fault.PROVER, 1)
    assert ended.operator.startswith("aten.")
    assert lost(ended, "prover") == ended.gained["challenger"] + ended.gained["treasury"] > 0
    assert "bisected" in ended.reason
