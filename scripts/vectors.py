#!/usr/bin/env python3
"""Write the project's own test vectors: the examples behind the pages of `spec/`, made by this code.

Usage: python scripts/vectors.py vectors

Each value here is a regression anchor. What independent parties computed stands beside them, in the
published suites that `vectors/README.md` lists.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import (
    Frontier,
    Hash,
    LeafHashes,
    digest,
    leaf_hash,
    prove_consistency,
    prove_inclusion,
    tree_root,
)
from tallystick.core.safetensors import encode_header, write_state
from tallystick.core.tensor_digests import CHUNK_BYTES, digest_state, digest_tensor, state_digest, tensor_digest
from tallystick.core.tensors import State, Tensor
from tallystick.formats.claims import Claim, Log
from tallystick.formats.store.log import TileWriter
from tallystick.programs.random_words import permutation, sample, words

VALUES: Mapping[str, Json] = {
    "empty object": {},
    "keys are sorted by UTF-16 code unit": {"\ufb33": 1, "\U0001f600": 2, "b": 3, "a": 4},
    "no float keeps a trailing zero": [1.0, -0.0, 0.5, 1e-7, 1e21],
    "a float of many digits has no exponent below 1e21": [1e20, 2.0**60],
    "the largest integers": [2**53 - 1, -(2**53 - 1)],
    "text is escaped where JSON demands it, and nowhere else": ['\u0000\n"\\/', "\u007fé\u2028"],
    "text is never normalised": ["e\u0301", "\u00e9"],
}
REFUSED: Mapping[str, str] = {
    "duplicate key": '{"a":1,"a":1}',
    "duplicate key after unescaping": '{"a":1,"\\u0061":1}',
    "NaN": "[NaN]",
    "infinity": "[Infinity]",
    "overflow to infinity": "[1e400]",
    "an integer that no binary64 holds": "[9007199254740993]",
    "the digits of another binary64": "[1152921504606846976]",
    "lone surrogate": '["\\ud800"]',
    "byte order mark": "\ufeff[]",
    "trailing bytes": "[] x",
    "nested deeper than 64": "[" * 65 + "]" * 65,
}
UNCANONICAL: Mapping[str, str] = {
    "space": '{"a": 1}',
    "order of keys": '{"b":1,"a":1}',
    "trailing zero": "[1.0]",
    "negative zero": "[-0]",
    "capital exponent": "[1E21]",
    "needless escape": '["\\u0061"]',
    "final line feed": "{}\n",
}


def main() -> None:
    """Write all files below the folder that is named on the command line."""
    for path, data in own_vectors().items():
        target = Path(sys.argv[1]) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        print(f"{len(data):>8}  {path}")


def own_vectors() -> dict[str, bytes]:
    """Every file this script makes, by its path below `vectors/`."""
    documents: dict[str, Json] = {
        "encoding/values.json": encoding_vectors(),
        "digest/domains.json": digest_vectors(),
        "tree/proofs.json": tree_vectors(),
        "tree/tiles.json": tile_vectors(),
        "tensor/tensors.json": tensor_vectors(),
        "state/states.json": state_vectors(),
        "anchor/anchors.json": anchor_vectors(),
        "claim/claims.json": claim_vectors(),
        "philox/words.json": philox_vectors(),
    }
    pages = {path: json.dumps(value, indent=1, sort_keys=True).encode() + b"\n" for path, value in documents.items()}
    return pages | {"anchor/small.safetensors": anchor_bytes(small_state())}


def encoding_vectors() -> Json:
    """Values with their bytes, and bytes that are refused with the reason."""
    return {
        "canonical": [{"canonical": encode(value).hex(), "value": value, "why": why} for why, value in VALUES.items()],
        "refused": [{"input": text.encode().hex(), "why": why} for why, text in REFUSED.items()],
        "uncanonical": [{"input": text.encode().hex(), "why": why} for why, text in UNCANONICAL.items()],
    }


def digest_vectors() -> Json:
    """The same bytes under several nouns, and the empty ones."""
    inputs = (b"", b"{}", b"\x00\xff")
    cases = [(noun, data) for noun in ("spec", "record", "tensor", "blob") for data in inputs]
    return [{"data": data.hex(), "digest": digest(noun, data), "noun": noun} for noun, data in cases]


def tree_vectors() -> Json:
    """Roots, peaks and proofs of trees whose record i is the decimal text of i."""
    sizes = (0, 1, 2, 3, 4, 7, 8, 13)
    inclusion: list[Json] = [
        {"index": index, "proof": _hex(prove_inclusion(_leaves(size), index, size)), "size": size}
        for size in sizes
        for index in sorted({0, size // 2, size - 1} if size else set())
    ]
    consistency: list[Json] = [
        {"new_size": 13, "old_size": old, "proof": _hex(prove_consistency(_leaves(13), old, 13))}
        for old in (1, 4, 7, 13)
    ]
    trees: list[Json] = [
        {"peaks": _hex(_frontier(size).peaks), "root": tree_root(_leaves(size).leaves).hex(), "size": size}
        for size in sizes
    ]
    return {"consistency": consistency, "inclusion": inclusion, "trees": trees}


def tile_vectors() -> Json:
    """A tree of 70,000 records: the length and leaf hash of every tile but the full ones of level 0."""
    size = 70_000
    with tempfile.TemporaryDirectory() as folder:
        writer = TileWriter(Path(folder))
        for leaf in _leaves(size).leaves:
            writer.append(leaf)
        writer.finish(size)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
        }
    kept = {path: data for path, data in files.items() if not path.startswith("0/") or ".p/" in path}
    return {
        "count": len(files),
        "root": tree_root(_leaves(size).leaves).hex(),
        "size": size,
        "tiles": {path: [len(data), leaf_hash(data).hex()] for path, data in kept.items()},
    }


def tensor_vectors() -> Json:
    """Small tensors with their bytes, and generated ones around the edge of a chunk."""
    small: list[Json] = [
        {
            "data": bytes(tensor.data).hex(),
            "digest": tensor_digest(tensor),
            "dtype": tensor.dtype,
            "header": digest_tensor(tensor).header.decode(),
            "leaves": _hex(digest_tensor(tensor).leaves),
            "shape": list(tensor.shape),
        }
        for tensor in small_state().values()
    ]
    edges: list[Json] = [
        {
            "bytes": count,
            "chunks": len(digest_tensor(_counting(count)).chunks),
            "digest": tensor_digest(_counting(count)),
        }
        for count in (1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)
    ]
    return {"edges of a chunk (U8, byte i is i mod 251)": edges, "small": small}


def state_vectors() -> Json:
    """The empty state, one tensor, several, and names whose order by code point differs from UTF-16's."""
    one = Tensor.of(np.arange(3, dtype=np.float32))
    states: Mapping[str, State] = {
        "empty": {},
        "one": {"weight": one},
        "another name": {"weights": one},
        "order by code point": {"\uff61": one, "\U0001f600": one, "a": one, "B": one},
        "small": small_state(),
    }
    return [
        {
            "digest": state_digest(state),
            "entries": [[name, tensor.digest] for name, tensor in digest_state(state).entries],
            "what": what,
        }
        for what, state in states.items()
    ]


def anchor_vectors() -> Json:
    """The header and the digest of whole files."""
    unordered = {"\uff61": _counting(2), "\U0001f600": _counting(3), "b": _counting(1), "a": _counting(0)}
    states: Mapping[str, State] = {"empty": {}, "small": small_state(), "order": unordered}
    return [
        {
            "blob": digest("blob", anchor_bytes(state)),
            "bytes": len(anchor_bytes(state)),
            "header": encode_header(state).decode(),
            "state": state_digest(state),
            "what": what,
        }
        for what, state in states.items()
    ]


def claim_vectors() -> Json:
    """Claims with their bytes and digests: a field that is not there leaves no trace in the bytes."""
    log = Log(root=digest("blob", b"records"), size=3)
    names = {name: digest("blob", name.encode()) for name in ("spec", "environment", "final_state")}
    plain = Claim(**names, transcript=log, trace=log)
    changes: Mapping[str, dict[str, str]] = {
        "a loop of somebody's own": {},
        "a run by a recipe": {"data": digest("blob", b"data")},
        "a run that names its weights": {"weights": digest("blob", b"weights")},
        "a loop whose step graph was withdrawn": {"no_graph": "step 1: gradients are clipped, undeclared"},
    }
    return [
        {"case": case, "digest": str(claim.identity), "bytes": claim.to_bytes().decode()}
        for case, claim in ((case, plain.model_copy(update=change)) for case, change in changes.items())
    ]


def philox_vectors() -> Json:
    """Words at several places of a stream, a permutation and a sample, with keys of 32 bytes."""
    keys = {"zero": bytes(32), "counting": bytes(range(32)), "ones": b"\xff" * 32}
    return [
        {
            "first_words": [f"{word:016x}" for word in words(key, 6)],
            "key": key.hex(),
            "permutation_of_16": permutation(key, 16).tolist(),
            "sample_of_5_from_1000": sample(key, 1000, 5).tolist(),
            "what": what,
            "words_from_1000003": [f"{word:016x}" for word in words(key, 3, start=1_000_003)],
            "words_from_2_to_66": [f"{word:016x}" for word in words(key, 3, start=2**66)],
        }
        for what, key in keys.items()
    ]


def small_state() -> dict[str, Tensor]:
    """A state of a few bytes that shows signed zero, NaN payloads, a scalar and an empty tensor."""
    floats = struct.pack("<4I", 0x3F800000, 0x80000000, 0x7FC00001, 0xFF800000)
    return {
        "layer.weight": Tensor("F32", (2, 2), floats),
        "layer.bias": Tensor("BF16", (2,), bytes.fromhex("803f00c0")),
        "optimizer.step": Tensor("I64", (), (7).to_bytes(8, "little")),
        "rng.empty": Tensor("U8", (0, 3), b""),
        "mask": Tensor("BOOL", (3,), b"\x01\x00\x01"),
    }


def anchor_bytes(state: State) -> bytes:
    """The bytes of the file of a state."""
    with tempfile.TemporaryDirectory() as folder:
        write_state(Path(folder) / "anchor.safetensors", state)
        return (Path(folder) / "anchor.safetensors").read_bytes()


def _counting(count: int) -> Tensor:
    return Tensor.of((np.arange(count) % 251).astype(np.uint8))


def _leaves(size: int) -> LeafHashes:
    return LeafHashes([leaf_hash(str(index).encode()) for index in range(size)])


def _frontier(size: int) -> Frontier:
    frontier = Frontier.empty()
    for leaf in _leaves(size).leaves:
        frontier = frontier.append(leaf)
    return frontier


def _hex(hashes: Sequence[Hash]) -> list[Json]:
    return [value.hex() for value in hashes]


if __name__ == "__main__":
    main()
