"""A small transformer in JAX, and a training step of it, for the tests."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 16, 2, 31, 6, 3


def weights() -> dict[str, Any]:
    """F32, normally distributed; the same at every call."""
    generator = np.random.default_rng(7)

    def normal(*shape: int) -> Any:
        return jnp.asarray(0.2 * generator.standard_normal(shape), jnp.float32)

    return {
        "embedding": normal(VOCABULARY, WIDTH),
        "qkv": normal(WIDTH, 3 * WIDTH),
        "out": normal(WIDTH, WIDTH),
        "up": normal(WIDTH, 2 * WIDTH),
        "down": normal(2 * WIDTH, WIDTH),
        "scale": jnp.ones(WIDTH),
    }


def tokens() -> Any:
    """I32 token ids."""
    return jnp.asarray(np.random.default_rng(8).integers(0, VOCABULARY, (BATCH, LENGTH)), jnp.int32)


def forward(p: dict[str, Any], ids: Any) -> Any:
    """Logits of a block with causal attention and a gated perceptron; the embedding is tied."""
    x = p["embedding"][ids]
    mask = jnp.tril(jnp.ones((ids.shape[1], ids.shape[1]), bool))
    q, k, v = (_heads(part) for part in jnp.split(_normed(x, p["scale"]) @ p["qkv"], 3, -1))
    scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e9)
    mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + mixed @ p["out"]
    x = x + jax.nn.gelu(_normed(x, p["scale"]) @ p["up"], approximate=False) @ p["down"]
    return x @ p["embedding"].T


def _heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)


def _normed(x: Any, scale: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def loss(p: dict[str, Any], ids: Any) -> Any:
    """Mean cross entropy of the next token."""
    logits = jax.nn.log_softmax(forward(p, ids[:, :-1]))
    return -jnp.mean(jnp.take_along_axis(logits, ids[:, 1:, None], -1))


def training_step(p: Any, momentum: Any, ids: Any, rate: Any) -> Any:
    """One step of gradient descent with momentum: weights, momentum, loss."""
    value, gradients = jax.value_and_grad(loss)(p, ids)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda w, m: w - rate * m, p, momentum), momentum, value


def step_arguments() -> tuple[Any, ...]:
    """Weights, momentum of zeros, tokens, learning rate."""
    return weights(), jax.tree.map(jnp.zeros_like, weights()), tokens(), jnp.float32(0.1)


ROLES = {0: "weights", 1: "optimizer.momentum", 3: "schedule.rate"}
RESULTS = {0: "weights", 1: "optimizer.momentum", 2: "loss"}
