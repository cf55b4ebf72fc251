#!/usr/bin/env python3
"""Write the test vectors of the tolerances, computed from spec/tolerance.md without the package.

Usage: python scripts/make_tolerance_vectors.py vectors/tolerance
"""

from __future__ import annotations

import json
import struct
import sys
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

from make_data_vectors import canonical, hashed, named, philox, root_and_path

CHUNK = 1 << 20
FORMATS = {"F32": "f", "F64": "d", "I64": "q", "I16": "h", "U8": "B"}
SEED = sha256(b"tolerance vectors").digest()
TOP = 0x7BFF
Side = tuple[int, int]


def main() -> None:
    """Write one file per format."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "codes": list(map(code_case, CODE_VALUES)),
        "buckets": [bucket_case(*case) for case in BUCKET_CASES],
        "projection": [projection_case(width, state) for width, state in PROJECTION_CASES],
        "loss": [loss_case(loss, decimals) for loss in LOSSES for decimals in (0, 1, 4)],
    }
    for name, cases in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(cases, indent=1, ensure_ascii=True) + "\n")


# ---- codes
def point(code: int) -> Fraction:
    """The float16 number with this code; 65536 one code beyond the largest."""
    size = 65536 if abs(code) > TOP else struct.unpack("<e", struct.pack("<H", abs(code)))[0]
    return Fraction(size) * (1 if code >= 0 else -1)


def below(value: Fraction, mode: str, eps: float) -> int:
    """The code of the largest grid point that does not exceed the value."""
    if mode == "grid":
        quotient = float(value) / eps
        return int(quotient // 1)
    low, high = -TOP - 1, TOP + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if point(middle) <= value else (low, middle)
    return low


def offset(value: Fraction, mode: str, eps: float) -> Fraction:
    """The distance from the edge above that grid point, in gaps."""
    lower = below(value, mode, eps)
    if mode == "grid":
        return Fraction(float(value) / eps) - lower - Fraction(1, 2)
    low, high = point(lower), point(lower + 1)
    return (value - (low + high) / 2) / (high - low)


def code(value: Fraction, mode: str, eps: float) -> int:
    """The nearest grid point; a tie goes to the even code."""
    lower, off = below(value, mode, eps), offset(value, mode, eps)
    return lower + (off > 0 or (off == 0 and lower % 2 == 1))


def has_code(value: float, mode: str, eps: float) -> bool:
    """Whether the value lies in the range of the grid."""
    return abs(value) < 65520 if mode == "fp16_rne" else abs(value / eps) <= 2.0**51


def code_case(value: float) -> dict[str, Any]:
    """One float64 value and its codes; null where it has none."""
    exact = {"fp16_rne": 0.0, "grid_2^-10": 2.0**-10}
    codes = {
        name: code(Fraction(value), name.split("_2")[0], eps) if has_code(value, name.split("_2")[0], eps) else None
        for name, eps in exact.items()
    }
    return {"value": struct.pack("<d", value).hex(), **codes}


# ---- bucket digests and hints
def tensor_digest(dtype: str, shape: list[int], data: bytes) -> str:
    """The digest of a tensor."""
    header = canonical({"chunk_bytes": CHUNK, "dtype": dtype, "shape": shape})
    leaves = [header, *(data[at : at + CHUNK] for at in range(0, len(data), CHUNK))]
    return named("tensor", {"root": root_and_path(hashed(leaves))[0].hex(), "size": len(leaves)})


def bucket_case(mode: str, eps: float, margin: float, state: dict[str, Any]) -> dict[str, Any]:
    """One state, its bucket digest and its hints."""
    entries, hints = [], b"tallystick/hints/v1\n"
    for name in sorted(state):
        dtype, shape, values = state[name]
        data = struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)
        values = struct.unpack(f"<{len(values)}{FORMATS[dtype]}", data)
        if dtype[0] != "F" or not all(has_code(value, mode, eps) for value in values):
            entries.append([name, dtype, {"exact": tensor_digest(dtype, shape, data)}])
            continue
        codes = [code(Fraction(value), mode, eps) for value in values]
        kind = "I16" if mode == "fp16_rne" else "I64"
        packed = struct.pack(f"<{len(codes)}{FORMATS[kind]}", *codes)
        entries.append([name, dtype, {"codes": tensor_digest(kind, shape, packed)}])
        hints += hints_of(name, values, codes, mode, eps, margin)
    document = {"mode": mode, "tensors": entries} | ({"eps": eps} if mode == "grid" else {})
    return {
        "mode": mode,
        "eps": eps,
        "margin": margin,
        "state": {
            name: {"dtype": d, "shape": s, "data": struct.pack(f"<{len(v)}{FORMATS[d]}", *v).hex()}
            for name, (d, s, v) in state.items()
        },
        "digest": named("bucket", document),
        "hints": hints.hex() if margin else "",
    }


def hints_of(name: str, values: tuple[float, ...], codes: list[int], mode: str, eps: float, margin: float) -> bytes:
    """The entry of one tensor in the encoding of hints; empty without a hint."""
    body, previous, count = b"", -1, 0
    for index, value in enumerate(values):
        lower = below(Fraction(value), mode, eps)
        outermost = mode == "fp16_rne" and lower in (TOP, -TOP - 1)
        if abs(offset(Fraction(value), mode, eps)) <= Fraction(margin) and not outermost:
            body += varint(2 * (index - previous - 1) + (codes[index] > lower))
            previous, count = index, count + 1
    head = struct.pack("<H", len(name.encode())) + name.encode()
    return head + struct.pack("<QQQ", len(values), count, len(body)) + body if count else b""


def varint(number: int) -> bytes:
    """Seven bits per byte, low bits first."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


# ---- projection
def projection_case(width: int, state: dict[str, Any]) -> dict[str, Any]:
    """The signs and the sketch of a state of float32 tensors."""
    total, signs = [Fraction(0)] * width, {}
    for name in sorted(state):
        values = struct.unpack(f"<{len(state[name])}f", struct.pack(f"<{len(state[name])}f", *state[name]))
        rows = -(-len(values) // width)
        key = bytes.fromhex(named("projection", [SEED.hex(), name, width]).removeprefix("sha256:"))
        bits = [word >> place & 1 for word in philox(key, -(-rows // 64)) for place in range(64)][:rows]
        signs[name] = "".join("+-"[bit] for bit in bits)
        for index, value in enumerate(values):
            total[index % width] += Fraction(value) * (1 - 2 * bits[index // width])
    summary = struct.pack(f"<{width}f", *map(float, total))
    return {
        "seed": SEED.hex(),
        "width": width,
        "state": {name: struct.pack(f"<{len(v)}f", *v).hex() for name, v in state.items()},
        "signs": signs,
        "summary": summary.hex(),
    }


# ---- loss
def loss_case(loss: float, decimals: int) -> dict[str, Any]:
    """A loss and its quantised form."""
    if loss != loss or abs(loss) == float("inf"):
        quantised: Any = str(loss)
    else:
        quantised = float(Decimal(loss).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_EVEN)) + 0.0
    return {"loss": struct.pack("<d", loss).hex(), "decimals": decimals, "quantised": quantised}


def noise(count: int, scale: float, label: str) -> list[float]:
    """Reproducible values within ± scale."""
    words = philox(sha256(label.encode()).digest(), count)
    return [scale * (word / 2**63 - 1) for word in words]


EDGE = 1 + 2.0**-11
CODE_VALUES = [
    0.0, -0.0, 1.0, -1.0, EDGE, 1 + 3 * 2.0**-11, EDGE + 2.0**-40, EDGE - 2.0**-40, -EDGE, 2 - 2.0**-11, 0.1, 1 / 3,
    2.0**-14, 2.0**-14 - 2.0**-25, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, 2.5 * 2.0**-24, 2.0**-25 * (1 + 2.0**-30),
    1e-300, 65504.0, 65519.99, 65520.0, -65520.0, 2.0**41, 2.0**41 + 2.0**-11, float("inf"), float("nan"),
    2.0**-11, 3 * 2.0**-11,
]  # fmt: skip
WEIGHTS = {"a": ("F32", [4, 8], noise(32, 0.05, "a")), "b.c": ("F64", [5], [1.0, -0.0, EDGE, -EDGE, 0.25])}
MIXED = {"ß": ("F32", [2], [7e4, 1.0]), "rng": ("U8", [3], [0, 255, 7]), "empty": ("F32", [0], []), **WEIGHTS}
BUCKET_CASES = [
    ("fp16_rne", 1e-06, 0.0, WEIGHTS),
    ("fp16_rne", 1e-06, 0.125, WEIGHTS),
    ("grid", 2.0**-10, 0.0, WEIGHTS),
    ("grid", 0.001, 0.125, WEIGHTS),
    ("fp16_rne", 1e-06, 0.25, MIXED),
    ("grid", 0.25, 0.25, MIXED),
]
PROJECTION_CASES = [
    (16, {"w": noise(16 * 70 + 3, 0.02, "w"), "bias": noise(5, 0.02, "bias")}),
    (1, {"w": noise(130, 1.0, "one")}),
]
LOSSES = [0.0, 2.34567, 0.25, 0.35, -0.04, 2.5, 1e-5, 12345.678955, float("nan"), float("inf"), float("-inf")]

if __name__ == "__main__":
    main()
