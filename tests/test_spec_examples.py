"""The examples on top of the pages of `spec/` are what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes, leaf_hash, node_hash, tree_root
from tallystick.core.safetensors import write_state
from tallystick.core.tensor_digests import digest_state, digest_tensor
from tallystick.core.tensors import Tensor
from tallystick.formats.store.log import tile_path
from tallystick.programs.random_words import permutation, sample, words

SPEC = Path(__file__).parents[1] / "spec"
WEIGHT = Tensor.of(np.array([1, -2], "<f4"))
STATE = {"weight": WEIGHT, "step": Tensor.of(np.array(7, "<i8"))}


def page(name: str) -> str:
    return (SPEC / f"{name}.md").read_text()


def test_encoding() -> None:
    assert encode({"é": 0.1e-6, "b": 1.0, "a": [True, None]}).decode() in page("encoding")


def test_digest() -> None:
    for noun in ("spec", "blob"):
        assert digest(noun, b"hello") in page("digest")


def test_tree() -> None:
    leaves = [leaf_hash(record) for record in (b"a", b"b", b"c")]
    for value in [*leaves, node_hash(*leaves[:2])]:
        assert f"{value.hex()[:8]}…" in page("tree")
    assert tree_root(leaves).hex() in page("tree")
    for path in (tile_path(0, 1000), tile_path(0, 1234067), tile_path(1, 2, 70)):
        assert path in page("tree")


def test_tensor() -> None:
    found = digest_tensor(WEIGHT)
    for text in (bytes(WEIGHT.data).hex(), found.header.decode(), tree_root(found.leaves).hex(), found.digest):
        assert text in page("tensor")
    for leaf in found.leaves:
        assert f"{leaf.hex()[:16]}…" in page("tensor")


def test_state() -> None:
    found = digest_state(STATE)
    for name, tensor in found.entries:
        assert encode([name, tensor.digest]).decode() in page("state")
    assert found.digest in page("state")


def test_anchor(tmp_path: Path) -> None:
    write_state(tmp_path / "anchor", STATE)
    lines = re.findall(r"^    [0-9a-f]{8}  ((?:[0-9a-f]{4} ){7}[0-9a-f]{4})", page("anchor"), re.MULTILINE)
    assert bytes.fromhex("".join(lines)) == (tmp_path / "anchor").read_bytes()
    assert digest_state(STATE).digest in page("anchor")


def test_philox() -> None:
    key = digest_bytes(digest("permutation", b"example"))
    assert f"{key.hex()[:32]}…" in page("philox")
    assert "  ".join(f"{word:016x}" for word in words(key, 4)) in page("philox")
    assert "of 8: " + " ".join(map(str, permutation(key, 8))) in page("philox")
    assert "3 of 8: " + " ".join(map(str, sample(key, 8, 3))) in page("philox")


@pytest.mark.parametrize("name", ["encoding", "digest", "tree", "tensor", "state", "anchor", "philox"])
def test_every_vector_folder_that_a_page_names_exists(name: str) -> None:
    named = re.findall(r"`(vectors/[^`]+)`", page(name))
    assert named
    assert [path for path in named if not (SPEC.parent / path).exists()] == []
