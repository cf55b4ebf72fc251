"""What can be replayed of a run in a service: the same as where its files are, and nothing of it is believed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import tallystick
from tallystick.core.errors import ProofError, UnavailableError
from tallystick.core.http.server import served
from tallystick.database.indexing.add import add_place
from tallystick.database.service.access import ServiceOptions
from tallystick.database.service.application import build_application
from tallystick.database.workload_database import WorkloadDatabase
from tallystick.formats.records import anchor_file
from tallystick.programs.encoding import graph_root
from tallystick.tally.database import Database
from tests.support.small_loop import record_small_loop


@pytest.fixture(scope="module")
def recorded(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_small_loop(tmp_path_factory.mktemp("loop") / "loop")


@dataclass(frozen=True)
class Both:
    """The same database here and behind a URL, and the run that it names."""

    here: Database
    there: Database
    loop: Path


@pytest.fixture
def both(recorded: Path, tmp_path: Path) -> Iterator[Both]:
    loop = Path(shutil.copytree(recorded, tmp_path / "loop"))
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as database:
        add_place(database, loop, tensors=False)
        with served(build_application(database, ServiceOptions(public="open"))) as url, tallystick.open(url) as there:
            yield Both(Database(database), there, loop)


def test_what_can_be_replayed_is_the_same(both: Both) -> None:
    assert both.there.discover("loop") == both.here.discover("loop")
    (both.loop / "graphs" / "step.json").unlink()
    assert both.there.discover("loop") == both.here.discover("loop")
    assert "graph sha256:" in both.there.segment("loop", steps=1).missing[0]


@pytest.mark.parametrize("element", [None, 4])
def test_a_slice_gives_the_same_outputs(both: Both, element: int | None) -> None:
    ours, theirs = (each.segment("loop", 6, batch_element=element) for each in (both.here, both.there))
    assert graph_root(theirs.bound.graph) == graph_root(ours.bound.graph)
    (found,), (wanted,) = theirs.run(), ours.run()
    assert (found.claimed_loss, found.replayed_loss) == (wanted.claimed_loss, wanted.replayed_loss)
    for name, value in wanted.outputs.items():
        np.testing.assert_array_equal(found.outputs[name].values(), value.values())


def test_a_slice_up_to_a_recorded_state_agrees_with_it(both: Both) -> None:
    found = both.there.segment("loop", steps=range(6, 9)).run()
    assert [(each.step, each.state_agrees) for each in found] == [(6, None), (7, None), (8, True)]


def test_what_was_fetched_is_gone_when_the_database_is_closed(both: Both) -> None:
    folder = both.there.segment("loop", steps=6).directory
    assert (folder / "segment.json").is_file()
    both.there.close()
    assert not folder.exists()


def test_only_the_states_around_the_slice_are_fetched(both: Both) -> None:
    folder = both.there.segment("loop", steps=6).directory
    assert not list(folder.glob(f"{anchor_file(0)}*"))
    assert not list(folder.glob(f"{anchor_file(10)}*"))


@pytest.mark.parametrize("changed", ["batches", "graphs", "anchors"])
def test_changed_files_are_not_replayed(both: Both, changed: str) -> None:
    found = both.there.segment("loop", steps=6)
    for path in (each for each in (found.directory / changed).rglob("*") if each.is_file()):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with pytest.raises(ProofError):
        found.run()


def test_without_a_state_behind_it_nothing_is_handed_over(both: Both) -> None:
    for path in (both.loop / "anchors").glob(f"{Path(anchor_file(10)).stem}.*"):
        path.unlink()
    assert both.there.segment("loop", steps=9).missing[0].startswith("a state behind step 9")
    with pytest.raises(UnavailableError, match="a state behind step 9"):
        both.there.segment("loop", steps=9).run()


def test_there_is_no_such_run_or_step(both: Both) -> None:
    with pytest.raises(UnavailableError, match="there is no run of that name"):
        both.there.discover("loops")
    with pytest.raises(UnavailableError, match="has no step 11"):
        both.there.segment("loop", steps=11)
