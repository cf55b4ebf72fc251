"""A captured step is the model's own step, and a template of it is that step at every size."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.capture.model import CapturedModel
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.generation.decoding import (
    DecodeModule,
    capture_decode,
    capture_decode_template,
    capture_prefill,
    verification_binding,
)
from tallystick.engines.torch.tensors import from_tensor
from tallystick.programs.batching import slice_batch
from tallystick.programs.decoding import decode_sizes, decoding_distances, draw_step
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.execution import Reference, execute
from tallystick.programs.templates import Template

DECODERS = runpy.run_path(str(Path(__file__).with_name("decoders.py")))
EACH = pytest.mark.parametrize("name", DECODERS["NAMES"])
RANGES = {"length": (1, 12), "past": (0, 12)}
LAYERS = (0, 2)


def drawn(captured: CapturedModel) -> dict[str, Tensor]:
    return draw_step(captured.graph, np.random.default_rng(0), DECODERS["PLACES"])


def arguments(given: dict[str, Tensor]) -> dict[str, Any]:
    """What a step of PyTorch takes, from what its graph is bound to."""
    tensors = {name.removeprefix("inputs."): from_tensor(tensor) for name, tensor in given.items()}
    cache: dict[str, dict[str, torch.Tensor]] = {}
    for name in [name for name in tensors if name.startswith("cache.")]:
        _, layer, part = name.split(".")
        cache.setdefault(layer, {})[part] = tensors.pop(name)
    return {**tensors, "cache": cache}


STEPS = [
    *[(name, "eager", 5, 1, 1) for name in DECODERS["NAMES"]],
    *[(name, "sdpa", 4, 2, 3) for name in DECODERS["NAMES"]],
    ("llama", "eager", 0, 1, 1),
]


@pytest.mark.parametrize(("name", "attention", "cache", "batch", "length"), STEPS)
def test_a_captured_step_has_the_bits_of_the_models_own(
    name: str, attention: str, cache: int, batch: int, length: int
) -> None:
    model = DECODERS["build"](name, attention)
    captured = capture_decode(model, cache, batch, length, LAYERS)
    given = drawn(captured)
    found = execute(captured.graph, {**captured.bindings, **given}, TorchEngine())
    with torch.inference_mode():
        native = DecodeModule(model, LAYERS)(**arguments(given))
    assert torch.equal(from_tensor(found["outputs.logits"]), native["logits"])
    for layer, parts in native["cache"].items():
        for part, value in parts.items():
            assert value.shape[2] == cache + length
            assert torch.equal(from_tensor(found[f"outputs.cache.{layer}.{part}"]), value)
    assert {str(layer) for layer in LAYERS} == native["hidden"].keys()
    for layer, value in native["hidden"].items():
        assert torch.equal(from_tensor(found[f"outputs.hidden.{layer}"]), value)
    weights = {key.removeprefix("weights.") for key in captured.weights if key.startswith("weights.")}
    assert weights == {key for key, _ in model.named_parameters()}


@EACH
def test_a_captured_pass_has_the_bits_of_the_models_own(name: str) -> None:
    model = DECODERS["build"](name, "sdpa")
    captured = capture_prefill(model, 6, 2)
    given = drawn(captured) | {"inputs.position_ids": Tensor.of(np.tile(np.arange(6), (2, 1)))}
    assert sorted(given) == ["inputs.input_ids", "inputs.position_ids"]
    found = execute(captured.graph, {**captured.bindings, **given}, TorchEngine())["outputs.logits"]
    with torch.inference_mode():
        native = model(input_ids=from_tensor(given["inputs.input_ids"]), use_cache=False).logits
    assert torch.allclose(from_tensor(found), native, atol=1e-6)
    assert decode_sizes(captured.graph).past == 0


def test_sizes_that_make_no_step_are_refused() -> None:
    model = DECODERS["build"]("llama")
    with pytest.raises(UsageError, match="a step needs"):
        capture_decode(model, -1)
    with pytest.raises(UsageError, match="a pass needs"):
        capture_prefill(model, 0)
    with pytest.raises(MalformedError, match="layers"):
        capture_decode(model, 1, layers=(3,))


def test_a_cache_that_forgets_is_refused() -> None:
    mistral = DECODERS["build"]("mistral", sliding_window=4, num_key_value_heads=2)
    with pytest.raises(UnavailableError, match="DynamicSlidingWindowLayer"):
        capture_decode(mistral, 5)
    whole = DECODERS["build"]("mistral", sliding_window=None, num_key_value_heads=2)
    assert decode_sizes(capture_decode(whole, 5).graph).past == 5


@pytest.mark.parametrize(("name", "attention"), [("llama", "sdpa"), ("gpt2", "eager"), ("qwen3", "sdpa")])
def test_single_requests_come_out_of_a_batch(name: str, attention: str) -> None:
    captured = capture_decode(DECODERS["build"](name, attention), 5, batch=3)
    given = drawn(captured)
    single = slice_batch(captured.graph, list(given))
    bindings = {**captured.bindings, **given}
    together = execute(captured.graph, bindings, Reference())
    for row, part in enumerate(single.split(bindings)):
        alone = execute(single.graph, part, Reference())
        for output, tensor in single.examples(together, row).items():
            assert np.allclose(alone[output].values(), tensor.values(), rtol=0, atol=1e-12)


# ---- named lengths


SLOW = [("llama", "sdpa"), ("gpt2", "eager"), ("qwen3", "eager"), ("qwen3", "sdpa")]


@pytest.fixture(
    scope="module",
    params=[("llama", "eager"), ("gpt2", "sdpa"), *(pytest.param(each, marks=pytest.mark.slow) for each in SLOW)],
)
def named(request: pytest.FixtureRequest, one_thread: None) -> tuple[Any, Template]:
    model = DECODERS["build"](*request.param)
    return model, capture_decode_template(model, RANGES)


def test_a_template_bound_to_sizes_is_the_step_captured_there(named: tuple[Any, Template]) -> None:
    model, template = named
    for length, past in ((3, 4), (9, 0), (2, 11)):
        captured = capture_decode(model, past, length=length)
        assert graph_bytes(template.bind(length=length, past=past)) == graph_bytes(captured.graph)


def test_decoding_with_a_template_gives_what_its_verification_binding_gives(named: tuple[Any, Template]) -> None:
    model, template = named
    bindings = capture_decode(model, 2).bindings
    whole = verification_binding(template, 9)
    for engine, allowed in ((Reference(), 4e-7), (TorchEngine(), 4e-6)):
        draws = np.random.default_rng(0)
        found = decoding_distances(lambda past: template.bind(length=1, past=past), whole, bindings, engine, draws)
        assert max(found.values()) < allowed


def test_a_template_says_which_lengths_it_has() -> None:
    with pytest.raises(UsageError, match="length and past"):
        capture_decode_template(DECODERS["build"]("llama"), {"length": (1, 9)})
    with pytest.raises(UsageError, match="length is 13"):
        verification_binding(Template(RANGES, {}), 13)


def test_a_model_that_decodes_otherwise_than_it_reads_has_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another scale for one query shows in none of the captures, which are of two and more."""
    model = DECODERS["build"]("llama")
    attention = DECODERS["blocks"](model)[0].self_attn
    forward = attention.forward

    def other(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        attention.scaling = 0.5 if hidden_states.shape[1] == 1 else 8**-0.5
        return forward(hidden_states, *args, **kwargs)

    monkeypatch.setattr(attention, "forward", other)
    with pytest.raises(UnavailableError, match=r"another program at .*'length': 1"):
        capture_decode_template(model, RANGES)
