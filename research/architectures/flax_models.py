"""Small models of Flax, trained by optimizers of optax: a transformer in linen, and a convolutional network in nnx."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from flax import linen, nnx

from research.architectures.jax_example import JaxExample
from research.architectures.optax_step import RESULTS, ROLES, cross_entropy, second_step, training_step

VOCABULARY: Final = 31
WIDTH: Final = 16
LENGTH: Final = 6
BATCH: Final = 3
CLASSES: Final = 5


class Transformer(linen.Module):  # type: ignore[misc] # of a library that is not typed here
    """One block with causal attention and a perceptron."""

    @linen.compact  # type: ignore[untyped-decorator]
    def __call__(self, ids: Any) -> Any:
        """Logits."""
        embedding = linen.Embed(VOCABULARY, WIDTH)
        x = embedding(ids)
        mask = linen.make_causal_mask(ids)
        x = x + linen.MultiHeadDotProductAttention(num_heads=2, use_bias=False)(linen.LayerNorm()(x), mask=mask)
        x = x + linen.Dense(WIDTH)(linen.gelu(linen.Dense(2 * WIDTH)(linen.RMSNorm()(x))))
        return embedding.attend(x)


def transformer() -> JaxExample:
    """The transformer; a step of AdamW with clipped gradients, weight decay and a rate that warms up."""
    model = Transformer()
    ids = jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 0, VOCABULARY)
    rate = optax.warmup_cosine_decay_schedule(1e-4, 1e-3, 4, 20)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.1))
    return _example(model.apply, model.init(jax.random.key(0), ids), optimizer, ids, jnp.roll(ids, -1, 1))


def cnn() -> JaxExample:
    """Convolution, normalization by groups, pooling; a step of Lion."""
    draws = nnx.Rngs(0)
    layers = (
        nnx.Conv(1, 4, (3, 3), rngs=draws),
        nnx.GroupNorm(4, num_groups=2, rngs=draws),
        nnx.relu,
        lambda x: nnx.max_pool(x, (2, 2), (2, 2)),
        lambda x: x.mean((1, 2)),
        nnx.Linear(4, CLASSES, rngs=draws),
    )
    plan, state = nnx.split(nnx.Sequential(*layers))
    images = jax.random.normal(jax.random.key(1), (BATCH, 8, 8, 1))
    target = jax.random.randint(jax.random.key(2), (BATCH,), 0, CLASSES)

    def forward(weights: Any, x: Any) -> Any:
        return nnx.merge(plan, weights)(x)

    return _example(forward, state, optax.lion(1e-3), images, target)


def _example(forward: Any, weights: Any, optimizer: Any, x: Any, target: Any) -> JaxExample:
    def called(weights: Any, x: Any) -> Any:
        return forward(weights, x)

    def loss(weights: Any, x: Any, target: Any) -> Any:
        return cross_entropy(forward(weights, x), target)

    step = training_step(loss, optimizer)
    arguments = second_step(step, optimizer, weights, x, target)
    return JaxExample(
        called, (weights, x), step, arguments, ROLES, RESULTS, ("inputs.x",), ("inputs.x", "inputs.target")
    )
