"""The operators of `operators.tally.generator` for PyTorch, and which of them is what this machine draws."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, TypeAlias

import numpy as np
import torch

from tallystick.commitments.mt19937 import BLOCK, State, seeded
from tallystick.operators.arrays import NUMPY
from tallystick.operators.registry import operator
from tallystick.operators.tally.generator import MCG31, MT19937, NATIVE
from tallystick.operators.values import Value, Values

MASK: Final = "(Tensor state, SymInt[] size, float keep, ScalarType dtype) -> (Tensor, Tensor)"
Masked: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A mask, and the state of the generator after it."""
_VALUES: Final = Values(NUMPY)
_PROBED: Final = 4096
_SEED: Final = 20


def moved(state: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
    """The operator `tally.mt19937_move`."""
    (after,) = operator("tally.mt19937_move").read(_VALUES, {"state": _value(state), "move": _value(move)})
    return torch.from_numpy(after.array).to(state.device)


def drawn_by_element(state: torch.Tensor, size: Sequence[int], keep: float, dtype: torch.dtype) -> Masked:
    """The operator `tally.mt19937_mask`."""
    return _mask(MT19937, state, size, keep, dtype)


def drawn_by_one_word(state: torch.Tensor, size: Sequence[int], keep: float, dtype: torch.dtype) -> Masked:
    """The operator `tally.mcg31_mask`."""
    return _mask(MCG31, state, size, keep, dtype)


# Traces hold these; replays call the functions themselves, because PyTorch loads its compiler for a custom operator.
mt19937_move = torch.library.custom_op(
    "tally::mt19937_move", moved, mutates_args=(), schema="(Tensor state, Tensor move) -> Tensor"
)
mt19937_mask = torch.library.custom_op("tally::mt19937_mask", drawn_by_element, mutates_args=(), schema=MASK)
mcg31_mask = torch.library.custom_op("tally::mcg31_mask", drawn_by_one_word, mutates_args=(), schema=MASK)


@mt19937_move.register_fake
def _fake_move(state: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(state)


@mt19937_mask.register_fake
@mcg31_mask.register_fake
def _fake_mask(state: torch.Tensor, size: Sequence[int], keep: float, dtype: torch.dtype) -> Masked:
    return state.new_empty(size, dtype=dtype), torch.empty_like(state)


def live_state() -> State:
    """The state of PyTorch's generator on the CPU, as graphs hold it."""
    return state_in(torch.get_rng_state())


def state_in(held: torch.Tensor) -> State:
    """The state in the bytes of `torch.get_rng_state`: the seed, `left` and `seeded`, `next`, and 624 words."""
    numbers = held.numpy()[: 8 * (3 + BLOCK)].view("<u8")
    is_due = int(numbers[1]) & 0xFFFFFFFF == 1
    return np.append(numbers[3:].astype(np.int64), np.int64(BLOCK if is_due else numbers[2]))


@cache
def native_mask() -> str | None:
    """The operator that draws what `bernoulli_` draws on this machine; `None` where none does.

    PyTorch takes another path on processors of Intel, and may take a third one on others.
    """
    generator = torch.Generator()
    generator.manual_seed(_SEED)
    drawn = torch.empty(_PROBED).bernoulli_(0.3, generator=generator)
    state, wanted = torch.from_numpy(seeded(_SEED)), drawn.numpy()
    masks = ((name, _mask(name, state, [_PROBED], 0.3, drawn.dtype)[0]) for name in NATIVE)
    return next((name for name, mask in masks if np.array_equal(mask.numpy(), wanted)), None)


def _mask(name: str, state: torch.Tensor, size: Sequence[int], keep: float, dtype: torch.dtype) -> Masked:
    kind = "F64" if dtype == torch.float64 else "BOOL"
    given = {"state": _value(state), "size": tuple(size), "keep": keep, "dtype": kind}
    mask, after = operator(name).read(_VALUES, given)
    drawn = torch.from_numpy(mask.array).to(state.device, dtype)
    return drawn, torch.from_numpy(after.array).to(state.device)


def _value(tensor: torch.Tensor) -> Value:
    return Value(tensor.cpu().numpy(), "I64")
