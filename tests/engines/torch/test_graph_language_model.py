"""A language model that is a graph gives what the model itself gives, on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.generation.decoding import capture_decode_template, model_state
from tallystick.engines.torch.generation.language_models import GraphLanguageModel, bound_passes, captured_passes
from tallystick.programs.execution import Reference, execute

TOKENS = [66, 3, 250, 17, 17, 90, 8, 41, 5]
FIRST = 4
LAYERS = (0, 2)


def engine(name: str) -> Any:
    if name == "jax":
        return pytest.importorskip("tallystick.engines.jax.engine").JaxEngine()
    if name == "iree":
        return pytest.importorskip("tallystick.engines.iree").IreeEngine()
    return TorchEngine() if name == "torch" else Reference()


def is_near(graph_model: GraphLanguageModel, model: Any, allowed: float) -> bool:
    found, native = (each.prefill(TOKENS, FIRST, LAYERS) for each in (graph_model, model))
    assert found.first == native.first == FIRST
    assert found.hidden.keys() == native.hidden.keys()
    pairs = [(found.logits, native.logits), *((found.hidden[layer], native.hidden[layer]) for layer in LAYERS)]
    assert all(mine.dtype == np.float32 and mine.shape == theirs.shape for mine, theirs in pairs)
    return all(bool(np.allclose(mine, theirs, atol=allowed)) for mine, theirs in pairs)


@pytest.mark.parametrize("name", ["torch", "reference", "jax", pytest.param("iree", marks=pytest.mark.slow)])
def test_every_engine_gives_the_rows_of_the_model(name: str, language_model: Any) -> None:
    chosen = engine(name)
    run = pytest.importorskip("tallystick.iree").run_compiled if name == "iree" else execute
    graph_model = GraphLanguageModel(language_model, captured_passes(language_model), chosen, run)
    assert is_near(graph_model, language_model, 1e-4)


def test_a_template_gives_the_passes_of_all_lengths(language_model: Any) -> None:
    ranges = {"length": (1, 12), "past": (0, 12)}
    template = capture_decode_template(language_model.model, ranges, layers=LAYERS)
    passes = bound_passes(template, model_state(language_model.model))
    graph_model = GraphLanguageModel(language_model, passes, TorchEngine())
    assert is_near(graph_model, language_model, 1e-5)
    with pytest.raises(UnavailableError, match="reaches 12 tokens"):
        graph_model.prefill([1] * 13, 0)
    with pytest.raises(UnavailableError, match=r"outputs\.hidden\.1"):
        graph_model.prefill(TOKENS, FIRST, (1,))


def test_it_is_the_model_that_it_was_captured_from(language_model: Any) -> None:
    graph_model = GraphLanguageModel(language_model, captured_passes(language_model), Reference())
    assert graph_model.card == language_model.card
    assert graph_model.end_tokens == language_model.end_tokens
    assert graph_model.encode_text("notch") == language_model.encode_text("notch")


def test_tokens_and_layers_that_there_are_not_are_refused(language_model: Any) -> None:
    graph_model = GraphLanguageModel(language_model, captured_passes(language_model), Reference())
    with pytest.raises(MalformedError, match="vocabulary"):
        graph_model.prefill([1, 256], 0)
    with pytest.raises(MalformedError, match="tokens: none"):
        graph_model.prefill([], 0)
    with pytest.raises(MalformedError, match="layers: 3"):
        graph_model.prefill([1, 2], 0, (3,))
