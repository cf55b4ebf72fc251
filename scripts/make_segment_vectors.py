"""Makes vectors/segment/ and vectors/anchor/parts.json, with the package itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.core.canonical_json import encode
from tallystick.core.digests import LeafHashes, leaf_hash, prove_inclusion, tree_root
from tallystick.core.tensor_digests import digest_state
from tallystick.core.tensors import State, Tensor
from tallystick.formats.store.keeping import AnchorWriter

VECTORS = Path(__file__).parents[1] / "vectors"
LINES = [f'{{"line":{number}}}'.encode() for number in range(5)]
LEAVES = LeafHashes([leaf_hash(line) for line in LINES])
MISSING = "unavailable"
MALFORMED = "malformed"
LISTS: list[tuple[str, str, dict[str, int], dict[str, Any]]] = [
    ("a tensor of the part file is named too", MALFORMED, {"frozen": 0, "trained": 10}, {}),
    ("a later anchor is named", MALFORMED, {"frozen": 30}, {}),
    ("its own index is named", MALFORMED, {"frozen": 20}, {}),
    ("another version", MALFORMED, {"frozen": 0}, {"version": 3}),
    ("another kind", MALFORMED, {"frozen": 0}, {"anchor": "whole"}),
    ("an unknown field", MALFORMED, {"frozen": 0}, {"more": 1}),
    ("a negative index", MALFORMED, {"frozen": -1}, {}),
    ("an anchor that is not there", MISSING, {"frozen": 5}, {}),
    ("a tensor that the other file does not hold", MISSING, {"other": 0}, {}),
    ("a tensor left out: another state", "other state", {}, {}),
]
SEGMENTS: list[tuple[str, str, bool]] = [
    ("steps 21 to 30", '{"end":30,"segment":"training","start":20,"version":1}', False),
    ("from the beginning", '{"end":1,"segment":"training","start":0,"version":1}', False),
    ("nowhere", '{"end":20,"segment":"training","start":20,"version":1}', True),
    ("backwards", '{"end":10,"segment":"training","start":20,"version":1}', True),
    ("another version", '{"end":30,"segment":"training","start":20,"version":2}', True),
    ("another kind", '{"end":30,"segment":"inference","start":20,"version":1}', True),
    ("not canonical", '{"start":20,"end":30,"segment":"training","version":1}', True),
    ("not an integer", '{"end":30.5,"segment":"training","start":20,"version":1}', True),
]


def main() -> None:
    """Write both files."""
    write(VECTORS / "anchor" / "parts.json", parts())
    write(VECTORS / "segment" / "segments.json", segments())


def parts() -> list[dict[str, Any]]:
    """Four anchors with their digests, and lists of the third one to refuse."""
    with tempfile.TemporaryDirectory() as made:
        folder, digests = Path(made), {}
        writer = AnchorWriter(folder, least_saved=0, least_share=0.0)
        for mark in (0, 10, 20, 30):
            found = digest_state(state(mark))
            writer.write(mark, state(mark), found)
            digests[str(mark)] = str(found.digest)
        files = {path.name: path.read_bytes().hex() for path in sorted((folder / "anchors").iterdir())}
    good = {"case": "four anchors, three of them in parts", "digests": digests, "files": files}
    return [good, *({"case": case, "list": listed(named, more), "refused": kind} for case, kind, named, more in LISTS)]


def listed(elsewhere: dict[str, int], more: dict[str, Any]) -> str:
    """A list of parts, in hexadecimal."""
    return encode({"anchor": "parts", "elsewhere": dict(elsewhere), "version": 2} | more).hex()


def state(step: int) -> State:
    """One tensor that never changes, one that changes at step 20, and one that always does."""
    return {
        "frozen": Tensor.of(np.array([1, -2], "<f4")),
        "trained": Tensor.of(np.array([step], "<f4")),
        "warm": Tensor.of(np.array([step // 20], "<f4")),
    }


def segments() -> dict[str, Any]:
    """Five records under a root, opened as they are and wrongly, and statements of segments."""
    bad = [
        ("another place", opened(3) | {"index": 2}, "proof"),
        ("another record", opened(2) | {"record": LINES[1].decode()}, "proof"),
        ("outside", opened(4) | {"index": 5}, "proof"),
        ("a proof cut short", opened(0) | {"proof": opened(0)["proof"][:-1]}, "proof"),
        ("an unknown field", opened(0) | {"more": 1}, "form"),
        ("a hash of 31 bytes", opened(0) | {"proof": ["00" * 31]}, "form"),
    ]
    good: list[dict[str, Any]] = [{"case": f"record {i}", "bytes": encode(opened(i)).decode()} for i in range(5)]
    return {
        "log": {"root": f"sha256:{tree_root(LEAVES.leaves).hex()}", "size": 5},
        "records": good + [{"case": case, "bytes": encode(each).decode(), "refused": kind} for case, each, kind in bad],
        "segments": [
            {"case": case, "bytes": text} | ({"refused": "form"} if is_bad else {}) for case, text, is_bad in SEGMENTS
        ],
    }


def opened(index: int) -> dict[str, Any]:
    """A record with its proof."""
    proof = [each.hex() for each in prove_inclusion(LEAVES, index, len(LINES))]
    return {"index": index, "proof": proof, "record": LINES[index].decode()}


def write(path: Path, value: object) -> None:
    """Write JSON for people."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
