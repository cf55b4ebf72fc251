#!/usr/bin/env python3
"""Write vectors/rows/rows.json, computed from `spec/rows.md` without the package.

Usage: python scripts/make_rows_vectors.py vectors
"""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path
from typing import Any

from make_data_vectors import canonical, hashed, named, permutation, root_and_path, write

CORPUS = "sha256:" + hashlib.sha256(b"a corpus").hexdigest()
BLOB = "sha256:" + hashlib.sha256(b"a file").hexdigest()
SIZES = [5, 3, 9, 1, 8, 2, 2, 7, 4, 6]
Talk = tuple[list[int], list[int]]


def talks(sizes: list[int]) -> list[Talk]:
    """Tokens that name their conversation, and labels on the second half of each."""
    made = [[10 * number + at for at in range(size)] for number, size in enumerate(sizes, 1)]
    return [(each, [-100 if at < len(each) // 2 else token for at, token in enumerate(each)]) for each in made]


def pack(lengths: list[int], length: int, packing: str | None) -> list[list[int]]:
    """The places of each row."""
    rows: list[list[int]] = []
    for place, size in enumerate(lengths):
        if not rows or packing is None or sum(lengths[each] for each in rows[-1]) + size > length:
            rows.append([])
        rows[-1].append(place)
    return rows


def laid(row: list[Talk], length: int, packing: str | None, pad: int) -> dict[str, list[int]]:
    """The three parts of a row."""
    tokens = [token for each, _ in row for token in each]
    labels = [label for _, each in row for label in each]
    left = length - len(tokens)
    parts = {"input_ids": tokens + [pad] * left, "labels": labels + [-100] * left}
    if packing != "apart":
        return parts | {"attention_mask": [1] * len(tokens) + [0] * left}
    positions = [at for each, _ in row for at in range(len(each))] + list(range(left))
    parts["labels"] = [-100 if at == 0 else label for at, label in zip(positions, parts["labels"], strict=True)]
    return parts | {"position_ids": positions}


def case(sizes: list[int], length: int, packing: str | None, seed: int) -> dict[str, Any]:
    """Labelled conversations, their rows, and what commits to these."""
    key = bytes.fromhex(named("permutation", {"corpus": CORPUS, "purpose": "rows", "seed": seed})[7:])
    order, given = permutation(key, len(sizes)), talks(sizes)
    cut = [(tokens[:length], labels[:length]) for tokens, labels in given]
    places = pack([len(cut[number][0]) for number in order], length, packing)
    rows = [laid([cut[order[place]] for place in row], length, packing, 7) for row in places]
    leaves = hashed([b"".join(struct.pack(f"<{length}q", *part) for part in row.values()) for row in rows])
    recipe: dict[str, Any] = {
        "corpus": CORPUS,
        "count": len(rows),
        "field": "messages",
        "length": length,
        "pad": 7,
        "root": root_and_path(leaves)[0].hex(),
        "rows": "chat",
        "seed": seed,
        "template": BLOB,
        "tokenizer": BLOB,
        "trained": "assistant",
        "version": 1,
    }
    starts = [row[0] for row in places]
    if packing is not None:
        content = b"tallystick/blob/v1\n" + struct.pack(f"<{len(starts)}q", *starts)
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        recipe |= {"packing": packing, "conversations": len(sizes), "starts": digest}
    return {
        "conversations": [{"tokens": tokens, "labels": labels} for tokens, labels in given],
        "order": order,
        "starts": starts,
        "rows": rows,
        "leaves": [leaf.hex() for leaf in leaves],
        "recipe": canonical(recipe).decode(),
        "digest": named("rows", recipe),
    }


def main() -> None:
    """Write the vectors below the folder that is given."""
    cases = [case(SIZES, 8, packing, seed) for packing in (None, "apart", "joined") for seed in (0, 7)]
    cases.append(case([8, 9], 8, "apart", 0))
    write(Path(sys.argv[1]), "rows/rows.json", {"rows": cases})


if __name__ == "__main__":
    main()
