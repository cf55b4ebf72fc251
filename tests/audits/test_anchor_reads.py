"""What an audit reads: each anchor file once, two states in memory at most, and no record encoded a second time."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.chosen_segment import verify_segment
from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.audits.training import audit_training
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import StateFile
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import StepRecord
from tallystick.workloads.verifier_stack import VerifierStack

Audit = Callable[[RunDirectory, VerifierStack], Report]
AUDITS: dict[str, Audit] = {
    "sampled": lambda run, stack: audit_training(run, Policy(samples=2), bytes(32), stack),
    "full": lambda run, stack: audit_training(run, Policy(full=True), bytes(32), stack),
    "tolerant": lambda run, stack: audit_training(run, Policy(mode="tolerant", full=True), bytes(32), stack),
    "segment": lambda run, stack: verify_segment(run, Policy(), 4, 12, stack),
}


class HeldState(dict[str, Tensor]):
    """A state that can be watched: weak references to a plain `dict` do not exist."""

    __hash__ = object.__hash__


@pytest.fixture
def stack(one_thread: None) -> VerifierStack:
    from tallystick.frameworks.torch.environment import describe_environment
    from tallystick.frameworks.torch.training.replayer import TorchReplayer

    return VerifierStack(describe_environment("cpu"), TorchReplayer)


@pytest.mark.parametrize("name", AUDITS)
def test_each_anchor_is_opened_once(
    name: str, plain: Path, stack: VerifierStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Counter[str] = Counter()
    read = StateFile.__init__

    def counted(self: StateFile, path: Path, **options: Any) -> None:
        opened[path.name] += 1
        read(self, path, **options)

    monkeypatch.setattr(StateFile, "__init__", counted)
    report = AUDITS[name](RunDirectory(plain), stack)
    assert report.verdict.outcome == "accepted"
    assert report.replayed_steps > 0
    assert opened == {path.name: 1 for path in (plain / "anchors").iterdir()}


@pytest.mark.parametrize("name", AUDITS)
def test_no_more_than_two_anchors_are_in_memory(
    name: str, plain: Path, stack: VerifierStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: WeakSet[HeldState] = WeakSet()
    most, read = 0, CheckedRun.state

    def watched(self: CheckedRun, anchor: int) -> dict[str, Tensor]:
        nonlocal most
        state = HeldState(read(self, anchor))
        held.add(state)
        most = max(most, len(held))
        return state

    monkeypatch.setattr(CheckedRun, "state", watched)
    gc.collect()
    AUDITS[name](RunDirectory(plain), stack)
    assert most == 2


def test_each_step_record_is_encoded_once(plain: Path, stack: VerifierStack, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: Counter[int] = Counter()
    to_bytes = StepRecord.to_bytes

    def counted(self: StepRecord) -> bytes:
        encoded[self.index] += 1
        return to_bytes(self)

    monkeypatch.setattr(StepRecord, "to_bytes", counted)
    AUDITS["full"](RunDirectory(plain), stack)
    assert encoded == dict.fromkeys(range(1, 13), 1)


def test_an_anchor_that_is_not_the_recorded_one_leaves_no_replay_in_the_report(run: Path, stack: VerifierStack) -> None:
    last = sorted((run / "anchors").iterdir())[-1]
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    report = AUDITS["full"](RunDirectory(run), stack)
    assert [finding.name for finding in report.verdict.objections] == ["anchor"]
    assert (report.segments, report.replayed) == ((), "nothing")
