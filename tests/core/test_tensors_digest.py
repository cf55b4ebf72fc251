from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core import tensor_digests as digest_module
from tallystick.core.canonical_json import encode
from tallystick.core.digests import Hash, LeafHashes, check_inclusion, digest, leaf_hash, prove_inclusion, tree_root
from tallystick.core.errors import UnavailableError
from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import (
    CHUNK_BYTES,
    digest_file,
    digest_state,
    digest_tensor,
    state_digest,
    tensor_digest,
)
from tallystick.core.tensors import Tensor

VECTORS = Path(__file__).parents[2] / "vectors"
TENSORS: dict[str, list[dict[str, Any]]] = json.loads((VECTORS / "tensor" / "tensors.json").read_text())
STATES: list[dict[str, Any]] = json.loads((VECTORS / "state" / "states.json").read_text())
SMALL = Tensor.of(np.arange(3, dtype=np.float32))
RESIDENT_MIB_MAX = 300


def counting(count: int) -> Tensor:
    return Tensor.of((np.arange(count) % 251).astype(np.uint8))


def count_hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by the length of every chunk that is hashed from here on."""
    seen: list[int] = []
    hash_chunk = digest_module._hash_chunk

    def watched(chunk: memoryview) -> Hash:
        seen.append(chunk.nbytes)
        return hash_chunk(chunk)

    monkeypatch.setattr(digest_module, "_hash_chunk", watched)
    return seen


@pytest.mark.parametrize("case", TENSORS["small"], ids=lambda case: case["dtype"])
def test_a_tensor_has_the_leaves_and_digest_of_its_vector(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["data"])
    found = digest_tensor(Tensor(case["dtype"], tuple(case["shape"]), data))
    by_hand = [leaf_hash(case["header"].encode()), *([leaf_hash(data)] if data else [])]
    assert [leaf.hex() for leaf in found.leaves] == case["leaves"] == [leaf.hex() for leaf in by_hand]
    record = encode({"root": tree_root(by_hand).hex(), "size": len(by_hand)})
    assert found.digest == case["digest"] == digest("tensor", record)


@pytest.mark.parametrize("case", TENSORS["edges of a chunk (U8, byte i is i mod 251)"], ids=lambda case: case["bytes"])
def test_chunks_end_where_the_vectors_say(case: dict[str, Any]) -> None:
    found = digest_tensor(counting(case["bytes"]))
    assert (len(found.chunks), found.digest) == (case["chunks"], case["digest"])


@pytest.mark.parametrize("case", STATES, ids=lambda case: case["what"])
def test_a_state_digest_is_a_tree_over_sorted_names_and_digests(case: dict[str, Any]) -> None:
    leaves = [leaf_hash(encode(entry)) for entry in case["entries"]]
    names = [name for name, _ in case["entries"]]
    assert names == sorted(names)
    assert case["digest"] == digest("state", encode({"root": tree_root(leaves).hex(), "size": len(leaves)}))


def test_states_have_the_digests_of_their_vectors() -> None:
    known = {case["what"]: case["digest"] for case in STATES}
    assert state_digest({}) == known["empty"]
    assert state_digest({"weight": SMALL}) == known["one"]
    assert state_digest({"weights": SMALL}) == known["another name"]
    names = ["a", "\U0001f600", "B", "\uff61"]
    assert state_digest(dict.fromkeys(names, SMALL)) == known["order by code point"]


def test_everything_a_tensor_is_stands_in_its_digest() -> None:
    same_bytes = [
        Tensor("F32", (4,), bytes(16)),
        Tensor("I32", (4,), bytes(16)),
        Tensor("F32", (2, 2), bytes(16)),
        Tensor("F32", (4, 1), bytes(16)),
        Tensor("F32", (4,), bytes(15) + b"\x80"),
    ]
    assert len({tensor_digest(tensor) for tensor in same_bytes}) == len(same_bytes)
    assert tensor_digest(same_bytes[0]) == tensor_digest(Tensor("F32", (4,), memoryview(bytes(16))))


@given(st.permutations(["a", "b", "c", "d"]))
@settings(deadline=None, max_examples=24)
def test_the_order_of_insertion_changes_nothing(names: list[str]) -> None:
    state = {name: counting(ord(name)) for name in names}
    assert digest_state(state) == digest_state(dict(sorted(state.items())))


@given(st.lists(st.integers(0, 3 * CHUNK_BYTES), max_size=4), st.integers(2, 8))
@settings(deadline=None, max_examples=12)
def test_many_threads_give_the_digest_of_one(sizes: list[int], threads: int) -> None:
    state = {str(place): counting(size) for place, size in enumerate(sizes)}
    assert digest_state(state, threads=threads) == digest_state(state, threads=1) == digest_state(state)


def test_a_tensor_of_several_groups_is_the_same_by_every_number_of_threads() -> None:
    tensor = counting(2 * digest_module.GROUP_BYTES + CHUNK_BYTES + 7)
    one, four = digest_tensor(tensor, threads=1), digest_tensor(tensor, threads=4)
    assert one == four
    assert len(one.chunks) == 34
    assert one.chunks[17] == leaf_hash(bytes(tensor.data[17 * CHUNK_BYTES : 18 * CHUNK_BYTES]))


def test_one_chunk_is_opened_without_the_others() -> None:
    tensor = counting(5 * CHUNK_BYTES)
    found = digest_tensor(tensor)
    proof = prove_inclusion(LeafHashes(found.leaves), 3, 6)
    chunk = bytes(tensor.data[2 * CHUNK_BYTES : 3 * CHUNK_BYTES])
    check_inclusion(proof, leaf_hash(chunk), 3, 6, tree_root(found.leaves))


def test_only_the_changed_tensor_of_three_hundred_is_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {f"layer.{index:03d}": counting(1000 + index) for index in range(300)}
    previous = digest_state(state)
    state["layer.123"] = counting(CHUNK_BYTES + 5)
    hashed = count_hashed(monkeypatch)
    found = digest_state(state, previous=previous, changed={"layer.123"})
    assert hashed == [CHUNK_BYTES, 5]
    assert found == digest_state(state)


def test_a_tensor_of_another_shape_is_hashed_even_if_nobody_says_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    previous = digest_state({"a": SMALL, "b": SMALL, "gone": SMALL})
    state = {"a": SMALL, "b": Tensor("F32", (3, 1), SMALL.data), "new": counting(9)}
    hashed = count_hashed(monkeypatch)
    found = digest_state(state, previous=previous, changed=())
    assert sorted(hashed) == [9, 12]
    assert found == digest_state(state)


def test_without_a_list_of_changes_everything_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    previous = digest_state({"a": SMALL})
    hashed = count_hashed(monkeypatch)
    assert digest_state({"a": SMALL}, previous=previous) == previous
    assert hashed == [12]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_has_the_digests_of_the_state_in_it(tmp_path: Path, threads: int) -> None:
    state = {"a": counting(2 * CHUNK_BYTES + 1), "b": SMALL, "empty": counting(0), "c": counting(20 << 20)}
    write_state(tmp_path / "state.safetensors", state)
    assert digest_file(tmp_path / "state.safetensors", threads) == digest_state(state)


def test_a_missing_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="not there"):
        digest_file(tmp_path / "state.safetensors")


MEASURED = """
import sys
from pathlib import Path
from tallystick.core.tensor_digests import digest_file

def resident_peak_kib():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])

before = resident_peak_kib()
print(digest_file(Path(sys.argv[1]), threads=int(sys.argv[2])).digest)
print(resident_peak_kib() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
@pytest.mark.parametrize("threads", [1, 16])
def test_one_tensor_of_a_gibibyte_is_digested_in_little_memory(tmp_path: Path, threads: int) -> None:
    path, size = tmp_path / "large.safetensors", 1 << 30
    header = encode({"w": {"data_offsets": [0, size], "dtype": "U8", "shape": [size]}})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path), str(threads)], capture_output=True, text=True, check=True
    )
    found, grown_kib = run.stdout.split()
    zeros = [leaf_hash(bytes(CHUNK_BYTES))] * (size // CHUNK_BYTES)
    leaves = [leaf_hash(encode({"chunk_bytes": CHUNK_BYTES, "dtype": "U8", "shape": [size]})), *zeros]
    tensor = digest("tensor", encode({"root": tree_root(leaves).hex(), "size": len(leaves)}))
    named = [leaf_hash(encode(["w", tensor]))]
    assert found == digest("state", encode({"root": tree_root(named).hex(), "size": 1}))
    assert int(grown_kib) < RESIDENT_MIB_MAX * 1024
