"""What a recorded run holds, and what becomes of a step that crashes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.formats.records import FailedRecord, HeaderRecord, StepRecord, read_record
from tallystick.formats.store.log import read_lines
from tallystick.formats.store.run import RunDirectory

FOUR = {"training": {"steps": 4}, "record": {"anchor_stride": 2, "summaries": ["exact", "projection"]}}


def records_of(run: Path) -> list[Any]:
    return [read_record(line, "record") for line in read_lines(run / "transcript.jsonl")]


def steps_of(run: Path) -> list[StepRecord]:
    return [record for record in records_of(run) if isinstance(record, StepRecord)]


def test_records_stand_in_their_order_and_hold_what_the_recipe_asks_for(honest: Path) -> None:
    records = records_of(honest)
    assert isinstance(records[0], HeaderRecord)
    assert [(r.kind, r.index) for r in records[1:8]] == [
        ("anchor", 0),
        ("step", 1),
        ("step", 2),
        ("step", 3),
        ("step", 4),
        ("anchor", 4),
        ("step", 5),
    ]
    for step in steps_of(honest):
        assert (step.post.exact is not None) == (step.index % 2 == 0)
        assert (step.post.fp16_rne is not None) == (step.post.grid is not None) == (step.index % 3 == 0)
        assert step.post.projection is not None
        assert step.activation is not None
        assert round(float(step.loss), 4) == step.loss


def test_boundary_hints_are_kept_as_blobs_named_by_their_digest(honest: Path) -> None:
    run = RunDirectory(honest)
    hints = {bucket.hints for step in steps_of(honest) for bucket in (step.post.fp16_rne, step.post.grid) if bucket}
    assert len(hints) == 8
    for name in hints:
        assert name is not None
        assert run.read_blob(name).startswith(b"tallystick/hints/v1\n")


def test_the_loss_falls_on_real_text(honest: Path) -> None:
    losses = [float(step.loss) for step in steps_of(honest)]
    assert losses[-1] < losses[0]


def test_two_runs_of_one_recipe_have_one_transcript_root(trained: Callable[..., Any], tmp_path: Path) -> None:
    first, second = trained(tmp_path / "a", FOUR), trained(tmp_path / "b", FOUR)
    assert (first.transcript, first.final_state) == (second.transcript, second.final_state)


def test_another_seed_gives_another_run(trained: Callable[..., Any], tmp_path: Path) -> None:
    first = trained(tmp_path / "a", FOUR)
    other = trained(tmp_path / "b", FOUR, {"training": {"seed": 12}})
    assert first.final_state != other.final_state


def test_a_directory_that_is_not_empty_is_refused(trained: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "note").touch()
    with pytest.raises(UsageError, match="not empty"):
        trained(tmp_path)


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the trainer, or another part of a run, fail the `when`-th time it is used."""

    def arrange(owner: Any, name: str, when: int, error: BaseException) -> None:
        original, calls = getattr(owner, name), [0]

        def failing(*arguments: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == when:
                raise error
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, failing)

    return arrange


@pytest.mark.usefixtures("one_thread")
class TestACrashingStep:
    @pytest.mark.parametrize("step", [1, 2, 3, 4])
    def test_leaves_a_failed_record_and_the_run_can_be_resumed_and_audited(
        self,
        trained: Callable[..., Any],
        audited: Callable[..., Any],
        crash: Callable[..., None],
        tmp_path: Path,
        step: int,
    ) -> None:
        from tallystick.engines.torch.training.trainer import Trainer
        from tallystick.recording.training import resume

        out = tmp_path / "run"
        crash(Trainer, "_clip", step, RuntimeError("the device fell asleep"))
        with pytest.raises(UnavailableError, match=rf"step {step} crashed: .*the device fell asleep"):
            trained(out, FOUR)
        last = records_of(out)[-1]
        assert last == FailedRecord(index=step, error="RuntimeError: the device fell asleep")
        assert not (out / "claim.json").exists()
        resume(out)
        assert [record.index for record in steps_of(out)] == [1, 2, 3, 4]
        report = audited(out, full=True)
        assert report.verdict.outcome == "accepted"
        assert any("1 steps crashed and were repeated" in line for line in report.verdict.not_checked)

    def test_that_crashes_twice_is_recorded_twice(
        self, trained: Callable[..., Any], audited: Callable[..., Any], crash: Callable[..., None], tmp_path: Path
    ) -> None:
        from tallystick.engines.torch.training.trainer import Trainer
        from tallystick.recording.training import resume

        out = tmp_path / "run"
        crash(Trainer, "_clip", 3, RuntimeError("first"))
        with pytest.raises(UnavailableError, match="first"):
            trained(out, FOUR)
        crash(Trainer, "_clip", 1, MemoryError("second"))
        with pytest.raises(UnavailableError, match="second"):
            resume(out)
        resume(out)
        failed = [record.error for record in records_of(out) if isinstance(record, FailedRecord)]
        assert failed == ["RuntimeError: first", "MemoryError: second"]
        assert audited(out, full=True).verdict.outcome == "accepted"

    @pytest.mark.parametrize("part", ["sketch", "state"])
    @pytest.mark.parametrize("when", [2, 3, 4, 5, 6])
    def test_in_its_recording_leaves_a_run_that_resumes_to_the_same_root(
        self, trained: Callable[..., Any], crash: Callable[..., None], tmp_path: Path, part: str, when: int
    ) -> None:
        from tallystick.engines.torch.training.trainer import Sketcher, Trainer
        from tallystick.recording.training import resume

        undisturbed = trained(tmp_path / "undisturbed", FOUR)
        out = tmp_path / "run"
        owner = Sketcher if part == "sketch" else Trainer
        crash(owner, part, when, RuntimeError("out of memory"))
        with pytest.raises(UnavailableError, match="out of memory"):
            trained(out, FOUR)
        assert resume(out).transcript == undisturbed.transcript


VARIANTS: dict[str, Mapping[str, Any]] = {
    "bf16": {"training": {"dtype": "bf16"}},
    "accumulation": {"training": {"accumulation": 2, "batch": 2}},
    "sgd with momentum": {"optimizer": {"kind": "sgd", "momentum": 0.9, "learning_rate": 0.05}},
    "plain sgd": {"optimizer": {"kind": "sgd", "learning_rate": 0.05}},
    "linear": {"schedule": {"kind": "linear", "warmup_steps": 2, "final_share": 0.1}},
    "constant": {"schedule": {"kind": "constant", "warmup_steps": 0}},
    "byte pairs": {"tokenizer": {"kind": "bpe", "vocabulary": 300}},
    "grid buckets": {
        "record": {"anchor_stride": 2, "summaries": ["bucket"], "bucket_mode": "grid", "hint_margin": 0.01}
    },
    "exact every third step": {"record": {"anchor_stride": 4, "summaries": ["exact"], "exact_stride": 3}},
    "nothing but anchors": {"record": {"anchor_stride": 2, "summaries": []}},
    "gpt2 with dropout": {
        "model": {
            "architecture": "gpt2",
            "config": {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 32, "resid_pdrop": 0.2},
        }
    },
    "qwen3": {
        "model": {
            "architecture": "qwen3",
            "attention": "sdpa",
            "config": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 16,
            },
        }
    },
}

CNN: dict[str, Any] = {
    "data": {"kind": "digits", "validation": 297},
    "model": {"architecture": "cnn", "config": {"channels": 4, "dropout": 0.2}},
    "optimizer": {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9},
    "training": {"steps": 4, "batch": 16, "sequence": 1},
    "record": {"anchor_stride": 2, "summaries": ["projection", "exact"], "activation_checksum": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_run_is_replayed_bit_for_bit_and_resumed_to_the_same_root(
    trained: Callable[..., Any], audited: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    undisturbed = trained(tmp_path / "run", FOUR, VARIANTS[name])
    assert audited(tmp_path / "run", full=True).verdict.outcome == "accepted"
    assert resumed_from_half(tmp_path / "run").transcript == undisturbed.transcript


def test_a_classifier_of_digits_is_replayed_bit_for_bit_and_resumed_to_the_same_root(
    audited: Callable[..., Any], one_thread: None, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    from tallystick.formats.recipe import Recipe
    from tallystick.recording.training import Config, train

    undisturbed = train(Config(Recipe.from_json(CNN, "recipe")), tmp_path / "run")
    assert audited(tmp_path / "run", full=True).verdict.outcome == "accepted"
    assert resumed_from_half(tmp_path / "run").transcript == undisturbed.transcript


def resumed_from_half(finished: Path) -> Any:
    """Resume a copy of a run that lacks everything behind its first anchor after the initial one."""
    from tallystick.recording.training import resume

    out = Path(shutil.copytree(finished, finished.with_name("half")))
    (out / "claim.json").unlink()
    lines = (out / "transcript.jsonl").read_bytes().splitlines(keepends=True)
    second_anchor = [n for n, line in enumerate(lines) if b'"kind":"anchor"' in line][1]
    (out / "transcript.jsonl").write_bytes(b"".join(lines[: second_anchor + 1]))
    return resume(out)
