"""A prover that was killed goes on from what it kept, with the same bytes, and never posts another replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tallystick.core.errors import UnavailableError  # noqa: E402
from tallystick.disputes.coordinators.coordinator import manifest_digest  # noqa: E402
from tallystick.disputes.evidence.traces import RecordTrace  # noqa: E402
from tallystick.disputes.game.state import Clocks, Dispute, Phase  # noqa: E402
from tests.support.attacks.disputes.noise import other_kernels  # noqa: E402
from tests.support.attacks.disputes.scene import CALL, Scene  # noqa: E402

PLACES = (1, 3)


def dispute_over(trace: RecordTrace) -> tuple[Dispute, Dispute]:
    """A dispute at a call's record, and after the descent."""
    clocks = Clocks(100, 100, 0)
    above = Dispute(0, "c", 2, "", trace.records.size, CALL - 1, CALL, Phase.LEAF, clocks, 0, 0)
    descent = trace.descend(above)
    assert descent is not None
    size = descent.size
    below = Dispute(0, "c", 1, descent.root, size, 0, size, Phase.PARTITION, clocks, 0, 0, leaf=descent.record.leaf)
    return above, below


def answers(trace: RecordTrace, above: Dispute, below: Dispute) -> tuple[Any, ...]:
    descent, partition = trace.descend(above), trace.partition(below, PLACES)
    reveal = trace.reveal(replace(below, low=2, high=3))
    assert descent is not None
    digests = [manifest_digest(as_files(each.files)) for each in (descent, partition, reveal)]
    return descent.root, partition.cuts, reveal.cuts, digests


def as_files(files: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(files)


def test_a_new_program_answers_with_the_same_bytes_and_without_a_replay(scene: Scene, tmp_path: Path) -> None:
    first = scene.call_trace(tmp_path, other_kernels(1))
    above, below = dispute_over(first)
    again = scene.call_trace(tmp_path, other_kernels(2))
    assert answers(again, above, below) == answers(first, above, below)


def test_a_half_written_trace_is_made_anew(scene: Scene, tmp_path: Path) -> None:
    draft = tmp_path / "operators" / f".{CALL - 1}.draft"
    draft.mkdir(parents=True)
    (draft / "opening.json").write_bytes(b"{")
    trace = scene.call_trace(tmp_path)
    above, below = dispute_over(trace)
    assert answers(trace, above, below)[0] == below.root
    assert not draft.exists()


def test_where_the_kept_trace_is_lost_the_same_stack_answers_and_another_one_posts_nothing(
    scene: Scene, tmp_path: Path
) -> None:
    first = scene.call_trace(tmp_path / "first")
    _, below = dispute_over(first)
    same = scene.call_trace(tmp_path / "second")
    assert same.partition(below, PLACES).cuts == first.partition(below, PLACES).cuts
    other = scene.call_trace(tmp_path / "third", other_kernels(1))
    with pytest.raises(UnavailableError, match="another replay has other bits"):
        other.partition(below, PLACES)


def test_a_record_without_operators_is_revealed(scene: Scene, tmp_path: Path) -> None:
    trace = scene.training_trace(tmp_path)
    header = Dispute(0, "c", 2, "", trace.records.size, 0, 1, Phase.LEAF, Clocks(100, 100, 0), 0, 0)
    assert trace.descend(header) is None
    assert list(trace.reveal(header).files) == ["records/0.json"]
