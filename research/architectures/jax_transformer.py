"""A transformer written in JAX alone, and a training step of it with `jax.grad` and Adam."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from research.architectures.jax_example import JaxExample

WIDTH: Final = 16
HEADS: Final = 2
LAYERS: Final = 2
VOCABULARY: Final = 31
LENGTH: Final = 6
BATCH: Final = 3
ROLES: Final = {0: "weights", 1: "optimizer.first", 2: "optimizer.second", 4: "schedule.rate", 5: "schedule.step"}
RESULTS: Final = {0: "weights", 1: "optimizer.first", 2: "optimizer.second", 3: "loss"}
BETAS: Final = (0.9, 0.999)
SMALL: Final = 1e-8


def example() -> JaxExample:
    """The forward pass and a step of Adam."""
    batched = ("inputs.ids",)
    return JaxExample(forward, (weights(), tokens()), training_step, step_arguments(), ROLES, RESULTS, batched, batched)


def weights() -> dict[str, Any]:
    """F32, normally distributed; the same at every call."""
    import jax.numpy as jnp

    generator = np.random.default_rng(7)

    def normal(*shape: int) -> Any:
        return jnp.asarray(0.2 * generator.standard_normal(shape), jnp.float32)

    found = {"embedding": normal(VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        found |= {f"{layer}.qkv": normal(WIDTH, 3 * WIDTH), f"{layer}.out": normal(WIDTH, WIDTH)}
        found |= {f"{layer}.up": normal(WIDTH, 2 * WIDTH), f"{layer}.down": normal(2 * WIDTH, WIDTH)}
        found |= {f"{layer}.scale": jnp.ones(WIDTH)}
    return found


def tokens() -> Any:
    """I32 token ids."""
    import jax.numpy as jnp

    return jnp.asarray(np.random.default_rng(8).integers(0, VOCABULARY, (BATCH, LENGTH)), jnp.int32)


def forward(p: dict[str, Any], ids: Any) -> Any:
    """Logits of blocks with causal attention and a perceptron; the embedding is tied."""
    x = p["embedding"][ids]
    for layer in range(LAYERS):
        x = x + _attention(p, layer, _normed(x, p[f"{layer}.scale"]))
        x = x + _perceptron(p, layer, _normed(x, p[f"{layer}.scale"]))
    return x @ p["embedding"].T


def loss(p: dict[str, Any], ids: Any) -> Any:
    """Mean cross entropy of the next token."""
    import jax
    import jax.numpy as jnp

    logits = jax.nn.log_softmax(forward(p, ids[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(logits, ids[:, 1:, None], -1))


def training_step(p: Any, first: Any, second: Any, ids: Any, rate: Any, step: Any) -> Any:
    """One step of Adam: weights, both moments, loss."""
    import jax
    import jax.numpy as jnp

    value, gradients = jax.value_and_grad(loss)(p, ids)
    first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, first, gradients)
    second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, second, gradients)
    unbiased = [1 - jnp.float32(beta) ** step for beta in BETAS]

    def moved(w: Any, m: Any, v: Any) -> Any:
        return w - rate * (m / unbiased[0]) / (jnp.sqrt(v / unbiased[1]) + SMALL)

    return jax.tree.map(moved, p, first, second), first, second, value


def step_arguments() -> tuple[Any, ...]:
    """Weights, two moments that are not zero, tokens, learning rate and number of the step."""
    import jax
    import jax.numpy as jnp

    start = weights()
    first = jax.tree.map(lambda w: 0.01 * w[::-1], start)
    return start, first, jax.tree.map(lambda m: m * m + 1e-6, first), tokens(), jnp.float32(1e-3), jnp.float32(2)


def _attention(p: dict[str, Any], layer: int, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    length = x.shape[1]
    mask = jnp.tril(jnp.ones((length, length), bool))
    q, k, v = (_heads(part) for part in jnp.split(x @ p[f"{layer}.qkv"], 3, -1))
    scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e9)
    mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return mixed @ p[f"{layer}.out"]


def _perceptron(p: dict[str, Any], layer: int, x: Any) -> Any:
    import jax

    return jax.nn.gelu(x @ p[f"{layer}.up"], approximate=False) @ p[f"{layer}.down"]


def _heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)


def _normed(x: Any, scale: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale
