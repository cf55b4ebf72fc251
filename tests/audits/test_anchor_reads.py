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
from tallystick.audits.policy import Policy, sample_steps
from tallystick.audits.report import Report
from tallystick.audits.training import audit_training, verify_segment
from tallystick.core.safetensors import StateFile, write_state
from tallystick.core.tensor_digests import digest_state
from tallystick.core.tensors import Tensor
from tallystick.formats.claims import AnchorParts
from tallystick.formats.records import StepRecord
from tallystick.formats.store.keeping import AnchorWriter, thin_anchors
from tallystick.formats.store.run import Anchors, RunDirectory
from tallystick.verdicts.replayer import VerifierStack

Audit = Callable[[RunDirectory, VerifierStack], Report]
AUDITS: dict[str, Audit] = {
    "sampled": lambda run, stack: audit_training(run, Policy(samples=2), bytes(32), stack),
    "full": lambda run, stack: audit_training(run, Policy(full=True), bytes(32), stack),
    "tolerant": lambda run, stack: audit_training(run, Policy(mode="tolerant", full=True), bytes(32), stack),
    "segment": lambda run, stack: verify_segment(run, Policy(), 4, 12, stack),
}
READ = {"full": (0, 4, 8, 12), "tolerant": (0, 4, 8, 12), "segment": (4, 8, 12)}
UNREAD = "{} of 4 anchors (after step {}): no replayed segment starts or ends there"


class HeldState(dict[str, Tensor]):
    """A state that can be watched: weak references to a plain `dict` do not exist."""

    __hash__ = object.__hash__


@pytest.fixture
def stack(one_thread: None) -> VerifierStack:
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import TorchReplayer

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
    read = {0, 12} | report.selection.marks if name == "sampled" else set(READ[name])
    assert opened == dict.fromkeys((f"step_{mark:08d}.safetensors" for mark in read), 1)
    told = [line for line in report.verdict.not_checked if "of 4 anchors" in line]
    left = ", ".join(str(mark) for mark in (0, 4, 8, 12) if mark not in read)
    assert told == ([UNREAD.format(4 - len(read), left)] if left else [])


def spot_check(run: Path, step: int, stack: VerifierStack, **policy: Any) -> Report:
    """An audit of one step, by the first nonce that draws it."""
    directory = RunDirectory(run)
    claim = directory.claim().identity
    nonce = next(n for n in (bytes([n]) * 32 for n in range(256)) if sample_steps(n, claim, 12, 1) == (step,))
    return audit_training(directory, Policy(samples=1, **policy), nonce, stack)


def test_a_spot_check_needs_the_anchors_of_its_segment_and_the_ends_of_the_chain(
    run: Path, stack: VerifierStack
) -> None:
    (run / "anchors/step_00000008.safetensors").unlink()
    report = spot_check(run, 2, stack)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 4)
    assert any("1 of 4 anchors (after step 8)" in line for line in report.verdict.not_checked)
    assert audit_training(RunDirectory(run), Policy(full=True), bytes(32), stack).verdict.outcome == "inconclusive"
    (run / "anchors/step_00000012.safetensors").unlink()
    assert spot_check(run, 2, stack).verdict.outcome == "inconclusive"


def test_a_step_whose_anchor_is_gone_is_replayed_from_the_one_before(run: Path, stack: VerifierStack) -> None:
    (run / "anchors/step_00000004.safetensors").unlink()
    report = spot_check(run, 6, stack)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 8)
    short = spot_check(run, 6, stack, window=5)
    assert short.verdict.outcome == "inconclusive"
    assert "--window 6 reaches them" in short.verdict.unavailable[0]
    (run / "anchors/step_00000000.safetensors").unlink()
    assert any("no anchor before them is there" in line for line in spot_check(run, 6, stack).verdict.unavailable)


def test_a_thinned_run_is_replayed_from_what_is_left_and_never_rejected(run: Path, stack: VerifierStack) -> None:
    assert thin_anchors(run, [0, 4, 8, 12], {0, 12}) == [4, 8]
    report = spot_check(run, 6, stack)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 12)
    full = audit_training(RunDirectory(run), Policy(full=True), bytes(32), stack)
    assert full.verdict.outcome == "inconclusive"
    assert [line.partition(":")[0] for line in full.verdict.unavailable] == ["anchor of step 4", "anchor of step 8"]


@pytest.fixture
def in_parts(run: Path) -> Path:
    """The run with anchors that hold what changed alone."""
    writer, states = (
        AnchorWriter(run, least_saved=0, least_share=0.0),
        {mark: Anchors(run).read(mark) for mark in (0, 4, 8, 12)},
    )
    for mark, state in states.items():
        writer.write(mark, state, digest_state(state))
    assert Anchors(run).elsewhere(12)
    return run


def test_anchors_in_parts_are_audited_as_whole_ones(in_parts: Path, stack: VerifierStack) -> None:
    report = audit_training(RunDirectory(in_parts), Policy(full=True), bytes(32), stack)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 12)
    for path in (in_parts / "anchors").glob("step_00000008.*"):
        path.unlink()
    assert spot_check(in_parts, 6, stack).replayed_steps == 8


def test_a_part_that_is_not_the_recorded_one_is_rejected(in_parts: Path, stack: VerifierStack) -> None:
    part = in_parts / "anchors/step_00000004.part.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    report = audit_training(RunDirectory(in_parts), Policy(full=True), bytes(32), stack)
    assert [finding.name for finding in report.verdict.objections] == ["anchor"]


def test_a_list_that_names_another_anchor_is_rejected_and_one_that_is_gone_is_not(
    in_parts: Path, stack: VerifierStack
) -> None:
    path = in_parts / "anchors/step_00000012.json"
    written = path.read_bytes()
    moving = next(name for name in Anchors(in_parts).read(12) if name.startswith("weights."))
    state = {name: tensor for name, tensor in Anchors(in_parts).read(12).items() if name != moving}
    elsewhere = Anchors(in_parts).elsewhere(12)
    part = {name: tensor for name, tensor in state.items() if name not in elsewhere}
    write_state(in_parts / "anchors/step_00000012.part.safetensors", part)
    path.write_bytes(AnchorParts(elsewhere={**elsewhere, moving: 4}).to_bytes())
    full = Policy(full=True)
    report = audit_training(RunDirectory(in_parts), full, bytes(32), stack)
    assert [finding.name for finding in report.verdict.objections] == ["anchor"]
    path.write_bytes(written)
    (in_parts / "anchors/step_00000012.part.safetensors").unlink()
    assert audit_training(RunDirectory(in_parts), full, bytes(32), stack).verdict.outcome == "inconclusive"


def test_a_segment_is_verified_where_all_other_anchors_are_gone(run: Path, stack: VerifierStack) -> None:
    for mark in (0, 12):
        (run / f"anchors/step_{mark:08d}.safetensors").unlink()
    report = verify_segment(RunDirectory(run), Policy(), 4, 8, stack)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 4)
    assert "whether the first state is the one that the seed gives" in report.verdict.not_checked
    assert "whether the weights that the claim names are those of the last anchor" in report.verdict.not_checked


@pytest.mark.parametrize("name", AUDITS)
def test_no_more_than_two_anchors_are_in_memory(
    name: str, plain: Path, stack: VerifierStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: WeakSet[HeldState] = WeakSet()
    most, read = 0, CheckedRun.state

    def watched(self: CheckedRun, anchor: int, *limits: int) -> dict[str, Tensor]:
        nonlocal most
        state = HeldState(read(self, anchor, *limits))
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
