"""A file that is written tensor by tensor: what readers find in it, and when there is none."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

from tallystick.core import tensor_writer, tensor_writer as direct_file
from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.safetensors import Placement, StateFile, encode_placements, read_state
from tallystick.core.tensor_writer import AppendedState
from tallystick.core.tensors import Tensor, TensorSpec

TENSORS = {
    "z": Tensor.of(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "b": Tensor.of(np.array([True, False, True])),
    "a": Tensor.of(np.array(7, np.int64)),
    "e": Tensor.of(np.zeros((0, 4), np.float64)),
}


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    with AppendedState(path, [TensorSpec.of(each) for each in TENSORS.values()], 1) as file:
        for name, tensor in tensors.items():
            assert name not in file
            file.append(name, tensor)
            assert name in file
    return path


def test_readers_find_what_was_written_in_the_order_in_which_it_came(tmp_path: Path) -> None:
    path = write(tmp_path / "values.safetensors", TENSORS)
    assert read_state(path) == {name: tensor.copy() for name, tensor in TENSORS.items()}
    with StateFile(path) as file:
        assert sorted(TENSORS, key=lambda name: (file.specs[name].begin, file.specs[name].end)) == list(TENSORS)
    safetensors = pytest.importorskip("safetensors.numpy")
    assert safetensors.load_file(path)["z"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_fewer_tensors_than_there_is_room_for_leave_spaces_in_the_header(tmp_path: Path) -> None:
    path = write(tmp_path / "values.safetensors", {"a": TENSORS["a"]})
    assert read_state(path) == {"a": TENSORS["a"].copy()}
    assert read_state(write(tmp_path / "none", {})) == {}
    assert path.read_bytes() == write(tmp_path / "again", {"a": TENSORS["a"]}).read_bytes()


def test_a_block_that_fails_leaves_no_file_that_a_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "values.safetensors"
    with suppress(KeyError), AppendedState(path, [TensorSpec("F32", (2, 3))], 1) as file:
        file.append("z", TENSORS["z"])
        raise KeyError
    with pytest.raises(MalformedError):
        read_state(path)


def test_what_no_state_may_hold_is_not_written(tmp_path: Path) -> None:
    two = Tensor("BOOL", (1,), b"\x02")
    with (
        pytest.raises(MalformedError, match="neither 0 nor 1"),
        AppendedState(tmp_path / "x", [TensorSpec.of(two)], 1) as file,
    ):
        file.append("b", two)
    with pytest.raises(UnavailableError, match="could not be written"):
        write(tmp_path / "nowhere" / "x", TENSORS)


def test_a_system_that_takes_a_few_bytes_at_once_gets_the_rest_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = write(tmp_path / "at once", TENSORS).read_bytes()
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda file, pieces: writev(file, [b"".join(pieces)[:5]]))
    for pieces_max in (1, 256):
        monkeypatch.setattr(tensor_writer, "GATHERED_MAX", pieces_max)
        assert write(tmp_path / str(pieces_max), TENSORS).read_bytes() == at_once


def refused(*_: object) -> NoReturn:
    raise OSError(errno.EOPNOTSUPP, "this disk does not do that")


def test_a_disk_that_reserves_no_space_takes_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = write(tmp_path / "reserved", TENSORS).read_bytes()
    monkeypatch.setattr(os, "posix_fallocate", refused, raising=False)
    assert write(tmp_path / "refused", TENSORS).read_bytes() == reserved
    monkeypatch.delattr(os, "posix_fallocate")
    assert write(tmp_path / "none", TENSORS).read_bytes() == reserved


@pytest.mark.parametrize("block", [4096, 8192, 1 << 20])
@pytest.mark.parametrize("elements", [0, 1, 3000, 100_001])
def test_a_large_file_that_is_written_past_the_cache_holds_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, elements: int
) -> None:
    tensors = TENSORS | {"l": Tensor.of(np.arange(elements, dtype=np.float32)), "z": TENSORS["a"]}
    cached = appended(tmp_path / "cached", tensors)
    monkeypatch.setattr(tensor_writer, "DIRECT_BYTES_MIN", 0)
    monkeypatch.setattr(direct_file, "BLOCK_BYTES", block)
    assert appended(tmp_path / "direct", tensors) == cached
    monkeypatch.delattr(os, "O_DIRECT", raising=False)  # as on a system, or on a disk in memory, without it
    assert appended(tmp_path / "refused", tensors) == cached


def appended(path: Path, tensors: dict[str, Tensor]) -> bytes:
    with AppendedState(path, [TensorSpec.of(each) for each in tensors.values()], 1) as file:
        for name, tensor in tensors.items():
            file.append(name, tensor)
    assert read_state(path) == {name: tensor.copy() for name, tensor in tensors.items()}
    return path.read_bytes()


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(UnavailableError, match="could not be written: No space left on device"):
        write(tmp_path / "values.safetensors", TENSORS)


def test_the_header_of_any_names_is_canonical() -> None:
    placed = {
        name: Placement("F32", (2,), 8 * place, 8 * place + 8)
        for place, name in enumerate(("b", "a\x1f", 'q"\\', "a", "\x7f", "é", "\ud7ff", "😀"))
    }
    for names in (list(placed)[:5], list(placed)):
        entries = {name: placed[name] for name in names}
        fields = {
            name: {"data_offsets": [each.begin, each.end], "dtype": each.dtype, "shape": list(each.shape)}
            for name, each in entries.items()
        }
        assert encode_placements(entries).rstrip(b" ") == encode(fields)


def test_a_file_system_that_refuses_direct_writes_gets_usual_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, refused = appended(tmp_path / "cached", TENSORS), list[int]()
    real = os.pwrite

    def pwrite(handle: int, data: memoryview, position: int) -> int:
        if not refused:
            refused.append(position)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(handle, data, position)

    monkeypatch.setattr(tensor_writer, "DIRECT_BYTES_MIN", 0)
    monkeypatch.setattr(os, "pwrite", pwrite)
    assert appended(tmp_path / "direct", TENSORS) == cached
    assert len(refused) == 1


def test_a_disk_that_fails_under_direct_writes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(*_: object) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(tensor_writer, "DIRECT_BYTES_MIN", 0)
    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(UnavailableError, match="Input/output error"):
        appended(tmp_path / "direct", TENSORS)
