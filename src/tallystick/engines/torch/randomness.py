"""Random numbers as pure functions of a seed: in eager loops, in graphs, and in forward passes of a loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.programs.operators.arrays import NUMPY
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.tally.generator import MCG31, MT19937, NATIVE
from tallystick.programs.operators.values import Value, Values
from tallystick.programs.random_words import BLOCK, WORDS_PER_BLOCK, State, seeded, words

# The operators `tally.philox_uniform` and `tally.dropout_mask`, on words drawn by NumPy.

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


def _fractions(seed: torch.Tensor, offset: int, size: Sequence[int], bits: int) -> torch.Tensor:
    """The leading `bits` of each word divided by 2^bits, float64 on the CPU."""
    drawn = words(seed.cpu().numpy().tobytes(), math.prod(size), offset)
    leading = (drawn >> np.uint64(64 - bits)).astype(np.float64)
    return torch.from_numpy(leading).mul_(2.0**-bits).reshape(tuple(size))


# The operators of `programs.operators.tally.generator` for PyTorch, and which of them is what this machine draws.

Masked: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A mask, and the state of the generator after it."""
_VALUES: Final = Values(NUMPY)
_PROBED: Final = 4096
_SEED: Final = 20


def moved(state: torch.Tensor, move: torch.Tensor) -> torch.Tensor:
    """The operator `tally.mt19937_move`."""
    (after,) = operator("tally.mt19937_move").read(_VALUES, {"state": _value(state), "move": _value(move)})
    return torch.from_numpy(after.array).to(state.device)


def drawn_natively(name: str, state: torch.Tensor, size: Sequence[int], keep: float, dtype: torch.dtype) -> Masked:
    """The operator `name`, `tally.mt19937_mask` or `tally.mcg31_mask`."""
    kind = "F64" if dtype == torch.float64 else "BOOL"
    given = {"state": _value(state), "size": tuple(size), "keep": keep, "dtype": kind}
    mask, after = operator(name).read(_VALUES, given)
    return torch.from_numpy(mask.array).to(state.device, dtype), torch.from_numpy(after.array).to(state.device)


def _value(tensor: torch.Tensor) -> Value:
    return Value(tensor.cpu().numpy(), "I64")


DRAWING: Final[Mapping[str, Callable[..., Any]]] = {
    "tally.philox_uniform": drawn_uniform,
    "tally.dropout_mask": drawn_mask,
    "tally.mt19937_move": moved,
    MT19937: partial(drawn_natively, MT19937),
    MCG31: partial(drawn_natively, MCG31),
}
"""What replays call for the operators of this file: PyTorch loads its compiler for a custom operator."""
_SIZED: Final = "int offset, SymInt[] size"
_MASK: Final = "(Tensor state, SymInt[] size, float keep, ScalarType dtype) -> (Tensor, Tensor)"


def _traced(name: str, schema: str, fake: Callable[..., Any]) -> Any:
    """An operator as traces hold it; `fake` gives results of the same form."""
    added = torch.library.custom_op(
        name.replace(".", "::"), lambda *given: DRAWING[name](*given), mutates_args=(), schema=schema
    )
    added.register_fake(fake)
    return added


philox_uniform: Final = _traced(
    "tally.philox_uniform",
    f"(Tensor seed, {_SIZED}, ScalarType dtype) -> Tensor",
    lambda seed, offset, size, dtype: seed.new_empty(size, dtype=dtype),
)
dropout_mask: Final = _traced(
    "tally.dropout_mask",
    f"(Tensor seed, {_SIZED}, float keep, ScalarType dtype) -> Tensor",
    lambda seed, offset, size, keep, dtype: seed.new_empty(size, dtype=dtype),
)
mt19937_move: Final = _traced(
    "tally.mt19937_move", "(Tensor state, Tensor move) -> Tensor", lambda state, move: torch.empty_like(state)
)
native_masks: Final = {
    name: _traced(
        name,
        _MASK,
        lambda state, size, keep, dtype: (state.new_empty(size, dtype=dtype), torch.empty_like(state)),
    )
    for name in NATIVE
}


def live_state() -> State:
    """The state of PyTorch's generator on the CPU, as graphs hold it."""
    # `torch.get_rng_state` has the seed, `left` and `seeded`, `next`, and 624 words, each in 8 bytes
    numbers = torch.get_rng_state().numpy()[: 8 * (3 + BLOCK)].view("<u8")
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
    masks = ((name, drawn_natively(name, state, [_PROBED], 0.3, drawn.dtype)[0]) for name in NATIVE)
    return next((name for name, mask in masks if np.array_equal(mask.numpy(), wanted)), None)


# Random numbers that are a pure function of a seed, both in eager loops and in captured graphs.
#
#     with explicit_randomness(seed):
#         loss(model, batch).backward()
#
# Inside this context, dropout and uniform numbers of PyTorch come from the Philox stream of `seed` instead of a
# generator. A step captured with `seeded=True` makes the same draws with operators on the input `rng.seed`, and gives
# the same bits.

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
            drawn, self.seed = native_masks[MCG31](self.seed, size, keep, like.dtype)
            return drawn  # type: ignore[no-any-return]
        # PyTorch fills memory in its own order, whatever the order of the axes is.
        order = sorted(range(like.dim()), key=lambda axis: -strides[axis])
        drawn, self.seed = native_masks[MT19937](self.seed, [size[axis] for axis in order], keep, like.dtype)
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


Draw: TypeAlias = ExplicitRandomness


def _bernoulli_of(draw: Draw, p: torch.Tensor, generator: None = None) -> torch.Tensor:
    """1 with the probability that each element states."""
    return (draw.uniform(p.shape, torch.float64, p.device) < p.double()).to(p.dtype)


def _native_dropout(draw: Draw, x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The operator that CUDA uses for dropout: returns the result and the BOOL mask."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = draw.mask(x, 1 - p)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask.bool()


def _uniform(draw: Draw, x: torch.Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> torch.Tensor:
    """Numbers of [low, high): each is a product and a sum, rounded one after the other."""
    return draw.uniform(x.shape, x.dtype, x.device) * (high - low) + low


_DRAWS: Final[Mapping[str, Callable[..., Any]]] = {
    "aten.bernoulli.default": _bernoulli_of,
    "aten.bernoulli.p": lambda draw, x, p=0.5, generator=None: draw.mask(x, p),
    "aten.bernoulli_.Tensor": lambda draw, x, p, generator=None: x.copy_(_bernoulli_of(draw, p.expand(x.shape))),
    "aten.bernoulli_.float": lambda draw, x, p=0.5, generator=None: x.copy_(draw.mask(x, p)),
    "aten.native_dropout.default": _native_dropout,
    "aten.rand.default": lambda draw, size, *, dtype=None, device=None, **_: draw.uniform(
        size, dtype or torch.get_default_dtype(), device
    ),
    "aten.rand_like.default": lambda draw, x, *, dtype=None, device=None, **_: draw.uniform(
        x.shape, dtype or x.dtype, device or x.device
    ),
    "aten.uniform.default": _uniform,
    "aten.uniform_.default": lambda draw, x, *range_, **named: x.copy_(_uniform(draw, x, *range_, **named)),
}


# Which layers of a model drop at random, and which settings of its config make them.

SETTINGS: Final = (
    "dropout",
    "dropout_p",
    "attention_dropout",
    "activation_dropout",
    "resid_pdrop",
    "attn_pdrop",
)
"""Attributes of layers that drop without a module of their own, as attention does."""
DROPS: Final = "dropout draws random numbers"


def describe_dropout(model: nn.Module) -> str:
    """In words, that a model in training drops and in which layers; empty where it does not."""
    found = [name or type(module).__name__ for name, module in model.named_modules() if _drops(module)]
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{DROPS} (layer {found[0]}{others})" if found else ""


def dropout_is_known(model: nn.Module) -> bool:
    """Whether layers drop, and what they draw here is known: on a CPU."""
    on_cpu = all(value.device.type == "cpu" for value in model.parameters())
    return on_cpu and bool(describe_dropout(model)) and native_mask() is not None


def config_that_drops(model: nn.Module) -> Iterator[str]:
    """The settings of a model of transformers that make it drop."""
    config: Any = getattr(model, "config", None)
    for name, value in (config.to_dict() if hasattr(config, "to_dict") else {}).items():
        if "drop" in name and isinstance(value, float) and value > 0:
            yield name


def _drops(module: nn.Module) -> bool:
    if not module.training:
        return False
    if isinstance(module, _DropoutNd):
        return module.p > 0
    shares = (getattr(module, name, 0) for name in SETTINGS)
    return any(isinstance(share, float) and share > 0 for share in shares)


# Lets the forward passes of a training draw from a stream, from inside a loop that knows nothing of it.
#
# Layers that are checkpointed run a second time in the backward pass. PyTorch then restores its generators, of which a
# stream knows nothing; so such a layer is given the words again that it drew in the forward pass.


class SeededForward:
    """Runs the outermost call of a model, or of a part of it, under the current `stream`.

    Only calls in training mode with gradients count. `contain_errors` gives a context that keeps errors away from the
    loop. While a log watches, the log answers from the streams in `asked` in place of a mode of its own, so that it
    sees the operators of the loop.
    """

    def __init__(
        self, model: nn.Module, contain_errors: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self.stream: ExplicitRandomness | None = None
        self.asked: list[ExplicitRandomness] | None = None
        self._modules, self._contain_errors = frozenset(model.modules()), contain_errors
        self._outer: nn.Module | None = None
        self._starts: dict[nn.Module, list[Any]] = {}
        self._again: list[tuple[nn.Module, ExplicitRandomness]] = []
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Hook all modules; no hook goes with a copy of the model."""
        self._hooks = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]

    def begin(self, stream: ExplicitRandomness) -> None:
        """Draw from another stream from now on: that of the next step."""
        self.stream, self._starts = stream, {}

    def close(self) -> None:
        """Remove the hooks, and leave the stream if a forward pass is running."""
        for hook in self._hooks:
            hook.remove()
        if self._outer is not None:
            self._leave()
        self._hooks, self.stream = [], None

    def entered(self, module: nn.Module) -> None:
        """A module begins to run, in a forward pass or again in a backward pass."""
        if self.stream is None or module not in self._modules:
            return
        if _current_graph_task_id() != -1:  # a backward pass runs a layer again
            if not self._again and self._starts.get(module):
                again = self.stream.at(self._starts[module].pop())
                self._again.append((module, again))
                self._push(again)
            return
        if self._outer is None and module.training and torch.is_grad_enabled():
            self._outer = module
            self._push(self.stream)
        if self._outer is not None:
            self._starts.setdefault(module, []).append(self.stream.place)

    def left(self, module: nn.Module) -> None:
        """A module has run, or failed."""
        if self._again and self._again[-1][0] is module:
            self._pop(self._again.pop()[1])
        elif self._outer is module:
            self._leave()

    def _leave(self) -> None:
        self._outer = None
        assert self.stream is not None
        self._pop(self.stream)

    def _push(self, stream: ExplicitRandomness) -> None:
        if self.asked is not None:
            self.asked.append(stream)
        else:
            stream.__enter__()  # type: ignore[no-untyped-call]
        stream.begins()

    def _pop(self, stream: ExplicitRandomness) -> None:
        stream.ends()
        if self.asked is not None:
            self.asked.pop()
        else:
            stream.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _before(self, module: nn.Module, _args: Any) -> None:
        with self._contain_errors():
            self.entered(module)

    def _after(self, module: nn.Module, _args: Any, _result: Any) -> None:
        with self._contain_errors():
            self.left(module)


@contextmanager
def recomputed(model: nn.Module, stream: ExplicitRandomness) -> Iterator[None]:
    """A context in which layers that run again in a backward pass draw what they drew before from `stream`."""
    seeded = SeededForward(model)
    seeded.begin(stream)
    seeded.start()
    try:
        yield
    finally:
        seeded.close()
