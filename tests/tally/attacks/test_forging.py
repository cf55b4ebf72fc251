from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from research.attacks.loops import tokens_of
from research.attacks.records import shift_earlier, shift_later, swap_contents
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.tensor_digests import digest_state, state_digest
from tallystick.core.tensors import Tensor
from tallystick.formats.records import Record, StepRecord
from tallystick.formats.store.keeping import AnchorWriter
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.forging import (
    copy_run,
    find_scene,
    place_of_step,
    read_anchor,
    read_records,
    relink,
    replace_anchor,
    seal,
    write_records,
)
from tests.support.attacks.reference import STEPS, STRIDE


def losses(records: list[Record]) -> list[object]:
    return [record.loss for record in records if isinstance(record, StepRecord)]


def test_sealing_an_honest_copy_gives_the_claim_of_the_recorder(reference: Path, tmp_path: Path) -> None:
    copied = copy_run(reference, tmp_path / "copy")
    assert seal(copied) == RunDirectory(reference).claim()


def test_writing_the_same_records_gives_the_same_claim(reference: Path, tmp_path: Path) -> None:
    copied = copy_run(reference, tmp_path / "copy")
    assert write_records(copied, read_records(copied)) == RunDirectory(reference).claim()


def test_replacing_an_anchor_by_itself_changes_nothing(reference: Path, tmp_path: Path) -> None:
    copied = copy_run(reference, tmp_path / "copy")
    replace_anchor(copied, STRIDE, read_anchor(copied, STRIDE))
    assert copied.claim() == RunDirectory(reference).claim()


def test_replacing_an_anchor_leaves_the_states_that_referred_to_it(reference: Path, tmp_path: Path) -> None:
    forged = copy_run(reference, tmp_path / "forged")
    marks = list(range(0, STEPS + 1, STRIDE))
    states = {mark: read_anchor(forged, mark) | {"weights.frozen": Tensor.of(np.ones(4))} for mark in marks}
    shutil.rmtree(forged.path / "anchors")
    writer = AnchorWriter(forged.path, least_saved=0, least_share=0.0)
    for mark, state in states.items():
        writer.write(mark, state, digest_state(state))
    other = states[0] | {"weights.frozen": Tensor.of(np.zeros(4))}
    replace_anchor(forged, 0, other)
    found = {mark: state_digest(read_anchor(forged, mark)) for mark in marks}
    assert found == {mark: state_digest(state) for mark, state in (states | {0: other}).items()}


def test_relinking_honest_records_changes_nothing(reference: Path) -> None:
    records = read_records(RunDirectory(reference))
    assert relink(records) == records


def test_a_forger_strikes_between_the_middle_anchor_and_the_next(reference: Path) -> None:
    scene = find_scene(RunDirectory(reference))
    assert (scene.before, scene.middle, scene.after, scene.last) == (STRIDE, 2 * STRIDE, 3 * STRIDE, STEPS)
    assert scene.middle + 1 < scene.step < scene.after


def test_a_run_with_too_few_anchors_is_no_scene(reference: Path, tmp_path: Path) -> None:
    copied = copy_run(reference, tmp_path / "copy")
    records = read_records(copied)
    write_records(copied, records[: place_of_step(records, STRIDE + 1)])
    with pytest.raises(UsageError, match="too short to be forged"):
        find_scene(copied)


def test_an_unfinished_run_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UnavailableError, match=r"claim\.json"):
        copy_run(tmp_path / "run", tmp_path / "out")


def test_contents_move_and_numbers_stay(reference: Path) -> None:
    records = read_records(RunDirectory(reference))
    held = losses(records)
    assert losses(swap_contents(records, 2, 3))[:4] == [held[0], held[2], held[1], held[3]]
    assert losses(shift_earlier(records, 2, 4))[:5] == [held[0], held[2], held[3], held[3], held[4]]
    assert losses(shift_later(records, 2, 4))[:5] == [held[0], held[1], held[1], held[2], held[4]]
    for moved in (swap_contents(records, 2, 3), shift_earlier(records, 2, 4)):
        steps = [record.index for record in moved if isinstance(record, StepRecord)]
        assert steps == list(range(1, STEPS + 1))


def test_the_token_that_is_exchanged_is_none_of_a_mask() -> None:
    ids, mask = Tensor.of(np.ones((1, 4), np.int64)), Tensor.of(np.ones((1, 4), np.int64))
    assert tokens_of({"attention_mask": mask, "input_ids": ids, "labels": ids}) == "input_ids"
    with pytest.raises(UsageError, match="the batches of this run hold none"):
        tokens_of({"x0": Tensor.of(np.ones(4, np.float32))})
