"""Decoding of the transformer in JAX, with a cache of keys and values, as StableHLO graphs.

The interface is that of `programs.decoding`. Causality follows the order in the cache; places enter nothing else,
because this transformer has no position embedding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from research.architectures import jax_transformer
from research.architectures.jax_transformer import HEADS, LAYERS, WIDTH
from tallystick.engines.jax.capture import capture

if TYPE_CHECKING:
    from tallystick.engines.jax.capture import CapturedFunction

HIDDEN_SCORE: Final = -1e9
Cache = dict[str, dict[str, Any]]


def capture_jax_decode(past: int, batch: int = 1, length: int = 1) -> CapturedFunction:
    """The step that feeds `length` tokens to `batch` sequences with `past` tokens behind them."""
    import jax.numpy as jnp

    places = jnp.broadcast_to(jnp.arange(past, past + length, dtype=jnp.int32), (batch, length))
    shape = (batch, HEADS, past, WIDTH // HEADS)
    cache = {str(layer): {part: jnp.zeros(shape, jnp.float32) for part in ("key", "value")} for layer in range(LAYERS)}
    return capture(decode, jax_transformer.weights(), jnp.zeros_like(places), places, cache, roles={0: "weights"})


def capture_jax_prefill(length: int, batch: int = 1) -> CapturedFunction:
    """The pass over `batch` whole sequences, with no cache among its inputs."""
    import jax.numpy as jnp

    places = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length))
    return capture(decode, jax_transformer.weights(), jnp.zeros_like(places), places, {}, roles={0: "weights"})


def decode(p: dict[str, Any], input_ids: Any, position_ids: Any, cache: Cache) -> dict[str, Any]:
    """Logits of the tokens fed, and the cache with their keys and values behind the others."""
    x = p["embedding"][input_ids]
    longer: Cache = {}
    for layer in range(LAYERS):
        normed = _normed(x, p[f"{layer}.scale"])
        mixed, longer[str(layer)] = _attention(p, layer, normed, cache.get(str(layer)))
        x = x + mixed
        x = x + _perceptron(p, layer, _normed(x, p[f"{layer}.scale"]))
    return {"logits": x @ p["embedding"].T, "cache": longer}


def _attention(p: dict[str, Any], layer: int, x: Any, held: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    import jax
    import jax.numpy as jnp

    q, k, v = (_heads(part) for part in jnp.split(x @ p[f"{layer}.qkv"], 3, -1))
    if held is not None:
        k, v = jnp.concatenate([held["key"], k], 2), jnp.concatenate([held["value"], v], 2)
    length, keys = q.shape[2], k.shape[2]
    is_seen = jnp.arange(keys) <= keys - length + jnp.arange(length)[:, None]
    scores = jnp.where(is_seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), HIDDEN_SCORE)
    mixed = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
    return mixed @ p[f"{layer}.out"], {"key": k, "value": v}


def _perceptron(p: dict[str, Any], layer: int, x: Any) -> Any:
    import jax

    return jax.nn.gelu(x @ p[f"{layer}.up"], approximate=False) @ p[f"{layer}.down"]


def _heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)


def _normed(x: Any, scale: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale
