"""What decoding and one pass give is compared number by number, and every difference is seen."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.capture.model import CapturedModel
from tallystick.engines.torch.generation.decoding import capture_decode, capture_prefill
from tallystick.programs.decoding import (
    DecodeSizes,
    allowed_share,
    cache_specs,
    decode_sizes,
    decoding_distances,
    draw_step,
    empty_cache,
    fed,
    grown_cache,
    last_step_distances,
)
from tallystick.programs.difference import cast, compare_graphs, draw_state, share_apart
from tallystick.programs.execution import Reference
from tallystick.programs.graph import Graph, Output, Role

DECODERS = runpy.run_path(str(Path(__file__).parents[1] / "engines" / "torch" / "decoders.py"))
PAST = 3


def tensor(*values: float, dtype: str = "<f4") -> Tensor:
    return Tensor.of(np.array(values, dtype))


@pytest.fixture(scope="module")
def step(one_thread: None) -> CapturedModel:
    return capture_decode(DECODERS["build"]("gpt2"), PAST)


@pytest.fixture(scope="module")
def whole(one_thread: None) -> CapturedModel:
    return capture_prefill(DECODERS["build"]("gpt2"), PAST + 1)


def moved(graph: Graph, axes: tuple[int, int]) -> Graph:
    """A graph whose caches have another shape."""
    inputs = [
        replace(each, spec=replace(each.spec, shape=(*each.spec.shape[: axes[0]], axes[1], *each.spec.shape[3:])))
        if each.name.startswith("inputs.cache.0.key")
        else each
        for each in graph.inputs
    ]
    return replace(graph, inputs=tuple(inputs))


@pytest.mark.parametrize(
    ("expected", "found", "share"),
    [
        (tensor(1, -4), tensor(1, -4), 0.0),
        (tensor(1, -4), tensor(1.5, -4), 0.125),
        (tensor(0, 0), tensor(0, 0.5), 0.5),
        (tensor(np.inf, 2), tensor(np.inf, 2), 0.0),
        (tensor(np.nan, 2), tensor(np.nan, 2), 0.0),
        (tensor(1, 2), tensor(np.nan, 2), np.inf),
        (tensor(np.inf, 2), tensor(3, 2), np.inf),
        (tensor(1, 2), tensor(1, 2, 3), np.inf),
        (tensor(1, 2), tensor(1, 2, dtype="<f8"), 0.0),
    ],
)
def test_the_distance_is_a_share_of_the_largest_element(expected: Tensor, found: Tensor, share: float) -> None:
    assert share_apart(expected, found) == share


def test_numbers_are_rounded_to_the_dtype_of_the_input() -> None:
    assert cast(tensor(1 + 2**-8), "BF16").values().tolist() == [1.0]
    assert cast(tensor(0.1, dtype="<f8"), "F32").values()[0] == np.float32(0.1)


def test_sizes_are_read_from_the_interface(step: CapturedModel, whole: CapturedModel) -> None:
    assert decode_sizes(step.graph) == DecodeSizes(1, 1, PAST, DECODERS["VOCABULARY"])
    assert decode_sizes(whole.graph) == DecodeSizes(1, PAST + 1, 0, DECODERS["VOCABULARY"])
    assert (len(cache_specs(step.graph)), len(cache_specs(whole.graph)), empty_cache(step.graph)) == (4, 0, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda graph: replace(graph, outputs=()), r"outputs\.logits: a decode graph gives it"),
        (lambda graph: replace(graph, outputs=(Output("outputs.logits", "inputs.input_ids"),)), "three axes"),
        (lambda graph: replace(graph, inputs=graph.inputs[:4]), r"inputs\.input_ids"),
        (lambda graph: moved(graph, (2, 9)), r"inputs\.cache: .* one length"),
        (lambda graph: moved(graph, (1, 9)), r"inputs\.cache: .* four axes"),
    ],
)
def test_what_is_no_decode_graph_is_named(step: CapturedModel, change: Any, said: str) -> None:
    with pytest.raises(MalformedError, match=said):
        decode_sizes(change(step.graph))


def test_the_last_step_is_that_of_the_pass(step: CapturedModel, whole: CapturedModel) -> None:
    both = (step.bindings, whole.bindings)
    found = last_step_distances(step.graph, whole.graph, both, Reference(), np.random.default_rng(0))
    assert found.keys() == {"outputs.logits", *(name.replace("inputs", "outputs") for name in cache_specs(step.graph))}
    assert max(found.values()) < allowed_share(step.graph)


@pytest.mark.parametrize("weight", ["weights.transformer.h.1.attn.c_attn.bias", "weights.transformer.wpe.weight"])
def test_another_weight_in_the_step_is_seen(step: CapturedModel, whole: CapturedModel, weight: str) -> None:
    shift = np.float32(1e-3)  # alone it would be lost in a norm
    other = {**step.bindings, weight: Tensor.of(step.bindings[weight].array() * np.float32(1.01) + shift)}
    both = (other, whole.bindings)
    found = last_step_distances(step.graph, whole.graph, both, Reference(), np.random.default_rng(0))
    assert max(found.values()) > allowed_share(step.graph)


def test_an_output_that_lacks_is_infinitely_far(step: CapturedModel, whole: CapturedModel) -> None:
    lacking = replace(step.graph, outputs=tuple(each for each in step.graph.outputs if "1.value" not in each.name))
    both = (step.bindings, whole.bindings)
    found = last_step_distances(lacking, whole.graph, both, Reference(), np.random.default_rng(0))
    assert found["outputs.cache.1.value"] == np.inf
    given = {**step.bindings, **draw_step(step.graph, np.random.default_rng(0), 9)}
    compared = compare_graphs(lacking, step.graph, (given, given), Reference())
    assert not compared.agrees
    assert (compared.worst, compared.distances["outputs.logits"]) == ("outputs.cache.1.value", 0.0)


def test_sizes_have_to_belong_together(step: CapturedModel, whole: CapturedModel) -> None:
    draws = np.random.default_rng(0)
    with pytest.raises(MalformedError, match="1 tokens after 0"):
        decoding_distances(lambda past: step.graph, whole.graph, step.bindings, Reference(), draws)
    with pytest.raises(MalformedError, match="1 tokens after 0"):
        last_step_distances(step.graph, step.graph, (step.bindings, step.bindings), Reference(), draws)


def test_the_cache_that_a_step_gives_is_read_by_the_next(step: CapturedModel) -> None:
    specs = step.graph.specs()
    outputs = {each.name: Tensor.of(np.zeros(specs[each.value].shape, "<f4")) for each in step.graph.outputs}
    assert grown_cache(outputs).keys() == cache_specs(step.graph).keys()
    places = fed(step.graph, np.array([[7]]), PAST)["inputs.position_ids"]
    assert (places.dtype, places.array().tolist()) == ("I64", [[PAST]])


def test_random_weights_leave_buffers_alone() -> None:
    captured = capture_decode(DECODERS["build"]("llama"), PAST)
    drawn = draw_state(captured.graph, np.random.default_rng(0))
    assert {name.split(".")[0] for name in drawn} == {"weights"}
    assert {*draw_state(captured.graph, np.random.default_rng(0), Role.BUFFER)} == {"buffers.model.rotary_emb.inv_freq"}
    assert all(np.abs(tensor.values()).max() < 6 for tensor in drawn.values())
