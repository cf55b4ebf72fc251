"""Random numbers that are a pure function of a seed, both in eager loops and in captured graphs.

    with explicit_randomness(seed):
        loss(model, batch).backward()

Inside this context, dropout and uniform numbers of PyTorch come from the Philox stream of `seed` instead of a
generator. A step captured with `seeded=True` makes the same draws with operators on the input `rng.seed`, and gives the
same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tallystick.commitments.philox import WORDS_PER_BLOCK
from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.generator_operators import mcg31_mask, mt19937_mask, native_mask
from tallystick.frameworks.torch.philox_operators import dropout_mask, philox_uniform, seed_tensor
from tallystick.operators.tally.generator import MT19937

ONLY_DROPOUT: Final = "{} draws other random numbers than dropout does; give the recorder a seed (`seed=1`)"
NO_SEED: Final = "{} draws random numbers that no seed determines; dropout and uniform numbers can be explicit"


def explicit_randomness(seed: bytes | torch.Tensor) -> ExplicitRandomness:
    """A context in which PyTorch draws from the stream of `seed`; each draw continues after the one before.

    An operator that draws other random numbers, as `randn`, raises `UnavailableError`. A new context starts the stream
    again: give every step its own seed.
    """
    return ExplicitRandomness(seed if isinstance(seed, torch.Tensor) else seed_tensor(seed))


class ExplicitRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws from word `offset` of the stream of `seed` on, and counts the words as they are drawn."""

    def __init__(self, seed: torch.Tensor, offset: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed, self.offset = seed, offset

    def __torch_dispatch__(
        self, called: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.call(called, args, kwargs or {})

    def call(self, called: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operator; one that draws is answered from the stream."""
        if str(called) in _DRAWS:
            return _DRAWS[str(called)](self, *args, **kwargs)
        if is_random(called, args, kwargs):
            self.refuse(str(called))
        return called(*args, **kwargs)

    @property
    def place(self) -> Any:
        """Where in the stream the next draw is."""
        return self.offset

    def at(self, place: Any) -> ExplicitRandomness:
        """The stream from an earlier `place` on, for what runs a second time."""
        return type(self)(self.seed, place)

    def begins(self) -> None:
        """A forward pass begins to draw from this stream."""

    def ends(self) -> None:
        """A forward pass draws from it no longer."""

    def refuse(self, name: str) -> None:
        """Raise `UnavailableError` for an operator that draws from a generator."""
        raise UnavailableError(NO_SEED.format(name))

    def uniform(self, size: Sequence[int], dtype: torch.dtype, device: Any = None) -> torch.Tensor:
        """Numbers of [0, 1)."""
        drawn = philox_uniform(self.seed, self.offset, list(size), dtype)
        self._pass(size)
        return drawn.to(device)  # type: ignore[no-any-return]

    def mask(self, like: torch.Tensor, keep: float) -> torch.Tensor:
        """1 with probability `keep`, else 0, in the shape and dtype of `like`."""
        drawn = dropout_mask(self.seed, self.offset, list(like.shape), keep, like.dtype)
        self._pass(like.shape)
        return drawn.to(like.device)  # type: ignore[no-any-return]

    def _pass(self, size: Sequence[int]) -> None:
        self.offset += -(-math.prod(size) // WORDS_PER_BLOCK) * WORDS_PER_BLOCK


class GeneratorRandomness(ExplicitRandomness):
    """Draws what dropout draws from PyTorch's generator, whose state goes from draw to draw as a tensor."""

    def __init__(self, state: torch.Tensor) -> None:
        super().__init__(state)  # type: ignore[no-untyped-call]

    @property
    def place(self) -> Any:
        """The state of the generator before the next draw."""
        return self.seed

    def at(self, place: Any) -> ExplicitRandomness:
        """The stream from the state `place` on."""
        return GeneratorRandomness(place)

    def uniform(self, size: Sequence[int], dtype: torch.dtype, device: Any = None) -> torch.Tensor:
        """Raise `UnavailableError`: only dropout draws in a way that graphs hold."""
        raise UnavailableError(ONLY_DROPOUT.format("the step"))

    def mask(self, like: torch.Tensor, keep: float) -> torch.Tensor:
        """1 with probability `keep`, else 0, as `like.bernoulli_(keep)` draws it here."""
        size, strides = list(like.shape), like.stride()
        if native_mask() != MT19937:
            drawn, self.seed = mcg31_mask(self.seed, size, keep, like.dtype)
            return drawn  # type: ignore[no-any-return]
        # PyTorch fills memory in its own order, whatever the order of the axes is.
        order = sorted(range(like.dim()), key=lambda axis: -strides[axis])
        drawn, self.seed = mt19937_mask(self.seed, [size[axis] for axis in order], keep, like.dtype)
        return drawn.permute([order.index(axis) for axis in range(like.dim())])  # type: ignore[no-any-return]

    def refuse(self, name: str) -> None:
        """Raise `UnavailableError`: only dropout draws in a way that graphs hold."""
        raise UnavailableError(ONLY_DROPOUT.format(name))


def is_random(called: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers; attention does only where it drops."""
    if not isinstance(called, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in called.tags:
        return False
    arguments = called._schema.arguments
    given = dict(zip((each.name for each in arguments), args, strict=False)) | dict(kwargs)
    return all(each.name != "dropout_p" or given.get(each.name, each.default_value) for each in arguments)


Draw = ExplicitRandomness


def _bernoulli(mode: Draw, x: torch.Tensor, p: float = 0.5, generator: None = None) -> torch.Tensor:
    return mode.mask(x, p)


def _bernoulli_in_place(mode: Draw, x: torch.Tensor, p: float = 0.5, generator: None = None) -> torch.Tensor:
    return x.copy_(mode.mask(x, p))


def _bernoulli_of(mode: Draw, p: torch.Tensor, generator: None = None) -> torch.Tensor:
    """1 with the probability that each element states."""
    return (mode.uniform(p.shape, torch.float64, p.device) < p.double()).to(p.dtype)


def _bernoulli_in_place_of(mode: Draw, x: torch.Tensor, p: torch.Tensor, generator: None = None) -> torch.Tensor:
    return x.copy_(_bernoulli_of(mode, p.expand(x.shape)))


def _native_dropout(mode: Draw, x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator that CUDA uses for dropout: returns the result and the BOOL mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = mode.mask(x, 1 - p)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask.bool()


def _rand(mode: Draw, size: Sequence[int], *, dtype: torch.dtype | None = None, **placed: Any) -> torch.Tensor:
    return mode.uniform(size, dtype or torch.get_default_dtype(), placed.get("device"))


def _rand_like(mode: Draw, x: torch.Tensor, *, dtype: torch.dtype | None = None, **placed: Any) -> torch.Tensor:
    return mode.uniform(x.shape, dtype or x.dtype, placed.get("device") or x.device)


def _uniform(mode: Draw, x: torch.Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> torch.Tensor:
    """Numbers of [low, high): each is a product and a sum, rounded one after the other."""
    return mode.uniform(x.shape, x.dtype, x.device) * (high - low) + low


def _uniform_in_place(mode: Draw, x: torch.Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> torch.Tensor:
    return x.copy_(_uniform(mode, x, low, high))


_DRAWS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten.bernoulli.default": _bernoulli_of,
    "aten.bernoulli.p": _bernoulli,
    "aten.bernoulli_.Tensor": _bernoulli_in_place_of,
    "aten.bernoulli_.float": _bernoulli_in_place,
    "aten.native_dropout.default": _native_dropout,
    "aten.rand.default": _rand,
    "aten.rand_like.default": _rand_like,
    "aten.uniform.default": _uniform,
    "aten.uniform_.default": _uniform_in_place,
}
