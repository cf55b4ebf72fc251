"""What a verifier has of a run, given with a segment of it: the first weights, and the conversations of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

import tallystick
from research.attacks.data import retrained_on, with_a_label_unmasked
from research.attacks.loops import tunes, with_start
from tallystick.core.errors import UsageError
from tallystick.tally.auditing import AuditResult
from tallystick.tally.cli.entry import run as tally
from tests.support.chat_scene import record_rows, write_conversations, write_model_directory

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on packed rows from a checkpoint; `corpus` and `model` lie beside it."""
    folder = tmp_path_factory.mktemp("scene")
    corpus, model = write_conversations(folder / "corpus", 30), write_model_directory(folder / "model")
    tallystick.write_rows(corpus, model, folder / "rows", length=48, packing="apart")
    record_rows(folder / "run", folder / "rows", initial=model, size=2, stride=2)
    return folder


def audited(scene: Path, run: Path, start: int, end: int, out: Path) -> AuditResult:
    """A segment of a run, opened into `out` and audited by a verifier who has corpus and model."""
    tallystick.open_segment(run, start, end, out)
    return tallystick.audit(out, corpus=scene / "corpus", initial=scene / "model")


def test_a_segment_from_the_first_anchor_shows_the_first_weights_and_the_rows(scene: Path, tmp_path: Path) -> None:
    result = audited(scene, scene / "run", 0, 2, tmp_path / "segment")
    assert result.accepted, result.text()
    shown = " ".join(result.verdict.shown)
    assert "the run begins with the weights of" in shown
    assert "4 of 4 rows were made again from the conversations" in shown
    assert "--corpus" in result.text()
    assert "--initial" in result.text()


def test_a_segment_alone_compares_its_batches_with_the_rows(scene: Path, tmp_path: Path) -> None:
    tallystick.open_segment(scene / "run", 2, 4, tmp_path / "segment")
    result = tallystick.audit(tmp_path / "segment")
    assert result.accepted, result.text()
    assert any("the 2 replayed batches are rows of" in line for line in result.verdict.shown)
    (tmp_path / "segment" / "data" / "rows.leaves").unlink()
    assert tallystick.audit(tmp_path / "segment").outcome == "inconclusive"


def test_a_segment_that_begins_later_says_that_it_does_not_show_the_first_weights(scene: Path, tmp_path: Path) -> None:
    line = "the segment begins at the anchor of step 2, and only that of step 0 shows it"
    alone = audited(scene, scene / "run", 2, 4, tmp_path / "segment")
    whole = tallystick.verify_segment(scene / "run", 2, 4, initial=scene / "model")
    for result in (alone, whole):
        assert result.accepted, result.text()
        assert [each for each in result.verdict.not_checked if each.endswith(line)] != []
        assert not any("begins with" in each for each in result.verdict.shown)


def test_a_segment_from_a_first_state_that_is_not_the_stated_one_is_rejected(scene: Path, tmp_path: Path) -> None:
    with_start(tunes)(scene / "run", tmp_path / "forged")
    alone = audited(scene, tmp_path / "forged", 0, 2, tmp_path / "segment")
    whole = tallystick.verify_segment(tmp_path / "forged", 0, 2, initial=scene / "model")
    for result in (alone, whole):
        assert {each.name for each in result.objections} == {"first weights"}
    assert tallystick.verify_segment(tmp_path / "forged", 0, 2).accepted
    assert tallystick.verify_segment(scene / "run", 0, 2, initial=scene / "model").accepted


def test_a_segment_on_forged_rows_is_rejected_by_whoever_has_the_conversations(scene: Path, tmp_path: Path) -> None:
    retrained_on(with_a_label_unmasked)(scene / "run", tmp_path / "forged")
    tallystick.open_segment(tmp_path / "forged", 0, 4, tmp_path / "segment")
    result = tallystick.audit(tmp_path / "segment", corpus=scene / "corpus", initial=scene / "model")
    assert {each.name for each in result.objections} == {"rows of the corpus"}
    assert tallystick.audit(tmp_path / "segment").accepted


def test_what_a_segment_does_not_take_is_refused(
    scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tallystick.open_segment(scene / "run", 0, 2, tmp_path / "segment")
    with pytest.raises(UsageError, match="a segment holds its anchors"):
        tallystick.audit(tmp_path / "segment", anchors="memory://anchors")
    asked = ["verify-segment", str(scene / "run"), "--from", "0", "--to", "2", "--initial", str(scene / "model")]
    assert tally(asked) == 0
    assert f"repeat: tally {' '.join(asked)}" in capsys.readouterr().out
