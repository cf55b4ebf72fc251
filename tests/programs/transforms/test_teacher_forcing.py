"""A decode graph made into one pass gives what the model gives token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.capture.model import CapturedModel
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.generation.decoding import DecodeModule, capture_decode, capture_prefill
from tallystick.engines.torch.generation.language_models import load_language_model
from tallystick.programs.admission import read_graph
from tallystick.programs.decoding import LOGITS, PLACES, TOKENS
from tallystick.programs.encoding import graph_bytes, graph_root
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph
from tallystick.programs.transforms.teacher_forcing import to_teacher_forcing
from tests.engines.torch.decoders import NAMES, VOCABULARY, build

PAST = 10
"""A number of places that is no other number of these models, nor is the next one."""
Step = Callable[[torch.Tensor, torch.Tensor, Any], Mapping[str, Any]]

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def captured(name: str, attention: str = "eager", batch: int = 1, layers: tuple[int, ...] = ()) -> CapturedModel:
    return capture_decode(build(name, attention), PAST, batch, layers=layers)


def token_by_token(model: Any, tokens: npt.NDArray[np.int64], layers: tuple[int, ...] = ()) -> dict[str, Any]:
    """The model's own generation: logits and hidden states of every step, and the last cache, by output."""
    step, held, rows = DecodeModule(model, layers), {}, []
    with torch.inference_mode():
        for place in range(tokens.shape[1]):
            fed = torch.from_numpy(tokens[:, place : place + 1])
            found = step(fed, torch.full_like(fed, place), held)
            held = found["cache"]
            rows.append({LOGITS: found["logits"], **{f"outputs.hidden.{i}": x for i, x in found["hidden"].items()}})
    cached = {f"outputs.cache.{i}.{part}": x for i, both in held.items() for part, x in both.items()}
    return cached | {name: torch.cat([row[name] for row in rows], 1) for name in rows[0]}


def at_once(graph: Graph, bindings: Mapping[str, Tensor], tokens: npt.NDArray[np.int64], engine: Any) -> dict[str, Any]:
    places = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    fed = {TOKENS: Tensor.of(tokens), PLACES: Tensor.of(np.ascontiguousarray(places))}
    return execute(graph, {**bindings, **fed}, engine)


def random_tokens(batch: int, length: int, vocabulary: int = VOCABULARY) -> npt.NDArray[np.int64]:
    return np.random.default_rng(length).integers(vocabulary, size=(batch, length))


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor.values(), expected[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_a_pass_gives_what_steps_give(name: str, attention: str, batch: int) -> None:
    step = captured(name, attention, batch)
    tokens = random_tokens(batch, PAST + 1)
    whole = to_teacher_forcing(step.graph, PAST + 1)
    expected = token_by_token(build(name, attention), tokens)
    assert_equal(at_once(whole, step.bindings, tokens, TorchEngine()), expected)
    assert_equal(at_once(whole, step.bindings, tokens, Reference()), expected)


@pytest.mark.parametrize("length", [1, 2, 7])
def test_a_pass_may_be_shorter(length: int) -> None:
    step, tokens = captured("llama"), random_tokens(1, length)
    whole = to_teacher_forcing(step.graph, length)
    assert {each.name for each in whole.inputs if each.name.startswith("inputs.")} == {TOKENS, PLACES}
    assert_equal(at_once(whole, step.bindings, tokens, TorchEngine()), token_by_token(build("llama"), tokens))


def test_hidden_states_are_those_of_every_token() -> None:
    step, tokens = captured("qwen3", layers=(0, 1, 2)), random_tokens(1, 5)
    found = at_once(to_teacher_forcing(step.graph, 5), step.bindings, tokens, TorchEngine())
    assert_equal(found, token_by_token(build("qwen3"), tokens, (0, 1, 2)))


@pytest.mark.parametrize("name", NAMES)
def test_on_the_reference_it_is_the_models_own_pass(name: str) -> None:
    """The operators are the model's own, so that in float64 nothing differs at all."""
    step, own, tokens = captured(name), capture_prefill(build(name), 6), random_tokens(1, 6)
    found = at_once(to_teacher_forcing(step.graph, 6), step.bindings, tokens, Reference())
    expected = at_once(own.graph, own.bindings, tokens, Reference())
    assert all(np.array_equal(found[each].array(), expected[each].array()) for each in expected)


def test_trained_weights(model_directory: Any) -> None:
    held = load_language_model(model_directory)
    step = capture_decode(held.model, 19)
    tokens = np.array([held.encode_text("Notch 7: the stick is split, 49")[:20]])
    whole = to_teacher_forcing(step.graph, tokens.shape[1])
    assert_equal(at_once(whole, step.bindings, tokens, TorchEngine()), token_by_token(held.model, tokens))


def test_the_result_is_one_graph_for_everybody() -> None:
    first, second = (to_teacher_forcing(captured("gpt2").graph, 4) for _ in range(2))
    assert graph_root(first) == graph_root(second)
    assert first == read_graph(graph_bytes(first))


@pytest.mark.parametrize("length", [0, -1, PAST + 2])
def test_a_length_that_the_step_does_not_show_is_refused(length: int) -> None:
    with pytest.raises(UsageError, match="shows what 1 to 11 give"):
        to_teacher_forcing(captured("llama").graph, length)


class Placeless(torch.nn.Module):
    """A step that is not told the place of its token: transformers counts what is in the cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, cache: Any) -> Mapping[str, Any]:
        found = DecodeModule(self.model)(input_ids, None, cache)  # type: ignore[arg-type]
        return {"logits": found["logits"], "cache": found["cache"]}


@pytest.mark.parametrize("name", NAMES)
def test_places_that_are_counted_from_the_cache(name: str) -> None:
    from tests.programs.transforms.steps import captured_step

    model, tokens = build(name), random_tokens(1, PAST + 1)
    step = captured_step(Placeless(model), captured(name).graph, PAST)
    whole = to_teacher_forcing(step.graph, PAST + 1)
    assert PLACES not in {each.name for each in whole.inputs}
    found = execute(whole, {**step.bindings, TOKENS: Tensor.of(tokens)}, TorchEngine())
    assert_equal(found, token_by_token(model, tokens))


@pytest.mark.parametrize("past", [2, 4, 8])
def test_a_number_of_keys_that_is_another_number_of_the_model_is_never_wrong(past: int) -> None:
    """Either it is refused, or the pass is right."""
    step, tokens = capture_decode(build("llama"), past), random_tokens(1, past + 1)
    try:
        whole = to_teacher_forcing(step.graph, past + 1, step.constants)
    except UnavailableError:
        return
    assert_equal(at_once(whole, step.bindings, tokens, TorchEngine()), token_by_token(build("llama"), tokens))
