"""A small model of Equinox, trained by an optimizer of optax: a recurrent network over a sequence of static length."""

from __future__ import annotations

from typing import Any, Final

import equinox
import jax
import optax

from research.architectures.jax_example import JaxExample
from research.architectures.optax_step import RESULTS, ROLES, cross_entropy, second_step, training_step

VOCABULARY: Final = 31
WIDTH: Final = 16
LENGTH: Final = 6
BATCH: Final = 3


class Recurrent(equinox.Module):  # type: ignore[misc] # of a library that is not typed here
    """Embedding, a gated recurrent unit over the sequence, normalization, logits."""

    embedding: Any
    cell: Any
    norm: Any
    head: Any
    unroll: bool

    def __call__(self, ids: Any) -> Any:
        """The logits after each token of one sequence."""

        def after(state: Any, x: Any) -> Any:
            state = self.cell(x, state)
            return state, self.head(self.norm(state))

        return jax.lax.scan(after, jax.numpy.zeros(WIDTH), jax.vmap(self.embedding)(ids), unroll=self.unroll)[1]


def recurrent(*, unroll: bool) -> JaxExample:
    """The network, with a loop or with its steps one after the other; gradient descent with Nesterov's momentum."""
    keys = jax.random.split(jax.random.key(0), 4)
    model = Recurrent(
        equinox.nn.Embedding(VOCABULARY, WIDTH, key=keys[0]),
        equinox.nn.GRUCell(WIDTH, WIDTH, key=keys[1]),
        equinox.nn.LayerNorm(WIDTH),
        equinox.nn.Linear(WIDTH, VOCABULARY, key=keys[2]),
        unroll,
    )
    weights, plan = equinox.partition(model, equinox.is_array)
    ids = jax.random.randint(keys[3], (BATCH, LENGTH), 0, VOCABULARY)

    def forward(weights: Any, x: Any) -> Any:
        return jax.vmap(equinox.combine(weights, plan))(x)

    def loss(weights: Any, x: Any, target: Any) -> Any:
        return cross_entropy(forward(weights, x), target)

    optimizer = optax.sgd(1e-2, momentum=0.9, nesterov=True)
    step = training_step(loss, optimizer)
    arguments = second_step(step, optimizer, weights, ids, jax.numpy.roll(ids, -1, 1))
    batched = ("inputs.x",)
    step_batched = ("inputs.x", "inputs.target")
    return JaxExample(
        forward, (weights, ids), step, arguments, ROLES, RESULTS, batched, step_batched, looped=not unroll
    )
