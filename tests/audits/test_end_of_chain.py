"""Where nobody can replay the last segment, no sample is accepted: nothing ties the final weights to the run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from research.attacks.loops import (
    STEPS,
    STRIDE,
    file_of,
    loop_end_withdrawn,
    loop_end_without_batch,
    train_loop,
    withdraw,
)
from tallystick.audits.opened_segment import audit_opened_segment
from tallystick.audits.policy import Policy, sample_steps
from tallystick.audits.report import Report
from tallystick.audits.training import audit_training, verify_segment
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.training.verifier_stack import GraphReplayer, TorchReplayer
from tallystick.formats.store.directories import SegmentDirectory
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.segment_opening import open_segment
from tallystick.tally.attacks.forging import seal
from tallystick.verdicts.replayer import VerifierStack

BEFORE = STEPS - STRIDE
"""The anchor before the last one."""


@pytest.fixture(scope="module")
def loop(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("loop") / "run"
    train_loop(out)
    return out


@pytest.fixture
def copied(loop: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(loop, tmp_path / "run")))


def stack() -> VerifierStack:
    return VerifierStack(describe_environment("cpu"), TorchReplayer, graph_replayer=GraphReplayer)


def sampled(run: Path, steps: Iterable[int], **policy: Any) -> Report:
    """An audit of two samples or fewer, with the first nonce that draws `steps` alone."""
    wanted, claim = {*steps}, RunDirectory(run).claim().identity
    samples = min(2, len(wanted))
    nonces = (number.to_bytes(32) for number in count())
    nonce = next(each for each in nonces if {*sample_steps(each, claim, STEPS, samples)} <= wanted)
    return audit_training(RunDirectory(run), Policy(samples=samples, **policy), nonce, stack())


EARLY = range(1, STRIDE + 1)


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (loop_end_withdrawn, "the recorder withdrew the graph of step 19 (the loop does something else)"),
        (loop_end_without_batch, "the batch of step 24 is not there"),
    ],
)
def test_edited_weights_behind_an_end_that_nobody_can_replay(
    loop: Path, tmp_path: Path, forge: Callable[[Path, Path], None], why: str
) -> None:
    forge(loop, tmp_path / "forged")
    for report in (sampled(tmp_path / "forged", EARLY), sampled(tmp_path / "forged", EARLY, full=True)):
        assert report.verdict.outcome == "inconclusive"
        (line,) = [line for line in report.verdict.unavailable if line.startswith("end of the run")]
        assert f"steps 19–24 cannot be replayed up to the last anchor: {why}" in line
        assert "nothing ties the final weights" in line
        assert "record it again" in line


def test_an_end_that_was_not_drawn_is_chance(loop: Path) -> None:
    assert sampled(loop, EARLY).verdict.accepted


def test_steps_withdrawn_in_the_middle_are_named_and_no_more(copied: RunDirectory) -> None:
    withdraw(copied, 8, 9)
    report = sampled(copied.path, EARLY)
    assert report.verdict.accepted
    assert any(line.startswith("steps 8–9, whose step graph") for line in report.verdict.not_checked)


def test_one_withdrawn_step_in_the_last_segment_is_enough(copied: RunDirectory) -> None:
    withdraw(copied, 22, 22)
    assert sampled(copied.path, EARLY).verdict.outcome == "inconclusive"


def test_a_last_segment_beyond_the_window_names_the_window(loop: Path) -> None:
    report = sampled(loop, [19], window=5)
    assert report.verdict.outcome == "inconclusive"
    assert any("--window 6 reaches them" in line for line in report.verdict.unavailable)
    assert sampled(loop, [19], window=6).verdict.accepted


def test_a_segment_audit_says_what_it_knows_of_the_end(copied: RunDirectory, tmp_path: Path) -> None:
    withdraw(copied, 20, 24)
    chosen = verify_segment(copied, Policy(), 0, STRIDE, stack())
    open_segment(copied, 0, STRIDE, tmp_path / "opened")
    opened = audit_opened_segment(SegmentDirectory(tmp_path / "opened"), Policy(), stack())
    for report in (chosen, opened):
        assert report.verdict.accepted
        assert any("the end of the run" in line and "withdrew" in line for line in report.verdict.not_checked)
    last = verify_segment(copied, Policy(), BEFORE, STEPS, stack())
    assert last.verdict.outcome == "inconclusive"


def test_a_claim_without_weights_says_so(copied: RunDirectory) -> None:
    copied.claim_path.write_bytes(seal(copied).model_copy(update={"weights": None}).to_bytes())
    assert any(
        line.startswith("the claim names no weights") for line in sampled(copied.path, EARLY).verdict.not_checked
    )


def test_a_withheld_batch_in_the_middle_stays_chance(copied: RunDirectory) -> None:
    (copied.path / file_of(copied, 9)).unlink()
    assert sampled(copied.path, EARLY).verdict.accepted
