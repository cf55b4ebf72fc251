from __future__ import annotations

import errno
import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings, strategies as st

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.safetensors import StateFile, encode_header, read_state, write_state
from tallystick.core.tensor_digests import digest_file, state_digest
from tallystick.core.tensors import STORAGE, Tensor, item_size

VECTORS = Path(__file__).parents[2] / "vectors"
FILES = VECTORS / "safetensors"
MANIFEST: dict[str, dict[str, Any]] = json.loads((FILES / "manifest.json").read_text())
ANCHORS: list[dict[str, Any]] = json.loads((VECTORS / "anchor" / "anchors.json").read_text())
SMALL = VECTORS / "anchor" / "small.safetensors"
NAMES = st.text("abc.xyz_0123é\uff61\U0001f600", max_size=6)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(sorted(STORAGE)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    count = int(np.prod(shape)) * item_size(dtype)
    data = draw(st.binary(min_size=count, max_size=count))
    return Tensor(dtype, shape, bytes(byte & 1 for byte in data) if dtype == "BOOL" else data)


def expected_of(kind: str) -> list[str]:
    return sorted(name for name, case in MANIFEST.items() if case["expect"] == kind)


def path_of(name: str) -> Path:
    return FILES / f"{name}.safetensors"


def test_the_manifest_names_all_files() -> None:
    assert sorted(path.stem for path in FILES.glob("*.safetensors")) == sorted(MANIFEST)
    kinds = ["reject", "policy", "accept-noncanonical", "accept"]
    assert sum(len(expected_of(kind)) for kind in kinds) == len(MANIFEST) == 41


@pytest.mark.parametrize("name", expected_of("reject"))
@pytest.mark.parametrize("canonical", [False, True])
def test_a_malformed_file_is_refused(name: str, canonical: bool) -> None:
    with pytest.raises(MalformedError, match=name):
        read_state(path_of(name), canonical=canonical)


@pytest.mark.parametrize("name", expected_of("policy") + expected_of("accept-noncanonical"))
def test_a_file_in_another_form_is_readable_but_never_canonical(name: str) -> None:
    assert read_state(path_of(name))
    with pytest.raises(MalformedError, match=name):
        read_state(path_of(name), canonical=True)


@pytest.mark.parametrize("name", expected_of("accept"))
def test_a_well_formed_file_is_read_as_the_library_reads_it(name: str) -> None:
    found = read_state(path_of(name))
    expected = safetensors.numpy.load_file(path_of(name))
    assert {key: tensor.array().tobytes() for key, tensor in found.items()} == {
        key: array.tobytes() for key, array in expected.items()
    }
    assert {key: tensor.shape for key, tensor in found.items()} == {key: array.shape for key, array in expected.items()}


@pytest.mark.parametrize("name", expected_of("accept") + expected_of("accept-noncanonical"))
def test_rewriting_a_file_keeps_its_tensors_and_makes_it_canonical(name: str, tmp_path: Path) -> None:
    state = read_state(path_of(name))
    write_state(tmp_path / "again.safetensors", state)
    assert read_state(tmp_path / "again.safetensors", canonical=True) == state


def test_metadata_is_no_part_of_what_a_state_is(tmp_path: Path) -> None:
    annotated = path_of("bad_metadata_only_channel")
    write_state(tmp_path / "bare", read_state(annotated))
    assert b"__metadata__" in annotated.read_bytes()
    assert b"__metadata__" not in (tmp_path / "bare").read_bytes()
    assert digest_file(tmp_path / "bare") == digest_file(annotated)


@pytest.mark.parametrize("case", ANCHORS, ids=lambda case: case["what"])
def test_a_header_is_as_its_vector_has_it(case: dict[str, Any], tmp_path: Path) -> None:
    data = len(case["header"].encode()).to_bytes(8, "little") + case["header"].encode()
    data += bytes(case["bytes"] - len(data)) if case["what"] != "small" else SMALL.read_bytes()[len(data) :]
    (tmp_path / "anchor.safetensors").write_bytes(data)
    state = read_state(tmp_path / "anchor.safetensors", canonical=True)
    assert encode_header(state).decode() == case["header"]
    if case["what"] == "small":
        assert (digest("blob", data), state_digest(state)) == (case["blob"], case["state"])


@given(st.dictionaries(NAMES, tensors(), max_size=5), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=80)
def test_the_same_tensors_give_the_same_bytes_and_come_back(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Tensor], random: Any
) -> None:
    folder, names = tmp_path_factory.mktemp("states"), list(state)
    random.shuffle(names)
    write_state(folder / "one", state)
    write_state(folder / "two", {name: state[name] for name in names})
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()
    assert read_state(folder / "one", canonical=True) == state


@given(st.dictionaries(NAMES, tensors(), max_size=4))
@settings(deadline=None, max_examples=40)
def test_the_library_reads_what_is_written_here(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Tensor]
) -> None:
    path = tmp_path_factory.mktemp("states") / "state.safetensors"
    write_state(path, state)
    with safetensors.safe_open(path, framework="numpy") as file:
        assert sorted(file.keys()) == sorted(state)
        assert file.metadata() in (None, {})
        for name, tensor in state.items():
            part = file.get_slice(name)
            assert (part.get_dtype(), tuple(part.get_shape())) == (tensor.dtype, tensor.shape)
            if tensor.dtype not in {"BF16", "F8_E4M3", "F8_E5M2"}:
                assert file.get_tensor(name).tobytes() == bytes(tensor.data)


def test_what_the_library_writes_is_readable_but_not_canonical(tmp_path: Path) -> None:
    arrays = {"b": np.arange(3, dtype="f4"), "a": np.arange(2, dtype="i8")}
    safetensors.numpy.save_file(arrays, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    assert read_state(tmp_path / "theirs.safetensors") == {name: Tensor.of(array) for name, array in arrays.items()}
    with pytest.raises(MalformedError, match="not in canonical form"):
        read_state(tmp_path / "theirs.safetensors", canonical=True)


@pytest.mark.parametrize("name", ["a\nb", "a\0", "a/b", "..\\c", "e\u0301", "__metadata__", "a\u202eb", "\x1b[31m"])
def test_a_name_that_no_state_may_have_is_not_written(name: str, tmp_path: Path) -> None:
    tensor = Tensor("U8", (1,), b"\1")
    write_state(tmp_path / "state", {"é.a-b c": tensor})
    with pytest.raises(MalformedError, match="is not one a state may have") as caught:
        write_state(tmp_path / "other", {name: tensor})
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert os.listdir(tmp_path) == ["state"]


def test_a_boolean_is_zero_or_one(tmp_path: Path) -> None:
    write_state(tmp_path / "state", {"mask": Tensor("BOOL", (2,), b"\0\1")})
    with pytest.raises(MalformedError, match="'mask': a boolean is neither 0 nor 1"):
        write_state(tmp_path / "other", {"mask": Tensor("BOOL", (2,), b"\0\2")})


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "state"
    for value in (b"\1", b"\2"):
        write_state(path, {"a": Tensor("U8", (1,), value)})
        assert read_state(path) == {"a": Tensor("U8", (1,), value)}
    assert os.listdir(path.parent) == ["state"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_open_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "state"
    write_state(path, {"a": Tensor("U8", (1,), b"\1")})
    before, handles = path.read_bytes(), len(os.listdir("/proc/self/fd"))

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os if failing == "fsync" else Path, failing, refuse)
    with pytest.raises(UnavailableError, match="state: could not be written: No space left"):
        write_state(path, {"a": Tensor("U8", (1,), b"\2")})
    monkeypatch.undo()
    assert (path.read_bytes(), len(os.listdir("/proc/self/fd"))) == (before, handles)
    write_state(path, {"a": Tensor("U8", (1,), b"\2")})


def test_a_missing_file_and_a_folder_are_unavailable(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.safetensors", tmp_path):
        with pytest.raises(UnavailableError, match=r"not there|not a regular file|a folder, not a file"):
            StateFile(path)


def test_a_file_the_system_will_not_give_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnavailableError, match="could not be read: Permission denied"):
        StateFile(SMALL)


def test_a_limit_on_the_header_can_be_moved() -> None:
    length = int.from_bytes(SMALL.read_bytes()[:8], "little")
    with StateFile(SMALL, header_bytes_max=length, canonical=True) as file:
        assert file.names == ("layer.bias", "layer.weight", "mask", "optimizer.step", "rng.empty")
    with pytest.raises(MalformedError, match=f"a header of {length} bytes, more than the {length - 1} allowed"):
        StateFile(SMALL, header_bytes_max=length - 1)


def test_a_header_beyond_sixteen_mebibytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(((16 << 20) + 1).to_bytes(8, "little"))
        file.truncate(32 << 20)
    with pytest.raises(MalformedError, match="more than the 16777216 allowed"):
        StateFile(path)


def test_a_tensor_lies_over_the_mapping_and_may_outlive_the_block() -> None:
    with StateFile(SMALL) as file:
        weight = file.tensor("layer.weight")
    assert weight.array().view("<u4").tolist() == [[0x3F800000, 0x80000000], [0x7FC00001, 0xFF800000]]
    assert weight.copy() == weight == read_state(SMALL)["layer.weight"]


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    state = {"a": Tensor.of(np.arange(50_000, dtype="<u4")), "b": Tensor.of(np.arange(9, dtype="<u4"))}
    write_state(tmp_path / "state", state)
    with StateFile(tmp_path / "state") as file:
        for name, tensor in state.items():
            assert file.tensor(name) == tensor
            file.release(name, tensor.nbytes // 2, tensor.nbytes)
            assert file.tensor(name) == tensor


def test_a_name_from_a_file_cannot_reach_the_terminal(tmp_path: Path) -> None:
    header = json.dumps({"\x1b[31m\n" * 100: {"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}}).encode()
    (tmp_path / "f").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0")
    with pytest.raises(MalformedError, match="3 bytes for a tensor of 4") as caught:
        StateFile(tmp_path / "f")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def survives(path: Path, read: Callable[[Path], object]) -> bool:
    """Whether `path` is read; only the two errors of the contract may say that it is not."""
    try:
        read(path)
    except (MalformedError, UnavailableError):
        return False
    return True


def test_every_flipped_byte_of_a_header_is_refused_or_means_another_state(tmp_path: Path) -> None:
    original, state = SMALL.read_bytes(), read_state(SMALL)
    header_end = 8 + int.from_bytes(original[:8], "little")
    path, accepted = tmp_path / "flipped", 0
    for place in range(header_end):
        for bits in (0x01, 0x20, 0x80):
            path.write_bytes(original[:place] + bytes([original[place] ^ bits]) + original[place + 1 :])
            survives(path, read_state)
            if survives(path, lambda flipped: read_state(flipped, canonical=True)):
                accepted += 1
                assert state_digest(read_state(path)) != state_digest(state)
    assert accepted < header_end


@given(st.integers(0, 366), st.integers(1, 255), st.integers(0, 367))
@settings(deadline=None, max_examples=200)
def test_a_changed_and_shortened_file_raises_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, place: int, bits: int, length: int
) -> None:
    original = SMALL.read_bytes()
    path = tmp_path_factory.mktemp("fuzz") / "flipped"
    path.write_bytes(original[:place] + bytes([original[place] ^ bits]) + original[place + 1 :])
    survives(path, read_state)
    path.write_bytes(original[:length])
    assert survives(path, read_state) == (length == len(original))


def test_a_copy_of_a_canonical_file_is_accepted(tmp_path: Path) -> None:
    shutil.copy(SMALL, tmp_path / "copy")
    assert read_state(tmp_path / "copy", canonical=True) == read_state(SMALL)


def test_a_name_too_long_for_the_system_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="could not be read: File name too long"):
        StateFile(tmp_path / ("a" * 300))


def test_a_tensor_that_is_not_there_is_unavailable() -> None:
    with StateFile(SMALL) as file, pytest.raises(UnavailableError, match="holds no tensor 'gone'"):
        file.tensor("gone")


@pytest.mark.parametrize(("shape", "fits"), [([3, 0, 5], True), ([2**53 - 1, 2**53 - 1, 0], False), ([1] * 65, False)])
def test_a_shape_that_no_array_can_have_is_refused(shape: list[int], fits: bool, tmp_path: Path) -> None:
    end = 4 * math.prod(shape)
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
    (tmp_path / "f").write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))
    if fits:
        assert read_state(tmp_path / "f")["a"].array().shape == tuple(shape)
    else:
        with pytest.raises(MalformedError, match="'a': "):
            read_state(tmp_path / "f")
