"""Architectures captured, sliced, replayed and judged; the whole table is `python -m research.architecture_study`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from research.architecture_study import as_json
from research.architectures import jax_models
from research.architectures.distances import distance, relative, vanishing
from research.architectures.engines import ENGINES, engine_of
from research.architectures.examine import Examination, door, examine, refused, replay
from research.architectures.experts import REFUSED
from research.architectures.jax_models import BESIDE_THE_LOCK
from research.architectures.judging import judge_all
from research.architectures.page import render
from research.architectures.slices import middle_slice, run_slice
from research.architectures.subjects import FORWARD, STEP, Subject, names, subject
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.tally.calibration.operator_runs import all_values

FORWARD_PASSES = (
    *("Gemma 3", "Mistral, window", "Phi-3", "OPT", "T5", "Whisper", "CLIP", "ResNet-18", "AutoencoderKL"),
    *("Qwen3-MoE, batched_mm", "DeepSeek-V3, grouped_mm"),
)
TRAINING_STEPS = ("Mamba", "Mamba-2", "ViT", "Mixtral, grouped_mm", "Mixtral, batched_mm", "DiT", "ConvNeXt")
"""The cheapest that show each structure; the others run with the whole table."""
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def encoder() -> Subject:
    return subject("BERT, eager", FORWARD)


@pytest.fixture(scope="module")
def examined(encoder: Subject) -> Examination:
    return examine(encoder, ("torch",))


def nudged(tensor: Tensor, share: float) -> Tensor:
    """The tensor with its first element moved by a share of the largest one."""
    array = np.array(tensor.array(), copy=True)
    array.flat[0] += array.dtype.type(share * np.abs(array).max())
    return Tensor.of(array)


def test_a_forward_pass_is_captured_sliced_replayed_and_judged(examined: Examination) -> None:
    assert examined.failures == []
    assert examined.distances["torch"].worst == 0
    assert 0 < examined.distances["reference"].worst < 1e-5
    assert 0 < examined.judged["torch"].share <= 1
    assert examined.judged["torch"].operators == examined.nodes == sum(examined.kinds.values())
    assert examined.judged["torch"].unbounded == examined.judged["torch"].partly_unbounded == ()
    assert examined.slice is not None
    assert (examined.slice.nodes, examined.slice.differing) == (examined.nodes // 3, 0)
    assert examined.examples is not None
    assert examined.examples.rows == 3


@pytest.mark.parametrize("architecture", ["CNN", "GPT-2, sdpa"])
def test_a_training_step_is_captured_sliced_replayed_and_judged(architecture: str) -> None:
    found = examine(subject(architecture, STEP), ("torch",))
    assert found.failures == []
    assert found.slice is not None
    assert found.slice.differing == 0
    assert "node" in found.refused["single examples"]
    assert found.vanishing == (("0.bias",) if architecture == "CNN" else ())


@pytest.mark.parametrize("architecture", FORWARD_PASSES)
def test_a_forward_pass_of_the_field_passes_the_door_and_has_the_native_bits(architecture: str) -> None:
    found = subject(architecture, FORWARD)
    assert door(found.graph, "the door") + replay(found) == []


@pytest.mark.parametrize("architecture", TRAINING_STEPS)
def test_a_training_step_of_the_field_passes_the_door_and_has_the_native_bits(architecture: str) -> None:
    found = subject(architecture, STEP)
    assert door(found.graph, "the door") + replay(found) == []


def test_experts_in_groups_are_judged() -> None:
    found = examine(subject("Mixtral, grouped_mm", FORWARD), ("torch",))
    assert found.failures == []
    assert 0 < found.judged["torch"].share <= 1


def test_experts_that_run_one_by_one_are_refused_with_the_setting_that_mends_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UnavailableError, match="experts_implementation='grouped_mm'"):
        subject("Mixtral, eager", FORWARD)
    assert capfd.readouterr().err == ""
    row = as_json(refused("Mixtral, eager", FORWARD, "it depends on data"))
    assert "| Mixtral, eager | forward | no |  |  | it depends on data |" in render([row], "a machine", "a command")


def test_keys_shared_by_heads_are_captured_or_refused_by_name() -> None:
    """While it is exported, such a model repeats its keys; the processor decides whether that gives the same bits."""
    try:
        failures = examine(subject("Llama, sdpa", STEP), ("torch",)).failures
    except UnavailableError as error:
        failures = [str(error)] if "attn_implementation='eager'" not in str(error) else []
    assert failures == []


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("part", [FORWARD, STEP])
@pytest.mark.parametrize("architecture", [name for name in names() if name not in (*REFUSED, *BESIDE_THE_LOCK)])
def test_every_architecture_on_every_engine(architecture: str, part: str) -> None:
    found = examine(subject(architecture, part))
    assert found.failures == []
    assert found.judged.keys() == set(ENGINES) - {name for name in ENGINES if name in found.refused}


def test_other_results_than_the_native_ones_are_a_failure(encoder: Subject) -> None:
    native = {"outputs.logits": nudged(encoder.native["outputs.logits"], 0.01)}
    found = examine(replace(encoder, native=native), ())
    assert [line.partition(":")[0] for line in found.failures] == ["replay", "reference"]


def test_a_value_that_was_moved_is_rejected(encoder: Subject) -> None:
    values = all_values(encoder.graph, encoder.bindings, engine_of("torch"))
    assert judge_all(encoder.graph, values).rejected == ()
    last = encoder.graph.outputs[0].value
    (line,) = judge_all(encoder.graph, values | {last: nudged(values[last], 0.01)}).rejected
    assert line.startswith(last)


def test_a_sine_that_its_engine_is_known_to_miss_is_undecided_and_of_another_engine_rejected() -> None:
    spec = TensorSpec("F32", (2,))
    inputs = (Input("inputs.x", Role.INPUT, spec),)
    node = Node(0, "aten.sin.default", {"self": "inputs.x"}, {}, (spec,))
    graph = Graph("aten", GraphForm.LOGICAL, inputs, (), (node,), (Output("outputs.0", "n0"),))
    x = np.array([1, 2], np.float32)
    values = {"inputs.x": Tensor.of(x), "n0": nudged(Tensor.of(np.sin(x)), 0.01)}
    of_iree, of_torch = judge_all(graph, values, "iree"), judge_all(graph, values, "torch")
    assert (len(of_iree.undecided), of_iree.rejected, of_iree.unbounded) == (1, (), ())
    assert (len(of_torch.rejected), of_torch.undecided) == (1, ())
    right = judge_all(graph, values | {"n0": Tensor.of(np.sin(x))}, "iree")
    assert (right.undecided, right.rejected) == ((), ())


def test_an_undecided_result_stands_on_the_page_and_its_engine_does_not_accept(examined: Examination) -> None:
    judged = {"torch": replace(examined.judged["torch"], undecided=("n3: 2 of its bound",))}
    text = render([as_json(replace(examined, judged=judged))], "a machine", "a command")
    assert f"| BERT, eager | forward | {examined.nodes} | equal |  | torch (undecided) |" in text
    assert "- torch, undecided, BERT, eager forward: n3: 2 of its bound" in text


def test_other_bits_of_a_loop_are_named_and_no_failure(encoder: Subject) -> None:
    native = {"outputs.logits": nudged(encoder.native["outputs.logits"], 1e-6)}
    found = examine(replace(encoder, native=native, looped=True), ())
    assert found.failures == []
    assert "unroll=True" in found.refused["native bits"]
    text = render([as_json(found)], "a machine", "a command")
    assert f"| BERT, eager | forward | {found.nodes} | other |  |  |" in text
    assert "native bits" not in examine(replace(encoder, looped=True), ()).refused


@pytest.mark.parametrize("architecture", BESIDE_THE_LOCK)
def test_libraries_of_jax_are_refused_with_the_file_that_brings_them(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax_models, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"requirements/jax-models\.txt"):
        subject(architecture, FORWARD)


@pytest.mark.parametrize("architecture", BESIDE_THE_LOCK)
def test_libraries_of_jax_pass_the_door_where_they_are_installed(architecture: str) -> None:
    for library in ("flax", "equinox", "optax"):
        pytest.importorskip(library)
    found = subject(architecture, FORWARD)
    assert door(found.graph, "the door") + replay(found) == []


def test_a_slice_with_other_bits_is_counted_and_judged(encoder: Subject) -> None:
    engine, part = engine_of("torch"), middle_slice(encoder.graph)
    values = all_values(encoder.graph, encoder.bindings, engine)
    wanted = next(output.value for output in part.outputs)
    found = run_slice(part, encoder, values | {wanted: nudged(values[wanted], 1e-6)}, engine)
    assert (found.differing, found.rejected) == (1, ())
    assert 0 < found.worst < 1e-5


def test_distances_are_relative_to_the_largest_element() -> None:
    x, y = (Tensor.of(np.array(values)) for values in ([1.0, -4.0], [1.0, -3.0]))
    assert relative(x, y) == 0.25
    assert relative(x, x) == 0
    assert relative(x, Tensor.of(np.array([1.0, np.inf]))) == np.inf
    wrong = {"loss": x, "gradients.b": x}
    assert distance(wrong, {"loss": x, "gradients.b": y}).where == "gradients.b"
    assert distance(wrong, {"loss": x, "gradients.b": y}, ("b",)).worst == 0


def test_a_gradient_that_is_only_rounding_vanishes() -> None:
    sizes = {"gradients.w": 1.0, "gradients.b": 1e-12, "weights.b": 1e-12}
    assert vanishing({name: Tensor.of(np.array([size])) for name, size in sizes.items()}) == ("b",)


def test_the_page_has_a_line_for_each_graph_and_says_what_is_refused(examined: Examination) -> None:
    row: dict[str, Any] = json.loads(json.dumps(asdict(examined)))
    text = render([row], "a machine", "a command")
    assert text.count("| BERT, eager | forward |") == 4
    assert f"| BERT, eager | forward | {examined.nodes} | equal | torch |  |" in text
    assert "Failures" not in text
    assert f"{examined.nodes} operators judged, 0 rejected" in text
    row |= {"refused": {"single examples": "node 3 mixes them"}, "failures": ["replay: other bits"], "examples": None}
    text = render([row], "a machine", "a command")
    assert "- BERT, eager, forward: replay: other bits" in text
    assert "- single examples, BERT, eager forward: node 3 mixes them" in text
