"""The architectures of JAX: one written in JAX alone, and those of Flax and Equinox with the optimizers of optax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Final

from research.architectures import jax_randomness, jax_transformer
from research.architectures.jax_example import JaxExample
from tallystick.core.errors import UnavailableError

INSTALL: Final = "uv pip install -r requirements/jax-models.txt, into an environment of its own"


def build(name: str) -> JaxExample:
    """The architecture of that name; raises `UnavailableError` where its library is not installed."""
    return ARCHITECTURES[name]()


def _flax_transformer() -> JaxExample:
    _need("flax", "optax")
    from research.architectures import flax_models

    return flax_models.transformer()


def _flax_cnn() -> JaxExample:
    _need("flax", "optax")
    from research.architectures import flax_models

    return flax_models.cnn()


def _equinox_recurrent(*, unroll: bool) -> JaxExample:
    _need("equinox", "optax")
    from research.architectures import equinox_models

    return equinox_models.recurrent(unroll=unroll)


def _need(*modules: str) -> None:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise UnavailableError(f"{' and '.join(missing)} not installed: {INSTALL}")


ALONE: Final = "JAX transformer"
ARCHITECTURES: Final[Mapping[str, Callable[[], JaxExample]]] = {
    ALONE: jax_transformer.example,
    "JAX, dropout from a key and a loop": jax_randomness.example,
    "Flax linen, optax AdamW": _flax_transformer,
    "Flax nnx, optax Lion": _flax_cnn,
    "Equinox with a loop, optax SGD": partial(_equinox_recurrent, unroll=False),
    "Equinox unrolled, optax SGD": partial(_equinox_recurrent, unroll=True),
}
"""By what they are called in the table."""
BESIDE_THE_LOCK: Final = tuple(name for name in ARCHITECTURES if "optax" in name)
"""Those whose libraries the locked environment has not."""
