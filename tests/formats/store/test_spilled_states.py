"""States that memory has no room for lie on disk: within some bytes, found again, checked, and never in the way."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.formats.hidden_states import CommittedStates, commit_states
from tallystick.formats.store import receipts
from tallystick.formats.store.receipts import SpilledStates
from tallystick.recording.receipts import HeldStates

ROWS = 40


def states_of(seed: int, rows: int = ROWS) -> CommittedStates:
    values = np.random.default_rng(seed).standard_normal((rows, 64)).astype(np.float32)
    return commit_states({0: values, 1: values + 1}, (0, 1), 8, prompt=True)


SIZE = states_of(0).size_bytes


def filled(folder: Path, answers: int, memory: int, disk: int) -> HeldStates:
    held = HeldStates(memory, SpilledStates(folder, disk))
    for number in range(answers):
        held.hold(f"r{number}", states_of(number))
    return held


def is_there(held: Any, number: int) -> bool:
    try:
        found = held.of(f"r{number}")
    except UnavailableError:
        return False
    assert found.statement == states_of(number).statement
    assert found.open(b"nonce", 3) == states_of(number).open(b"nonce", 3)
    return True


def test_older_answers_lie_on_disk_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    held = filled(tmp_path, 12, memory=int(3.5 * SIZE), disk=int(5.5 * SIZE))
    held.close()
    again = SpilledStates(tmp_path, int(5.5 * SIZE))
    assert [number for number in range(12) if again.of(f"r{number}")] == [7, 8, 9, 10, 11]
    assert again.size_bytes == sum(each.stat().st_size for each in tmp_path.iterdir()) <= 5.5 * SIZE
    smaller = HeldStates(SIZE, SpilledStates(tmp_path, int(2.5 * SIZE)))
    assert [number for number in range(12) if is_there(smaller, number)] == [10, 11]


def test_everything_is_found_while_it_is_being_written(tmp_path: Path) -> None:
    held = filled(tmp_path, 6, memory=2 * SIZE, disk=100 * SIZE)
    assert all(is_there(held, number) for number in range(6))
    held.hold("large", states_of(0, 10 * ROWS))
    assert held.of("large").statement.rows == 10 * ROWS
    with pytest.raises(UnavailableError, match=rf"up to {2 * SIZE} bytes in memory and {100 * SIZE} on disk"):
        held.of("never")
    held.close()


@pytest.mark.parametrize("damage", ["states", "statement", "cut", "gone"])
def test_what_was_changed_on_disk_is_gone(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 2, memory=1, disk=100 * SIZE).close()
    states, statement = tmp_path / "r0.safetensors", tmp_path / "r0.json"
    data = bytearray(states.read_bytes())
    data[-1] ^= 1
    if damage == "states":
        states.write_bytes(data)
    elif damage == "cut":
        states.write_bytes(data[:-9])
    elif damage == "statement":
        statement.write_bytes((tmp_path / "r1.json").read_bytes())
    found = SpilledStates(tmp_path, 100 * SIZE)
    if damage == "gone":
        states.unlink()
    assert found.of("r0") is None
    assert found.of("r1") is not None
    assert "are lost" in caplog.text


def test_half_of_a_pair_is_cleaned_away(tmp_path: Path) -> None:
    filled(tmp_path, 3, memory=1, disk=100 * SIZE).close()
    (tmp_path / "r0.json").unlink()
    (tmp_path / "r1.safetensors").unlink()
    assert len(SpilledStates(tmp_path, 100 * SIZE)) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["r2.json", "r2.safetensors"]


def test_a_full_disk_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        path.write_bytes(b"half")
        raise UnavailableError(f"{path}: could not be written: No space left on device")

    monkeypatch.setattr(receipts, "write_state", full)
    with caplog.at_level(logging.WARNING):
        held = filled(tmp_path, 5, memory=int(1.5 * SIZE), disk=100 * SIZE)
        held.close()
    assert caplog.text.count("No space left") == 1
    assert not any(is_there(held, number) for number in range(5))
    assert not [*tmp_path.iterdir()]


def test_answers_faster_than_the_disk_are_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import threading

    go, write = threading.Event(), receipts.write_state

    def slow(*given: Any, **named: Any) -> None:
        assert go.wait(30)
        write(*given, **named)

    monkeypatch.setattr(receipts, "write_state", slow)
    monkeypatch.setattr(receipts, "WAITING_BYTES_MAX", int(2.5 * SIZE))
    held = filled(tmp_path, 9, memory=int(1.5 * SIZE), disk=100 * SIZE)
    assert [number for number in range(9) if is_there(held, number)] == [0, 1, 8]
    go.set()
    held.close()
    assert caplog.text.count("the disk is slower") == 1


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="states cannot be kept there"):
        SpilledStates(tmp_path / "file", SIZE)
