"""A perceptron in JAX alone with a loop of a known count and with dropout from a key, and a training step of it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from research.architectures.jax_example import JaxExample

WIDTH: Final = 8
CLASSES: Final = 5
BATCH: Final = 3
ROUNDS: Final = 3
KEPT: Final = 0.8
RATE: Final = 0.1
ROLES: Final = {0: "weights", 3: "rng.key"}
RESULTS: Final = {0: "weights", 1: "loss", 2: "gradients"}


def example() -> JaxExample:
    """The forward pass with dropout, and a step of gradient descent."""
    import jax.numpy as jnp

    generator = np.random.default_rng(7)
    shapes = {"in": (WIDTH, WIDTH), "out": (WIDTH, CLASSES)}
    weights = {name: jnp.asarray(generator.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}
    x = jnp.asarray(generator.standard_normal((BATCH, WIDTH)), jnp.float32)
    target, key = jnp.asarray([0, 3, 1]), jnp.asarray([1, 2], jnp.uint32)
    step_batched = ("inputs.x", "inputs.target")
    return JaxExample(
        *(forward, (weights, x, key), training_step, (weights, x, target, key), ROLES, RESULTS),
        *(("inputs.x",), step_batched, True),
    )


def forward(p: dict[str, Any], x: Any, key: Any) -> Any:
    """Logits; the first matrix is divided by its largest singular value."""
    import jax
    import jax.numpy as jnp

    hidden = jax.nn.relu(x @ (p["in"] / _largest(p["in"])))
    kept = jax.random.bernoulli(jax.random.wrap_key_data(key), KEPT, hidden.shape)
    return jnp.where(kept, hidden / KEPT, 0) @ p["out"]


def training_step(p: dict[str, Any], x: Any, target: Any, key: Any) -> Any:
    """Weights, loss, gradients."""
    import jax
    import jax.numpy as jnp

    def loss(p: dict[str, Any]) -> Any:
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(forward(p, x, key)), target[:, None], -1))

    value, gradients = jax.value_and_grad(loss)(p)
    return jax.tree.map(lambda w, g: w - RATE * g, p, gradients), value, gradients


def _largest(matrix: Any) -> Any:
    """The largest singular value by a few rounds of power iteration."""
    import jax
    import jax.numpy as jnp

    def once(_: Any, v: Any) -> Any:
        v = matrix.T @ (matrix @ v)
        return v / jnp.sqrt((v * v).sum())

    found = jax.lax.fori_loop(0, ROUNDS, once, jnp.ones(WIDTH) / np.sqrt(WIDTH))
    return jnp.sqrt(((matrix @ found) ** 2).sum())
