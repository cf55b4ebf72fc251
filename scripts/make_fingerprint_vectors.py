#!/usr/bin/env python3
"""Write the test vectors of fingerprints and opened states, computed from spec/fingerprint.md without the package.

Usage: python scripts/make_fingerprint_vectors.py vectors/fingerprint
"""

from __future__ import annotations

import json
import struct
import sys
from base64 import b64encode
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

from make_data_vectors import canonical, hashed, named, philox, root_and_path

SEED = sha256(b"fingerprint vectors").hexdigest()
PRIME = 65497
ENTRIES = 1024
RESOLUTION = {8: 10, 4: 8, 1: 6}
CASES = [  # layers, block, width, tokens, hidden width
    ([2], 4, 5, 9, 6),
    ([0, 3], 1, 3, 2, 7),
    ([0, 1, 5], 32, 12, 3, 5),
]
Rows = list[list[Fraction]]


def main() -> None:
    """Write one file per format."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "logits": [logits_case(5), logits_case(1025)],
        "signs": [sign_case(*case) for case in ((0, 1, 9), (3, 5, 8), (7, 15, 4))],
        "projection": [
            *(projection_case(*case, bits) for case in CASES for bits in (32, 8, 4, 1)),
            zero_case(),
            *(projection_case(*CASES[0], *form) for form in ((8, 18), (8, 8), (4, 0), (1, 32))),
        ],
        "toploc": [toploc_case(*case) for case in ((1, 6, 4), (2, 9, 8), (3, 4, 12))],
        "states": [
            *(states_case(*case) for case in (([0, 2], 2, 5, 3), ([4], 8, 3, 2))),
            states_case([0, 1, 2, 4], 2, 5, 3, opened_layer=2),
            states_case([0, 1, 2, 4], 2, 5, 3, opened_layer=0),
        ],
    }
    for name, cases in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(cases, indent=1) + "\n")


# ---- signs
def signs(kind: str, layer: int, width: int, rows: int) -> list[list[int]]:
    """The first rows of ±1: bit row · width + column of the words, lowest first; a set bit is −1."""
    key = bytes.fromhex(named("directions", [kind, layer, SEED, width]).removeprefix("sha256:"))
    words = philox(key, -(-rows * width // 64))
    flat = [-1 if words[bit // 64] >> bit % 64 & 1 else 1 for bit in range(rows * width)]
    return [flat[start : start + width] for start in range(0, rows * width, width)]


def sign_case(layer: int, width: int, rows: int) -> dict[str, Any]:
    """Directions and positions of one layer and width."""
    drawn = {kind: signs(kind, layer, width, rows) for kind in ("direction", "position")}
    return {"seed": SEED, "layer": layer, "width": width, **drawn}


# ---- logits
def logits_case(vocabulary: int) -> dict[str, Any]:
    """The sampled entries of a vocabulary, and one row of logits: sixteenths whose mean binary32 holds."""
    key = bytes.fromhex(named("directions", ["logits", SEED]).removeprefix("sha256:"))
    words = philox(key, vocabulary)
    order = sorted(range(vocabulary), key=lambda entry: (words[entry], entry))
    entries = sorted(order[: min(vocabulary, ENTRIES)])
    logits = [Fraction(entry * 7 % 31 - 12, 16) for entry in range(vocabulary)]
    drawn = [logits[entry] for entry in entries]
    row = [float(each - sum(drawn) / len(drawn)) for each in drawn]
    return {"seed": SEED, "vocabulary": vocabulary, "entries": entries, "logits": [*map(float, logits)], "row": row}


# ---- projection
def rows_of(name: str, tokens: int, size: int) -> Rows:
    """Multiples of 1/64 that float32 holds, from −8 to 8."""
    raw = sha256(name.encode()).digest() * (-(-2 * tokens * size // 32))
    values = [Fraction(int.from_bytes(raw[2 * i : 2 * i + 2], "big") % 1025 - 512, 64) for i in range(tokens * size)]
    return [values[start : start + size] for start in range(0, tokens * size, size)]


def projection_case(
    layers: list[int], block: int, width: int, tokens: int, size: int, bits: int, grid: int | None = None
) -> dict[str, Any]:
    """One fingerprint; rows of a layer follow from its number. Without a grid it is the usual one."""
    rows = {layer: rows_of(f"{layer} {tokens}", tokens, size) for layer in layers}
    data = b""
    for first in range(0, tokens, block):
        for layer in layers:
            data += block_of(rows[layer], layer, width, first, min(first + block, tokens), bits, grid)
    shown = {str(layer): [[float(value) for value in row] for row in each] for layer, each in rows.items()}
    settings = {"layers": layers, "block": block, "width": width, "bits": bits, "seed": SEED}
    settings |= {} if grid is None else {"grid": grid}
    return {**settings, "rows": shown, "data": data.hex()}


def zero_case() -> dict[str, Any]:
    """A block of zeros."""
    settings = {"layers": [0], "block": 2, "width": 3, "bits": 8, "seed": SEED}
    return {**settings, "rows": {"0": [[0.0, 0.0]]}, "data": "80000000"}


def block_of(rows: Rows, layer: int, width: int, first: int, end: int, bits: int, grid: int | None) -> bytes:
    """The wire form of the tokens `first` to `end` − 1 of one layer."""
    directions = signs("direction", layer, width, len(rows[0]))
    positions = signs("position", layer, width, len(rows))
    numbers = [
        sum(
            (positions[i][k] * sum((directions[j][k] * h for j, h in enumerate(rows[i])), Fraction()))
            for i in range(first, end)
        )
        for k in range(width)
    ]
    if bits == 32:
        return b"".join(struct.pack("<f", float(number)) for number in numbers)
    square = sum(h * h for row in rows[first:end] for h in row)
    exponent = next(e for e in range(-127, 128) if Fraction(2) ** (2 * e - 1) <= square < Fraction(2) ** (2 * e + 1))
    step = Fraction(2) ** (exponent - (RESOLUTION[bits] if grid is None else grid))
    codes = [int(number / step // 1) % 2**bits for number in numbers]
    joined = sum(code << bits * place for place, code in enumerate(codes))
    return struct.pack("<b", exponent) + joined.to_bytes(-(-bits * width // 8), "little")


# ---- toploc
def toploc_case(tokens: int, size: int, values: int) -> dict[str, Any]:
    """A congruence of the largest values of a block of numbers that bfloat16 holds."""
    raw = sha256(f"toploc {tokens}".encode()).digest() * 8
    flat = [bfloat16(raw[2 * i] % 128 - 64 + raw[2 * i + 1] % 2 / 2) for i in range(tokens * size)]
    order = sorted(range(len(flat)), key=lambda i: (-(flat[i] & 0x7FFF), i))[:values]
    modulus = next(m for m in range(PRIME, 32768, -1) if len({i % m for i in order}) == len(order))
    coefficients = through([(i % modulus, flat[i]) for i in order])
    data = b"".join(struct.pack(">H", number) for number in (modulus, *coefficients))
    rows = [[number(bits) for bits in flat[start : start + size]] for start in range(0, len(flat), size)]
    return {"rows": rows, "values": values, "data": data.hex()}


def bfloat16(value: float) -> int:
    """The bits of a number that bfloat16 holds."""
    bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    assert not bits & 0xFFFF
    return bits >> 16


def number(bits: int) -> float:
    """The number of bfloat16 bits."""
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def through(points: list[tuple[int, int]]) -> list[int]:
    """The coefficients of the polynomial through the points, lowest degree first, by Lagrange's formula."""
    total = [0] * len(points)
    for place, (x, y) in enumerate(points):
        basis, scale = [1], y
        for other, (z, _) in enumerate(points):
            if other != place:
                basis = [(low - z * high) % PRIME for low, high in zip([0, *basis], [*basis, 0], strict=True)]
                scale = scale * pow(x - z, -1, PRIME) % PRIME
        total = [(have + scale * part) % PRIME for have, part in zip(total, basis, strict=True)]
    return total


# ---- states under a root
def states_case(
    layers: list[int], block: int, tokens: int, size: int, opened_layer: int | None = None
) -> dict[str, Any]:
    """A commitment to F32 rows, and its opening for a nonce, or of one layer and the one before."""
    rows = {layer: rows_of(f"states {layer} {tokens}", tokens, size) for layer in layers}
    leaves, parts = [], []
    for first in range(0, tokens, block):
        for layer in layers:
            held = rows[layer][first : first + block]
            data = b"".join(struct.pack("<f", float(value)) for row in held for value in row)
            header = {"dtype": "F32", "first": first, "layer": layer, "rows": len(held), "width": size}
            leaves.append(b"tallystick/hidden/v1\n" + canonical(header) + b"\n" + data)
            parts.append({"block": first // block, "layer": layer, "data": b64encode(data).decode()})
    root, _ = root_and_path(hashed(leaves))
    nonce, count = sha256(b"nonce").hexdigest(), min(3, len(leaves))
    key = bytes.fromhex(named("challenge", ["states", f"sha256:{root.hex()}", nonce]).removeprefix("sha256:"))
    words = philox(key, len(leaves))
    chosen = sorted(sorted(range(len(leaves)), key=words.__getitem__)[:count])
    named_layer = {} if opened_layer is None else {"layer": opened_layer}
    if opened_layer is not None:
        pair = (opened_layer - 1, opened_layer)
        chosen = [index for index, part in enumerate(parts) if part["layer"] in pair]
        count = len(chosen)
    opened = [
        parts[index] | {"proof": [step.hex() for step in root_and_path(hashed(leaves), index)[1]]} for index in chosen
    ]
    shown = {str(layer): [[float(value) for value in row] for row in each] for layer, each in rows.items()}
    opening = {"opening": 1, "states": f"sha256:{root.hex()}", "nonce": nonce, **named_layer, "parts": opened}
    return {"layers": layers, "block": block, "rows": shown, "count": count, "opening": opening}


if __name__ == "__main__":
    main()
