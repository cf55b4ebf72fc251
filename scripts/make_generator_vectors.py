#!/usr/bin/env python3
"""Write vectors/generator: states and masks by PyTorch's own generator, and Bernoulli numbers by oneMKL.

Usage: python scripts/make_generator_vectors.py VECTORS MKL

MKL is the path of libmkl_rt.so (the package `mkl`). PyTorch must run on a processor that is not of Intel, where
`bernoulli_` draws from MT19937 itself. This script shares no code with the package.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

MCG31 = 1 << 20


def words(seed: int, count: int) -> list[int]:
    """By NumPy's legacy generator, whose bytes are the words in turn."""
    return np.frombuffer(np.random.RandomState(seed).bytes(4 * count), "<u4").tolist()


def masks(seed: int, size: list[int], keep: float) -> dict[str, Any]:
    """Two masks that follow each other."""
    generator = torch.Generator()
    generator.manual_seed(seed)
    drawn = [torch.empty(size).bernoulli_(keep, generator=generator).int().flatten().tolist() for _ in range(2)]
    return {"seed": seed, "size": size, "keep": keep, "masks": drawn}


def bernoulli(library: Any, seed: int, count: int, keep: float) -> dict[str, Any]:
    """Numbers of a stream that a seed begins."""
    stream, drawn = ctypes.c_void_p(), np.empty(count, np.int32)
    assert library.vslNewStream(ctypes.byref(stream), MCG31, ctypes.c_uint32(seed)) == 0
    place = drawn.ctypes.data_as(ctypes.c_void_p)
    assert library.viRngBernoulli(0, stream, count, place, ctypes.c_double(keep)) == 0
    library.vslDeleteStream(ctypes.byref(stream))
    return {"seed": seed, "keep": keep, "numbers": drawn.tolist()}


def edge(library: Any, keep: float) -> int:
    """The first number of the generator's range for which the Bernoulli number is 0."""
    low, high = 1, 2**31 - 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if bernoulli(library, middle, 1, keep)["numbers"][0] else (low, middle)
    return low


def main(folder: str, mkl: str) -> None:
    """Write the file."""
    library, keeps = ctypes.CDLL(mkl), (0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 0.95, 1 / 3)
    document = {
        "words": [{"seed": seed, "words": words(seed, 6)} for seed in (0, 7, 5489, 2**32 - 1)],
        "masks": [
            masks(seed, size, keep) for seed, size, keep in ((7, [3, 5], 0.9), (8, [40], 0.5), (9, [2, 2, 2], 0.1))
        ],
        "bernoulli": [
            bernoulli(library, seed, 64, keep)
            for seed, keep in ((0, 0.5), (7, 0.9), (2**31 - 1, 0.1), (2**32 - 1, 0.7))
        ],
        "edges": [{"keep": keep, "first": edge(library, keep)} for keep in keeps],
    }
    Path(folder, "generator", "draws.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
