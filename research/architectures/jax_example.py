"""One architecture of JAX as it is tried: a function of weights and inputs, and a training step of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class JaxExample:
    """A forward pass and a training step, each with its arguments; `weights` are the forward pass's first.

    `roles` and `results` name the arguments and the results of the step, as `engines.jax.capture` takes them.
    `batched` and `step_batched` are the inputs that hold one example per row. `looped`: the program has a loop, which
    its graph has unrolled; XLA may round the two otherwise.
    """

    forward: Callable[..., Any]
    arguments: tuple[Any, ...]
    step: Callable[..., Any]
    step_arguments: tuple[Any, ...]
    roles: Mapping[int, str]
    results: Mapping[int, str]
    batched: tuple[str, ...]
    step_batched: tuple[str, ...]
    looped: bool = False
