"""The operators `tally.philox_uniform` and `tally.dropout_mask`, on words drawn by NumPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from tallystick.commitments.philox import words
from tallystick.errors import UsageError

SEED_BYTES: Final = 16
_LEADING: Final = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def seed_tensor(seed: bytes) -> torch.Tensor:
    """A seed of at least 16 bytes as graphs hold it: I64[2], the two little-endian words of the Philox key."""
    if len(seed) < SEED_BYTES:
        raise UsageError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    return torch.from_numpy(np.frombuffer(seed[:SEED_BYTES], "<i8").copy())


def drawn_uniform(seed: torch.Tensor, offset: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The operator `tally.philox_uniform`, on words drawn by NumPy."""
    bits = _LEADING[dtype]
    return _fractions(seed, offset, size, bits).to(seed.device, dtype)


def drawn_mask(seed: torch.Tensor, offset: int, size: Sequence[int], keep: float, dtype: torch.dtype) -> torch.Tensor:
    """The operator `tally.dropout_mask`, on words drawn by NumPy."""
    return (_fractions(seed, offset, size, 53) < keep).to(seed.device, dtype)


# Traces hold these; replays call the functions themselves, because PyTorch loads its compiler for a custom operator.
philox_uniform = torch.library.custom_op(
    "tally::philox_uniform",
    drawn_uniform,
    mutates_args=(),
    schema="(Tensor seed, int offset, SymInt[] size, ScalarType dtype) -> Tensor",
)
dropout_mask = torch.library.custom_op(
    "tally::dropout_mask",
    drawn_mask,
    mutates_args=(),
    schema="(Tensor seed, int offset, SymInt[] size, float keep, ScalarType dtype) -> Tensor",
)


@philox_uniform.register_fake
def _fake_uniform(seed: torch.Tensor, offset: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return seed.new_empty(size, dtype=dtype)


@dropout_mask.register_fake
def _fake_mask(seed: torch.Tensor, offset: int, size: Sequence[int], keep: float, dtype: torch.dtype) -> torch.Tensor:
    return seed.new_empty(size, dtype=dtype)


def _fractions(seed: torch.Tensor, offset: int, size: Sequence[int], bits: int) -> torch.Tensor:
    """The leading `bits` of each word divided by 2^bits, float64 on the CPU."""
    drawn = words(seed.cpu().numpy().tobytes(), math.prod(size), offset)
    leading = (drawn >> np.uint64(64 - bits)).astype(np.float64)
    return torch.from_numpy(leading).mul_(2.0**-bits).reshape(tuple(size))
