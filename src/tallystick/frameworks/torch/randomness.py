"""Dropout whose random numbers are a pure function of a seed, both in eager loops and in captured graphs.

    with explicit_randomness(seed):
        loss(model, batch).backward()

Inside this context, PyTorch's own dropout draws from the Philox stream of `seed` instead of a generator. A step
captured with `seeded=True` makes the same draws with operators on the input `rng.seed`, and gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tallystick.commitments.philox import words
from tallystick.errors import UnavailableError, UsageError

SEED: Final = "rng.seed"
SEED_BYTES: Final = 16
WORDS_PER_BLOCK: Final = 4
_LEADING: Final = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def seed_tensor(seed: bytes) -> torch.Tensor:
    """A seed of at least 16 bytes as graphs hold it: I64[2], the two little-endian words of the Philox key."""
    if len(seed) < SEED_BYTES:
        raise UsageError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    return torch.from_numpy(np.frombuffer(seed[:SEED_BYTES], "<i8").copy())


def explicit_randomness(seed: bytes | torch.Tensor) -> TorchDispatchMode:
    """A context in which dropout draws from the stream of `seed`; each draw continues after the one before.

    Any other operator that draws random numbers raises `UnavailableError`. A new context starts the stream again: give
    every step its own seed.
    """
    return _Explicit(seed if isinstance(seed, torch.Tensor) else seed_tensor(seed))


class _Explicit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, seed: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._offset = seed, 0

    def __torch_dispatch__(
        self, called: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        replaced = _DRAWS.get(str(called))
        if replaced is not None:
            return replaced(self, *args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in called.tags:
            raise UnavailableError(
                f"{called} draws random numbers that no seed determines; only dropout can be explicit"
            )
        return called(*args, **(kwargs or {}))

    def mask(self, like: torch.Tensor, keep: float) -> torch.Tensor:
        """1 with probability `keep`, else 0, in the shape and dtype of `like`."""
        drawn = torch.ops.tally.dropout_mask(self._seed, self._offset, list(like.shape), keep, like.dtype)
        self._offset += -(-like.numel() // WORDS_PER_BLOCK) * WORDS_PER_BLOCK
        return drawn.to(like.device)  # type: ignore[no-any-return]


def _bernoulli_in_place(mode: _Explicit, x: torch.Tensor, p: float = 0.5, generator: None = None) -> torch.Tensor:
    return x.copy_(mode.mask(x, p))


def _bernoulli(mode: _Explicit, x: torch.Tensor, p: float = 0.5, generator: None = None) -> torch.Tensor:
    return mode.mask(x, p)


def _native_dropout(
    mode: _Explicit, x: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator that CUDA uses for dropout: returns the result and the BOOL mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = mode.mask(x, 1 - p)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask.bool()


_DRAWS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten.bernoulli.p": _bernoulli,
    "aten.bernoulli_.float": _bernoulli_in_place,
    "aten.native_dropout.default": _native_dropout,
}


@torch.library.custom_op(
    "tally::philox_uniform",
    mutates_args=(),
    schema="(Tensor seed, int offset, SymInt[] size, ScalarType dtype) -> Tensor",
)
def philox_uniform(seed: torch.Tensor, offset: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The operator `tally.philox_uniform`, on words drawn by NumPy."""
    bits = _LEADING[dtype]
    return _fractions(seed, offset, size, bits).to(seed.device, dtype)


@torch.library.custom_op(
    "tally::dropout_mask",
    mutates_args=(),
    schema="(Tensor seed, int offset, SymInt[] size, float keep, ScalarType dtype) -> Tensor",
)
def dropout_mask(seed: torch.Tensor, offset: int, size: Sequence[int], keep: float, dtype: torch.dtype) -> torch.Tensor:
    """The operator `tally.dropout_mask`, on words drawn by NumPy."""
    return (_fractions(seed, offset, size, 53) < keep).to(seed.device, dtype)


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
