"""A run killed at any instant can be taken up again, and ends under the root of an undisturbed one."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.tensor_digests import state_digest
from tallystick.formats.claims import Claim
from tallystick.formats.records import AnchorRecord, StepRecord, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import Anchors, RunDirectory
from tallystick.recording.training import find_resume_point
from tests.support.prefork.commands import commands

SHORT: Mapping[str, Any] = {
    "training": {"steps": 6},
    "record": {"anchor_stride": 2, "summaries": ["projection"]},
}
WORKSHOP = Path(__file__).with_name("interrupted.py")
Perform = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def perform(source: Path, recipe_of: Callable[..., Any]) -> Iterator[Perform]:
    """Let the workshop train or resume in a child of its own, killed at event `kill_at`."""
    recipe = recipe_of(SHORT).to_json()
    with subprocess.Popen(
        [commands() / "python", WORKSHOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as workshop:
        assert workshop.stdin is not None
        assert workshop.stdout is not None

        def job(do: str, out: Path, kill_at: int = 0, by: int = signal.SIGKILL, **more: str) -> dict[str, Any]:
            order = {"do": do, "recipe": recipe, "source": str(source), "out": str(out), "kill_at": kill_at, "with": by}
            order |= more
            assert workshop.stdin is not None
            assert workshop.stdout is not None
            print(json.dumps(order), file=workshop.stdin, flush=True)
            answer: dict[str, Any] = json.loads(workshop.stdout.readline())
            return answer

        yield job
        workshop.stdin.close()


@pytest.fixture(scope="module")
def undisturbed(perform: Perform, tmp_path_factory: pytest.TempPathFactory) -> tuple[Claim, int]:
    """The claim of the run that nobody interrupted, and how many events it has."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    told = perform("train", out)
    assert told["error"] == ""
    return RunDirectory(out).claim(), told["events"]


def same_run(out: Path, claim: Claim) -> bool:
    resumed = RunDirectory(out).claim()
    return (resumed.transcript, resumed.final_state, resumed.spec) == (claim.transcript, claim.final_state, claim.spec)


@pytest.mark.parametrize("offset", [0, 3, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 4, 5))])
def test_a_run_killed_at_any_write_resumes_to_the_same_root(
    perform: Perform, undisturbed: tuple[Claim, int], tmp_path: Path, offset: int
) -> None:
    claim, events = undisturbed
    resumed = 0
    for kill_at in range(1 + offset, events + 1, 6):
        out = tmp_path / str(kill_at)
        assert perform("train", out, kill_at)["signal"] == 9
        if (out / "claim.json").exists():
            continue  # nothing left to do
        told = perform("resume" if (out / "spec.json").exists() else "train", out)
        assert told["error"] == "", f"killed at event {kill_at}"
        assert same_run(out, claim), f"killed at event {kill_at}"
        resumed += 1
    assert resumed > 6


def test_a_run_that_keeps_few_anchors_in_parts_loses_none_of_them_wherever_it_is_killed(
    perform: Perform, undisturbed: tuple[Claim, int], tmp_path: Path
) -> None:
    claim, _ = undisturbed
    whole = tmp_path / "whole"
    events = perform("train", whole, keep="1")["events"]
    assert list((whole / "anchors").glob("*.json"))
    for kill_at in range(events // 3, events + 1, 9):
        out = tmp_path / str(kill_at)
        assert perform("train", out, kill_at, keep="1")["signal"] == 9
        if not (out / "claim.json").exists():
            assert perform("resume", out, keep="1")["error"] == "", f"killed at event {kill_at}"
        assert same_run(out, claim), f"killed at event {kill_at}"
        records = (read_record(line, "record") for line in read_lines(out / "transcript.jsonl"))
        anchors = {record.index: record.digest for record in records if isinstance(record, AnchorRecord)}
        assert Anchors(out).present(anchors) == (0, 6)
        assert all(state_digest(Anchors(out).read(mark)) == anchors[mark] for mark in (0, 6))


def test_a_run_killed_again_while_it_resumes_still_ends_under_the_same_root(
    perform: Perform, undisturbed: tuple[Claim, int], tmp_path: Path
) -> None:
    claim, events = undisturbed
    out = tmp_path / "run"
    perform("train", out, events // 2)
    for kill_at in (3, 8, 13, 21):
        perform("resume", out, kill_at)
    assert perform("resume", out)["error"] == ""
    assert same_run(out, claim)


def test_a_run_killed_before_its_spec_stood_says_that_there_is_nothing_to_resume(
    perform: Perform, tmp_path: Path
) -> None:
    perform("train", tmp_path / "run", 2)
    told = perform("resume", tmp_path / "run")
    assert told["error"].startswith("UnavailableError: spec.json: not there; ")
    assert "train it again" in told["error"]


def test_ctrl_c_at_any_early_write_leaves_a_run_that_resumes_or_begins_again(
    perform: Perform, undisturbed: tuple[Claim, int], tmp_path: Path
) -> None:
    claim, _ = undisturbed
    again = {"train": 0, "resume": 0}
    for at in range(2, 31, 2):
        out = tmp_path / str(at)
        assert perform("train", out, at, signal.SIGINT)["error"].startswith("KeyboardInterrupt"), f"event {at}"
        then = "resume" if (out / "spec.json").exists() else "train"
        assert perform(then, out)["error"] == "", f"{then} after event {at}"
        assert same_run(out, claim), f"event {at}"
        again[then] += 1
    assert min(again.values()) > 2


@pytest.fixture
def unfinished(plain: Path, tmp_path: Path) -> Callable[[int], RunDirectory]:
    """A copy of a finished run cut back to its first lines, as if it had been killed there."""
    import shutil

    def cut(lines: int) -> RunDirectory:
        out = Path(shutil.copytree(plain, tmp_path / "run"))
        (out / "claim.json").unlink()
        kept = (out / "transcript.jsonl").read_bytes().splitlines(keepends=True)[:lines]
        (out / "transcript.jsonl").write_bytes(b"".join(kept))
        return RunDirectory(out)

    return cut


def resumed_as(run: RunDirectory, finished: Path) -> bool:
    from tallystick.recording.training import resume

    claim = resume(run.path)
    return (
        same_run(finished, claim)
        and (run.path / "transcript.jsonl").read_bytes() == (finished / "transcript.jsonl").read_bytes()
    )


def lines_up_to(run: Path, kind: type, index: int) -> int:
    records = [read_record(line, "record") for line in read_lines(run / "transcript.jsonl")]
    return next(n for n, r in enumerate(records, 1) if isinstance(r, kind) and getattr(r, "index", None) == index)


@pytest.mark.usefixtures("one_thread")
class TestResuming:
    def test_a_torn_last_line_is_dropped(self, unfinished: Callable[[int], RunDirectory], plain: Path) -> None:
        run = unfinished(10)
        with run.transcript_path.open("ab") as file:
            file.write(b'{"activation":[0.1,')
        assert resumed_as(run, plain)

    def test_an_anchor_file_without_its_record_is_written_again(
        self, unfinished: Callable[[int], RunDirectory], plain: Path
    ) -> None:
        run = unfinished(lines_up_to(plain, StepRecord, 8))
        assert (run.path / "anchors/step_00000008.safetensors").exists()
        point = find_resume_point(run)
        assert point is not None
        assert point.index == 4
        assert resumed_as(run, plain)

    @pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "empty"])
    def test_a_damaged_last_anchor_falls_back_to_the_one_before(
        self, unfinished: Callable[[int], RunDirectory], plain: Path, harm: str
    ) -> None:
        run = unfinished(lines_up_to(plain, AnchorRecord, 8) + 2)
        anchor = run.path / "anchors/step_00000008.safetensors"
        data = bytearray(anchor.read_bytes())
        data[-9] ^= 1
        {
            "flip": lambda: anchor.write_bytes(data),
            "truncate": lambda: anchor.write_bytes(data[:-100]),
            "delete": anchor.unlink,
            "empty": lambda: anchor.write_bytes(b""),
        }[harm]()
        point = find_resume_point(run)
        assert point is not None
        assert point.index == 4
        assert resumed_as(run, plain)

    def test_an_intact_last_anchor_is_the_point_to_resume_from(
        self, unfinished: Callable[[int], RunDirectory], plain: Path
    ) -> None:
        point = find_resume_point(unfinished(lines_up_to(plain, AnchorRecord, 8) + 2))
        assert point is not None
        assert (point.index, len(point.lines_after)) == (8, 2)

    def test_a_run_without_any_whole_anchor_starts_over(
        self, unfinished: Callable[[int], RunDirectory], plain: Path
    ) -> None:
        run = unfinished(2)
        (run.path / "anchors/step_00000000.safetensors").unlink()
        assert find_resume_point(run) is None
        assert resumed_as(run, plain)

    def test_only_the_claim_is_missing(self, unfinished: Callable[[int], RunDirectory], plain: Path) -> None:
        assert resumed_as(unfinished(10_000), plain)

    def test_records_that_this_machine_does_not_reproduce_are_refused(
        self, unfinished: Callable[[int], RunDirectory], plain: Path
    ) -> None:
        from tallystick.recording.training import resume

        run = unfinished(lines_up_to(plain, StepRecord, 10))
        lines = run.transcript_path.read_bytes().splitlines(keepends=True)
        lines[-2] = lines[-2].replace(b'"train"', b'"validation"')
        run.transcript_path.write_bytes(b"".join(lines))
        with pytest.raises(UnavailableError, match="does not reproduce the step record 9"):
            resume(run.path)

    def test_a_finished_run_is_not_resumed(self, plain: Path) -> None:
        from tallystick.recording.training import resume

        with pytest.raises(UsageError, match="finished"):
            resume(plain)

    def test_a_run_from_another_stack_is_not_resumed(
        self, unfinished: Callable[[int], RunDirectory], plain: Path
    ) -> None:
        from tallystick.recording.training import resume

        run = unfinished(10)
        text = run.environment_path.read_text()
        run.environment_path.write_text(text.replace('"threads":1', '"threads":3'))
        with pytest.raises(UnavailableError, match=r"another stack.*threads: 3 / 1"):
            resume(run.path)
