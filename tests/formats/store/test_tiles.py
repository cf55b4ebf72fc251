from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.digests import (
    Hash,
    LeafHashes,
    check_consistency,
    check_inclusion,
    leaf_hash,
    prove_consistency,
    prove_inclusion,
    tree_root,
)
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.formats.store.log import TILE_WIDTH, TileReader, TileWriter, tile_path

VECTORS = Path(__file__).parents[3] / "vectors"
LOG = VECTORS / "tessera-log" / "testdata" / "log"
OWN: dict[str, Any] = json.loads((VECTORS / "tree" / "tiles.json").read_text())
WORDS = [
    *("one", "two", "three", "four", "five", "six", "seven", "eit"),
    *("nain", "ten", "ileven", "twelf", "threeten", "fourten", "fivten"),
]
SIZE = 2 * TILE_WIDTH + 44


def leaves(size: int) -> list[Hash]:
    return [leaf_hash(str(index).encode()) for index in range(size)]


def write_tiles(folder: Path, size: int) -> Path:
    writer = TileWriter(folder)
    for leaf in leaves(size):
        writer.append(leaf)
    writer.finish(size)
    return folder


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiles(tmp_path_factory.mktemp("tiles"), SIZE)


def published_root(size: int) -> Hash:
    _, count, root, *_ = (LOG / f"checkpoint.{size}").read_text().splitlines()
    assert int(count) == size
    return Hash(base64.b64decode(root))


@pytest.mark.parametrize("size", range(1, 16))
def test_a_published_log_is_read_and_proven_at_every_size(size: int) -> None:
    reader, hashed = TileReader(LOG / "tile", size), [leaf_hash(word.encode()) for word in WORDS[:size]]
    assert reader.hashes(0, 0, size) == hashed
    assert tree_root(hashed) == published_root(size)
    for index, leaf in enumerate(hashed):
        check_inclusion(prove_inclusion(reader, index, size), leaf, index, size, published_root(size))
    for old in range(1, size + 1):
        proof = prove_consistency(reader, old, size)
        check_consistency(proof, old, published_root(old), size, published_root(size))


@pytest.mark.parametrize("size", range(1, 16))
def test_the_published_tiles_are_written_byte_for_byte(size: int, tmp_path: Path) -> None:
    writer = TileWriter(tmp_path)
    for word in WORDS[:size]:
        writer.append(leaf_hash(word.encode()))
    writer.finish(size)
    written = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert written == [tile_path(0, 0, size)]
    assert (tmp_path / written[0]).read_bytes() == (LOG / "tile" / written[0]).read_bytes()


@pytest.mark.parametrize(
    ("level", "index", "width", "path"),
    [
        (0, 0, 256, "0/000"),
        (0, 999, 256, "0/999"),
        (0, 1000, 256, "0/x001/000"),
        (0, 1234067, 256, "0/x001/x234/067"),
        (1, 2, 70, "1/002.p/70"),
        (5, 273, 1, "5/273.p/1"),
    ],
)
def test_a_tile_lies_where_tlog_tiles_puts_it(level: int, index: int, width: int, path: str) -> None:
    assert tile_path(level, index, width) == path


def test_the_tiles_of_seventy_thousand_records_are_those_of_the_vectors(tmp_path: Path) -> None:
    write_tiles(tmp_path, OWN["size"])
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(found) == OWN["count"]
    for name, (length, hashed) in OWN["tiles"].items():
        data = (tmp_path / name).read_bytes()
        assert (len(data), leaf_hash(data).hex()) == (length, hashed)
    reader, index = TileReader(tmp_path, OWN["size"]), 65_537
    proof = prove_inclusion(reader, index, OWN["size"])
    check_inclusion(proof, leaf_hash(b"65537"), index, OWN["size"], Hash(bytes.fromhex(OWN["root"])))


def test_tiles_and_leaves_hold_the_same_hashes(tiles: Path) -> None:
    held, reader = LeafHashes(leaves(SIZE)), TileReader(tiles, SIZE)
    for level in range(SIZE.bit_length()):
        assert reader.hashes(level, 0, SIZE >> level) == held.hashes(level, 0, SIZE >> level)


def test_tiles_and_leaves_give_the_same_proofs(tiles: Path) -> None:
    held, reader = LeafHashes(leaves(SIZE)), TileReader(tiles, SIZE)
    for size in (1, 2, 255, 256, 257, 511, 512, 513, SIZE):
        assert prove_consistency(reader, size, SIZE) == prove_consistency(held, size, SIZE)
        assert prove_inclusion(reader, size - 1, SIZE) == prove_inclusion(held, size - 1, SIZE)


def test_no_subtree_beyond_the_tree_is_read(tiles: Path) -> None:
    reader = TileReader(tiles, SIZE)
    assert len(reader.hashes(8, 0, 2)) == 2
    for level, start, count in [(0, SIZE, 1), (0, -1, 1), (8, 2, 1), (8, 0, 3), (60, 0, 1)]:
        with pytest.raises(ProofError, match="has no"):
            reader.hashes(level, start, count)


def test_a_missing_tile_is_unavailable(tiles: Path) -> None:
    assert TileReader(tiles, SIZE).hashes(0, 0, 1)
    with pytest.raises(UnavailableError, match=r"tile 0/002\.p/45 is missing"):
        TileReader(tiles, SIZE + 1).hashes(0, SIZE, 1)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b""])
def test_a_tile_of_another_length_is_malformed(tmp_path: Path, change: Any) -> None:
    target = write_tiles(tmp_path, 5) / tile_path(0, 0, 5)
    assert TileReader(tmp_path, 5).hashes(0, 0, 5) == leaves(5)
    target.write_bytes(change(target.read_bytes()))
    with pytest.raises(MalformedError, match="5 hashes should stand there"):
        TileReader(tmp_path, 5).hashes(0, 0, 5)


def test_a_folder_in_the_place_of_a_tile_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / tile_path(0, 0, 5)).mkdir(parents=True)
    with pytest.raises(UnavailableError, match="is missing"):
        TileReader(tmp_path, 5).hashes(0, 0, 5)


def test_a_tile_the_system_will_not_give_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiles(tmp_path, 5)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnavailableError, match="Permission denied"):
        TileReader(tmp_path, 5).hashes(0, 0, 5)


@given(st.integers(0, 69), st.integers(0, 70 * 32 * 8 - 1))
@settings(deadline=None, max_examples=60)
def test_a_flipped_bit_in_a_tile_never_leads_to_the_root(index: int, bit: int) -> None:
    held = LeafHashes(leaves(70))
    data = bytearray(b"".join(held.leaves))
    data[bit // 8] ^= 1 << bit % 8
    flipped = LeafHashes([Hash(bytes(data[start : start + 32])) for start in range(0, len(data), 32)])
    root = tree_root(held.leaves)
    check_inclusion(prove_inclusion(held, index, 70), held.leaves[index], index, 70, root)
    with pytest.raises(ProofError):
        check_inclusion(prove_inclusion(flipped, index, 70), flipped.leaves[index], index, 70, root)


def test_finishing_another_size_is_our_own_mistake(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        TileWriter(tmp_path).finish(1)


def test_a_full_tile_stands_in_for_a_partial_one_that_was_removed(tmp_path: Path) -> None:
    write_tiles(tmp_path, TILE_WIDTH)
    assert TileReader(tmp_path, 70).hashes(0, 0, 70) == leaves(70)
    with pytest.raises(ProofError):
        TileReader(tmp_path, 70).hashes(0, 70, 1)
    (tmp_path / tile_path(0, 0)).unlink()
    with pytest.raises(UnavailableError, match=r"tile 0/000\.p/70 is missing"):
        TileReader(tmp_path, 70).hashes(0, 0, 70)
