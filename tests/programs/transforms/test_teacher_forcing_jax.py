"""Steps of transformers in JAX, as StableHLO: given one token after the other and all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from research.decoding.jax_decoding import capture_jax_decode
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.engines.jax.capture import CapturedFunction, capture
from tallystick.engines.jax.engine import JaxEngine
from tallystick.programs.decoding import LOGITS, PLACES, TOKENS, allowed_share, decoding_distances
from tallystick.programs.difference import cast
from tallystick.programs.execution import Reference, execute
from tallystick.programs.transforms.teacher_forcing import to_teacher_forcing

PAST = 4
VOCABULARY, WIDTH, HEADS, LAYERS = 24, 12, 2, 2
"""A cache of this transformer holds [B, heads, places, width], and a token is turned by its place."""


def weights() -> dict[str, Any]:
    random = np.random.default_rng(4)

    def drawn(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    layer = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH), "up": (WIDTH, 18)}
    layers = [
        {**{name: drawn(*shape) for name, shape in layer.items()}, "down": drawn(18, WIDTH)} for _ in range(LAYERS)
    ]
    return {"embedding": drawn(VOCABULARY, WIDTH), "layers": layers, "scale": 1 + drawn(WIDTH) / 8}


def step(p: dict[str, Any], input_ids: Any, position_ids: Any, cache: dict[str, Any]) -> dict[str, Any]:
    x, longer = p["embedding"][input_ids], {}
    for number, layer in enumerate(p["layers"]):
        normed = normalized(x) * p["scale"]
        q, k, v = (heads(normed @ layer[part]) for part in "qkv")
        q, k, held = turned(q, position_ids), turned(k, position_ids), cache[str(number)]
        k, v = jnp.concatenate([held["key"], k], 2), jnp.concatenate([held["value"], v], 2)
        scores = jnp.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1])
        mixed = jnp.einsum("bhts,bhsd->bthd", jax.nn.softmax(scores, -1), v)
        x = x + mixed.reshape(x.shape) @ layer["o"]
        x = x + jax.nn.gelu(normalized(x) @ layer["up"]) @ layer["down"]
        longer[str(number)] = {"key": k, "value": v}
    return {"logits": x @ p["embedding"].T, "cache": longer}


def heads(x: Any) -> Any:
    return jnp.swapaxes(jnp.reshape(x, (*x.shape[:2], HEADS, -1)), 1, 2)


def normalized(x: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def turned(x: Any, places: Any) -> Any:
    half = x.shape[-1] // 2
    angles = (places[..., None] * 100.0 ** (-jnp.arange(half) / half))[:, None]
    first, second = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def empty(places: int, batch: int) -> dict[str, Any]:
    none = jnp.zeros((batch, HEADS, places, WIDTH // HEADS))
    return {str(layer): {"key": none, "value": none} for layer in range(LAYERS)}


def captured(function: Any = step, past: int = PAST, batch: int = 1) -> CapturedFunction:
    tokens = jnp.zeros((batch, 1), jnp.int32)
    return capture(function, weights(), tokens, tokens, empty(past, batch), roles={0: "weights"})


def study(past: int, batch: int) -> CapturedFunction:
    """The transformer of the architectures' study: a mask of its own, and no places."""
    return capture_jax_decode(past, batch)


def assert_right(capture_step: Any, batch: int) -> None:
    """On the reference, the pass gives what the graphs of single steps give one after the other."""
    found = capture_step(PAST, batch)
    whole = to_teacher_forcing(found.graph, PAST + 1, found.constants)
    steps = {past: capture_step(past, batch).graph for past in range(PAST + 1)}
    distances = decoding_distances(steps.__getitem__, whole, found.bindings, Reference(), np.random.default_rng(batch))
    assert len(distances) == 1 + 2 * LAYERS
    assert max(distances.values()) <= allowed_share(whole)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_pass_gives_what_steps_give(batch: int) -> None:
    assert_right(lambda past, batch: captured(step, past, batch), batch)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_transformer_with_a_mask_and_without_places(batch: int) -> None:
    assert_right(study, batch)


def test_on_jax_it_is_what_the_function_gives_token_by_token() -> None:
    found, tokens = captured(), np.array([[5, 1, 20]], np.int32)
    whole = to_teacher_forcing(found.graph, 3, found.constants)
    given = {TOKENS: Tensor.of(tokens), PLACES: Tensor.of(np.arange(3, dtype=np.int32)[None])}
    outputs = execute(whole, {**found.bindings, **given}, JaxEngine())
    held, rows = empty(0, 1), []
    for place in range(3):
        one = step(weights(), tokens[:, place : place + 1], jnp.full((1, 1), place), held)
        held = one["cache"]
        rows.append(one["logits"])
    np.testing.assert_allclose(outputs[LOGITS].values(), np.concatenate(rows, 1), atol=1e-5)
    np.testing.assert_allclose(outputs["outputs.cache.1.key"].values(), held["1"]["key"], atol=1e-5)


def test_a_mean_over_the_cache_is_refused() -> None:
    def averaging(p: Any, input_ids: Any, position_ids: Any, cache: Any) -> Any:
        found = step(p, input_ids, position_ids, cache)
        mean = jnp.mean(found["cache"]["0"]["key"], 2).reshape(input_ids.shape[0], 1, -1)
        return {**found, "logits": found["logits"] + mean @ p["embedding"].T}

    with pytest.raises(
        UnavailableError, match=r"node \d+: stablehlo.reduce: takes the sum over keys that no token asks"
    ):
        to_teacher_forcing(captured(averaging).graph, 4)


# ---- caches of slots, which one graph writes for every token

SLOTS, LENGTH = 7, 5
Masking = Callable[[Any, Any, Any], Any]
"""Scores, the number of each slot, and the place of the token."""


def usual(scores: Any, slots: Any, place: Any) -> Any:
    return jnp.where(slots <= place, scores, -1e30)


def slotted(masked: Masking = usual, written: Callable[[Any], Any] = lambda place: place) -> Any:
    def function(p: dict[str, Any], input_ids: Any, position_ids: Any, cache: dict[str, Any]) -> dict[str, Any]:
        x, held, places = p["embedding"][input_ids], {}, jnp.full(input_ids.shape, position_ids)
        for number, layer in enumerate(p["layers"]):
            normed = normalized(x) * p["scale"]
            q, k, v = (heads(normed @ layer[part]) for part in "qkv")
            q, k, old = turned(q, places), turned(k, places), cache[str(number)]
            k = jax.lax.dynamic_update_slice(old["key"], k, (0, 0, written(position_ids), 0))
            v = jax.lax.dynamic_update_slice_in_dim(old["value"], v, written(position_ids), 2)
            scores = masked(jnp.einsum("bhtd,bhsd->bhts", q, k) / 2, jnp.arange(SLOTS), position_ids)
            x = x + jnp.einsum("bhts,bhsd->bthd", jax.nn.softmax(scores, -1), v).reshape(x.shape) @ layer["o"]
            held[str(number)] = {"key": k, "value": v}
        return {"logits": x @ p["embedding"].T, "cache": held}

    return function


def captured_slots(function: Any, batch: int = 1) -> CapturedFunction:
    tokens = jnp.zeros((batch, 1), jnp.int32)
    return capture(function, weights(), tokens, jnp.int32(0), empty(SLOTS, batch), roles={0: "weights"})


def numbered(array: Any) -> Tensor:
    return Tensor.of(np.asarray(array, np.int32))


@pytest.mark.parametrize("batch", [1, 3])
def test_a_cache_of_slots(batch: int) -> None:
    """One graph for every token, so that the pass is compared with that very graph; slots hold other texts at first."""
    step, random = captured_slots(slotted(), batch), np.random.default_rng(batch)
    whole = to_teacher_forcing(step.graph, LENGTH, step.constants)
    assert [each.name for each in whole.inputs if each.role == "input"] == [TOKENS]
    tokens = random.integers(VOCABULARY, size=(batch, LENGTH)).astype(np.int32)
    caches = {each.name: each.spec.shape for each in step.graph.inputs if each.name.startswith("inputs.cache")}
    held = {name: Tensor.of(random.normal(size=shape).astype(np.float32)) for name, shape in caches.items()}
    for place in range(LENGTH):
        given = {TOKENS: numbered(tokens[:, place : place + 1]), PLACES: numbered(place)}
        one = execute(step.graph, {**step.bindings, **held, **given}, Reference())
        held = {name: cast(one[name.replace("inputs", "outputs")], "F32") for name in caches}
        together = execute(whole, {**step.bindings, TOKENS: numbered(tokens)}, Reference())
        np.testing.assert_allclose(together[LOGITS].array()[:, place], one[LOGITS].array()[:, 0], atol=1e-6)
    for name, tensor in held.items():
        rows = together[name.replace("inputs", "outputs")].array()
        np.testing.assert_allclose(tensor.array()[:, :, :LENGTH], rows, atol=1e-6)


SLOTTED: dict[str, tuple[Any, str]] = {
    "no mask": (slotted(lambda scores, slots, place: scores), "yet to be written"),
    "one slot too many": (slotted(lambda s, slots, place: usual(s, slots, place + 1)), "no causal mask"),
    "the token unseen": (slotted(lambda s, slots, place: usual(s, slots, place - 1)), "no causal mask"),
    "a window": (slotted(lambda s, slots, p: jnp.where(slots > p - 2, usual(s, slots, p), -1e30)), "no causal mask"),
    "a weak mask": (slotted(lambda s, slots, place: jnp.where(slots <= place, s, -5.0)), "yet to be written"),
    "the next slot": (slotted(written=lambda place: place + 1), "elsewhere than at the place of the token"),
    "the first slot": (slotted(written=lambda place: 0 * place), "elsewhere than at the place of the token"),
    "slots in reverse": (slotted(written=lambda place: SLOTS - 1 - place), "elsewhere than at the place of the token"),
}


@pytest.mark.parametrize("name", SLOTTED)
def test_slots_that_are_not_those_of_the_tokens_before_are_refused(name: str) -> None:
    function, reason = SLOTTED[name]
    step = captured_slots(function)
    with pytest.raises(UnavailableError, match=reason):
        to_teacher_forcing(step.graph, LENGTH, step.constants)


def test_a_cache_that_is_cut_is_refused() -> None:
    def cut(p: Any, input_ids: Any, position_ids: Any, cache: Any) -> Any:
        found = step(p, input_ids, position_ids, cache)
        return {**found, "cache": jax.tree.map(lambda x: x[:, :, 1:], found["cache"])}

    with pytest.raises(UnavailableError, match="does not grow by one row"):
        to_teacher_forcing(captured(cut).graph, 4)
