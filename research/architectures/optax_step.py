"""A training step by an optimizer of optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import optax

ROLES: Final = {0: "weights", 1: "optimizer"}
RESULTS: Final = {0: "weights", 1: "optimizer", 2: "loss", 3: "gradients"}


def training_step(loss: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
    """Weights, state of the optimizer and a batch to: weights, state, loss, gradients."""

    def step(weights: Any, state: Any, x: Any, target: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, target)
        moves, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, moves), state, value, gradients

    return step


def second_step(step: Callable[..., Any], optimizer: Any, weights: Any, *batch: Any) -> tuple[Any, ...]:
    """The arguments of the step after one that was taken: its moments are not zero any more."""
    weights, state, *_ = jax.jit(step)(weights, optimizer.init(weights), *batch)
    return weights, state, *batch


def cross_entropy(logits: Any, target: Any) -> Any:
    """The mean over all that is predicted."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, target).mean()
