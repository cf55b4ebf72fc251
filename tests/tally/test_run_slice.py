"""What can be replayed of a run in the database, and slices of it on every engine."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import ProofError, UnavailableError, UsageError
from tallystick.database.indexing.add import add_place
from tallystick.database.replayable import ReplayKind
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.records import anchor_file
from tallystick.programs.slicing import Coverage
from tallystick.tally.database import Database
from tallystick.tally.training import train
from tests.conftest import FAST, TINY
from tests.support.small_loop import BATCH, STEPS, record_small_loop


@pytest.fixture(scope="module")
def recorded(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_small_loop(tmp_path_factory.mktemp("loop") / "loop")


@pytest.fixture
def loop(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "loop"))


@pytest.fixture
def db(loop: Path, honest: Path, tmp_path: Path) -> Iterator[Database]:
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as database:
        add_place(database, loop, tensors=False)
        add_place(database, honest, "recipe", tensors=False)
        yield Database(database)


def ranges(db: Database) -> list[tuple[int, int, str]]:
    return [(each.first, each.last, str(each.replay)) for each in db.discover("loop").ranges]


def test_a_whole_run_is_replayable(db: Database) -> None:
    assert ranges(db) == [(1, STEPS, "exact")]
    assert db.discover("loop").anchors == (0, 4, 8, 10)
    (found,) = db.discover("recipe").ranges
    assert (found.replay, found.missing) == (ReplayKind.EXACT, "no step graph")  # by its recipe
    assert "`tally audit` replays the recipe" in db.segment("recipe", steps=1).missing[0]


def test_without_the_last_state_only_the_trajectory_can_be_compared(db: Database, loop: Path) -> None:
    next((loop / "anchors").glob("*10.*")).unlink()
    assert ranges(db)[0] == (1, 8, "exact")
    assert ranges(db)[1] == (9, 10, "trajectory")


def test_without_a_state_in_between_replays_start_at_the_one_before(db: Database, loop: Path) -> None:
    for path in (loop / "anchors").glob(f"{Path(anchor_file(4)).stem}.*"):
        path.unlink()
    assert ranges(db) == [(1, STEPS, "exact")]
    assert db.segment("loop", steps=6).anchor == 0


def test_without_a_batch_the_steps_behind_it_are_black_boxes(db: Database, loop: Path) -> None:
    lost = db.steps.where(run="loop", step=6).one().batch
    assert lost is not None
    (loop / "batches" / f"{lost.removeprefix('sha256:')}.safetensors").unlink()
    assert ranges(db) == [
        (1, 4, "exact"),
        (5, 5, "trajectory"),
        (6, 6, "missing"),
        (7, 8, "black-box"),
        (9, 10, "exact"),
    ]
    segment = db.segment("loop", steps=7)
    assert [line.partition(":")[0] for line in segment.missing] == ["step 6", "steps 7 to 8"]
    with pytest.raises(UnavailableError, match="step 6: batches"):
        segment.run()
    assert db.segment("loop", steps=range(9, 11)).missing == ()


def test_without_a_graph_everything_is_a_black_box(db: Database, loop: Path) -> None:
    (loop / "graphs" / "step.json").unlink()
    assert ranges(db) == [(1, STEPS, "black-box")]
    assert "graph sha256:" in db.segment("loop", steps=1).missing[0]


def test_without_the_first_states_there_is_nothing_to_start_from(db: Database, loop: Path) -> None:
    for mark in (0, 4):
        for path in (loop / "anchors").glob(f"{Path(anchor_file(mark)).stem}.*"):
            path.unlink()
    assert ranges(db) == [(1, 8, "black-box"), (9, 10, "exact")]
    assert "the state after step 0" in db.segment("loop", steps=3).missing[0]


def test_a_segment_is_replayed_to_the_recorded_state(db: Database) -> None:
    segment = db.segment("loop", steps=range(6, 9))
    assert segment.bound.coverage is Coverage.STATE
    found = segment.run()
    assert [(each.step, each.state_agrees) for each in found] == [(6, None), (7, None), (8, True)]
    for each in found:
        assert each.replayed_loss == pytest.approx(each.claimed_loss, abs=1e-4)


@pytest.mark.parametrize("engine", ["reference", "iree"])
def test_other_engines_give_the_same_up_to_rounding(db: Database, engine: str) -> None:
    if engine == "iree":
        pytest.importorskip("iree.compiler")
    segment = db.segment("loop", steps=6, batch_element=4)
    ours, theirs = segment.run()[0].outputs, segment.run(engine)[0].outputs
    assert ours.keys() == theirs.keys() != set()
    for name, value in ours.items():
        np.testing.assert_allclose(value.values(), theirs[name].values(), rtol=1e-5)


def test_one_example_gives_what_the_whole_batch_gives_for_it(db: Database) -> None:
    whole = db.segment("loop", steps=6).bound
    x = whole.values["inputs.x0"].values()
    for element in (0, BATCH - 1):
        part = db.segment("loop", steps=6, batch_element=element).bound
        assert part.values["inputs.x0"].values().tolist() == x[element : element + 1].tolist()
    outputs = db.segment("loop", steps=6, batch_element=2).run()[0].outputs
    assert all(value.shape[0] == 1 for value in outputs.values())


def test_one_sequence_of_a_language_model(
    one_thread: None, source: Path, recipe_of: Callable[..., Any], tmp_path: Path
) -> None:
    config = {**TINY["model"]["config"], "attention_dropout": 0.0, "num_hidden_layers": 1}
    train(recipe_of(FAST, {"model": {"config": config}, "training": {"steps": 3}}), tmp_path / "llama", source=source)
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as database:
        add_place(database, tmp_path / "llama", tensors=False)
        db = Database(database)
        part, whole = db.segment("llama", steps=2, batch_element=1), db.segment("llama", steps=2).bound.graph
        assert 0.1 < len(part.bound.graph.nodes) / len(whole.nodes) < 0.7
        for name, value in part.run()[0].outputs.items():
            assert 4 * math.prod(value.shape) == math.prod(whole.specs()[name].shape)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"steps": 6, "batch_element": 6}, "the batch has 6 examples, counted from 0"),
        ({"steps": 6, "batch_element": -1}, "counted from 0"),
        ({"steps": range(6, 8), "batch_element": 1}, "of one step at a time"),
        ({"steps": range(6, 6)}, "a step from 1 on"),
        ({"steps": 0}, "a step from 1 on"),
    ],
)
def test_refused(db: Database, asked: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        _ = db.segment("loop", **asked).bound  # type: ignore[arg-type]


def test_there_is_no_such_step_run_or_engine(db: Database) -> None:
    with pytest.raises(UnavailableError, match="has no step 11"):
        db.segment("loop", steps=11)
    with pytest.raises(UnavailableError, match="no run in the database has that name"):
        db.discover("loops")
    with pytest.raises(UsageError, match="no such engine numpy"):
        db.segment("loop", steps=1).run("numpy")


def test_a_forged_state_is_not_replayed(db: Database, loop: Path) -> None:
    shutil.copy(loop / anchor_file(0), loop / anchor_file(4))
    with pytest.raises(ProofError, match="does not hold the state"):
        db.segment("loop", steps=6).run()
