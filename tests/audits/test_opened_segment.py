"""A segment that is handed over alone: the verdict of the run on its steps, and nothing from its bearer is believed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.opened_segment import audit_opened_segment
from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.core.canonical_json import encode
from tallystick.core.errors import ProofError, UsageError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor
from tallystick.formats.store.directories import SegmentDirectory
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.segment_opening import open_segment
from tallystick.verdicts.replayer import VerifierStack

OTHER = "sha256:" + "0" * 64
Audited = Callable[..., Report]
END = "anchors/step_00000008.safetensors"


@pytest.fixture(scope="module")
def opened(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 5 to 8, opened from a run of which no other anchor is left. Never write into it."""
    folder = tmp_path_factory.mktemp("segment")
    run = Path(shutil.copytree(honest, folder / "run"))
    for mark in (0, 12):
        (run / f"anchors/step_{mark:08d}.safetensors").unlink()
    open_segment(RunDirectory(run), 4, 8, folder / "opened")
    return folder / "opened"


@pytest.fixture
def segment(opened: Path, tmp_path: Path) -> Path:
    """A copy of it to tamper with."""
    return Path(shutil.copytree(opened, tmp_path / "opened"))


@pytest.fixture
def audited_alone(one_thread: None) -> Audited:
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import TorchReplayer

    stack = VerifierStack(describe_environment("cpu"), TorchReplayer)

    def audit(path: Path, **policy: Any) -> Report:
        return audit_opened_segment(SegmentDirectory(path), Policy.from_json(policy, "policy"), stack)

    return audit


def test_a_segment_alone_is_accepted_and_says_what_nothing_follows_for(opened: Path, audited_alone: Audited) -> None:
    report = audited_alone(opened, claim=RunDirectory(opened).claim().identity)
    assert (report.verdict.outcome, report.replayed_steps, report.steps) == ("accepted", 4, 12)
    assert report.verdict.gist == "4 of 12 steps replayed from the recipe"
    assert "whether the first state is the one that the seed gives" in report.verdict.not_checked
    assert "whether the weights that the claim names are those of the last anchor" in report.verdict.not_checked
    assert {path.name for path in (opened / "anchors").iterdir()} == {"step_00000004.safetensors", Path(END).name}


@pytest.mark.parametrize(("start", "end", "check"), [(0, 4, "initial state"), (8, 12, "weights")])
def test_the_ends_of_the_chain_are_checked_where_they_are_in_the_segment(
    honest: Path, tmp_path: Path, audited_alone: Audited, start: int, end: int, check: str
) -> None:
    open_segment(RunDirectory(honest), start, end, tmp_path / "opened")
    report = audited_alone(tmp_path / "opened")
    assert report.verdict.outcome == "accepted", (report.verdict.unavailable, report.verdict.objections)
    assert any(finding.name == check and finding.agrees for finding in report.verdict.findings)


def test_a_longer_segment_has_two_anchors_too(honest: Path, tmp_path: Path, audited_alone: Audited) -> None:
    open_segment(RunDirectory(honest), 0, 12, tmp_path / "opened")
    assert len(list((tmp_path / "opened/anchors").iterdir())) == 2
    report = audited_alone(tmp_path / "opened")
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 12)


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def other_weights(path: Path) -> None:
    state = dict(read_state(path / END))
    name = next(each for each in state if each.startswith("weights."))
    state[name] = Tensor.of(state[name].array() * 2)
    write_state(path / END, state)


def edit_record(path: Path) -> None:
    lines = (path / "records.jsonl").read_bytes().splitlines()
    opened = json.loads(lines[3])
    record = json.loads(opened["record"])
    opened["record"] = encode(record | {"loss": 1.0}).decode()
    lines[3] = encode(opened)
    (path / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def move_record(path: Path) -> None:
    text = (path / "records.jsonl").read_text()
    (path / "records.jsonl").write_text(text.replace('"index":6,', '"index":7,', 1))


FORGERIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "anchor": (other_weights, "anchor"),
    "anchor's bytes": (lambda path: flip(path / END), "anchor"),
    "record": (edit_record, "records"),
    "record moved": (move_record, "records"),
    "records torn": (lambda path: (path / "records.jsonl").write_bytes(b"{"), "records"),
    "chunk": (lambda path: flip(path / "data/chunks/chunk_00000000.bin"), "batch"),
    "chunk's proof": (
        lambda path: (path / "data/chunks/chunk_00000000.json").write_bytes(
            b'{"chunk":"tokens","index":0,"proof":["%s"],"version":1}' % (b"0" * 64)
        ),
        "batch",
    ),
    "tokenizer": (lambda path: flip(path / "data/tokenizer.json", -5), "data"),
    "spec": (lambda path: flip(path / "spec.json", 40), "spec"),
    "claim": (lambda path: flip(path / "claim.json", 60), "records"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_not_under_the_claim_is_rejected(segment: Path, audited_alone: Audited, name: str) -> None:
    forge, check = FORGERIES[name]
    claim = RunDirectory(segment).claim().identity
    forge(segment)
    report = audited_alone(segment, claim=claim) if name == "claim" else audited_alone(segment)
    assert report.verdict.outcome == "rejected"
    if name != "claim":
        assert check in {finding.name for finding in report.verdict.objections}


def test_a_segment_of_another_run_is_rejected(
    segment: Path, plain: Path, tmp_path: Path, audited_alone: Audited
) -> None:
    identity = RunDirectory(segment).claim().identity
    other = open_segment(RunDirectory(plain), 4, 8, tmp_path / "other").path
    assert audited_alone(other).verdict.outcome == "accepted"
    assert audited_alone(other, claim=identity).verdict.outcome == "rejected"
    shutil.copyfile(other / "records.jsonl", segment / "records.jsonl")
    assert audited_alone(segment).verdict.outcome == "rejected"


MISSING = (
    *("claim.json", "spec.json", "environment.json", "segment.json", "records.jsonl", "data/tokenizer.json"),
    *("data/chunks/chunk_00000000.bin", "data/chunks/chunk_00000000.json", END),
)


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_leaves_it_inconclusive(segment: Path, audited_alone: Audited, name: str) -> None:
    (segment / name).unlink()
    report = audited_alone(segment)
    assert report.verdict.outcome == "inconclusive"
    assert any("not there" in line for line in report.verdict.unavailable)


@pytest.mark.parametrize("kept", [slice(1, None), slice(0, -1), slice(0, 3), slice(0, 0)])
def test_records_that_are_left_out_leave_it_inconclusive(segment: Path, audited_alone: Audited, kept: slice) -> None:
    lines = (segment / "records.jsonl").read_bytes().splitlines(keepends=True)
    (segment / "records.jsonl").write_bytes(b"".join(lines[kept]))
    assert audited_alone(segment).verdict.outcome == "inconclusive"


@pytest.mark.parametrize(("start", "end"), [(0, 8), (4, 12), (8, 12)])
def test_other_steps_than_its_records_hold_are_not_accepted(
    segment: Path, audited_alone: Audited, start: int, end: int
) -> None:
    statement = {"end": end, "segment": "training", "start": start, "version": 1}
    (segment / "segment.json").write_bytes(encode(statement))
    assert audited_alone(segment).verdict.outcome == "inconclusive"


@pytest.mark.parametrize(("start", "end"), [(4, 4), (8, 4), (4, 7), (3, 8), (4, 13)])
def test_a_segment_goes_from_anchor_to_anchor(honest: Path, tmp_path: Path, start: int, end: int) -> None:
    with pytest.raises(UsageError):
        open_segment(RunDirectory(honest), start, end, tmp_path / "opened")


def test_a_run_that_is_not_the_claimed_one_is_not_opened(run: Path, tmp_path: Path) -> None:
    flip(run / END)
    with pytest.raises(ProofError, match="does not hold the state its record names"):
        open_segment(RunDirectory(run), 4, 8, tmp_path / "opened")
    assert not (tmp_path / "opened/segment.json").exists()
