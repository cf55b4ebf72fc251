"""Three routes from a committed decode graph to the graph of a whole pass, and the decode graphs that are refused."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.generation.decoding import capture_decode, capture_decode_template, model_state
from tallystick.engines.torch.generation.verification_graph import DecodeProgram, VerificationGraph, verification_graph
from tallystick.programs.admission import read_graph
from tallystick.programs.decoding import fed
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph
from tallystick.programs.templates import Template
from tallystick.programs.transforms.sampling import with_sampler

DECODERS = runpy.run_path(str(Path(__file__).with_name("decoders.py")))
build: Callable[..., Any] = DECODERS["build"]
PAST = 5
RANGES = {"length": (1, 9), "past": (0, 9)}


@cache
def program_of(model: Any) -> DecodeProgram:
    captured = capture_decode(model, PAST)
    return DecodeProgram(captured.graph, captured.constants, captured.weights)


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama")


def gives_the_logits_of(model: Any, found: VerificationGraph, length: int) -> bool:
    """Whether the pass gives what the model gives for the same tokens, up to rounding."""
    tokens = np.random.default_rng(1).integers(DECODERS["VOCABULARY"], size=(1, length))
    given = {**model_state(model), **found.whole.bindings, **fed(found.graph, tokens, 0)}
    logits = execute(found.graph, given, Reference())["outputs.logits"].values()
    with torch.inference_mode():
        native = model(input_ids=torch.from_numpy(tokens), use_cache=False).logits.numpy()
    return bool(np.allclose(logits, native, atol=1e-5))


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in DECODERS["NAMES"] if name != "llama"]


@pytest.fixture(scope="module", params=["llama", *OTHERS])
def decoder(request: pytest.FixtureRequest, one_thread: None) -> tuple[str, Any]:
    return request.param, build(request.param, "sdpa")


@pytest.fixture(scope="module")
def templated(decoder: tuple[str, Any]) -> DecodeProgram:
    template = capture_decode_template(decoder[1], RANGES)
    return replace(program_of(decoder[1]), template=template, graph=template.bind(length=1, past=PAST))


# ---- routes


def test_the_own_capture_of_the_same_program_comes_first(decoder: tuple[str, Any]) -> None:
    _, model = decoder
    found = verification_graph(program_of(model), 4, model)
    assert (found.route, dict(found.passed_over)) == ("own capture", {})
    assert any(finding.detail == "the same program" for finding in found.findings)
    assert all(finding.agrees for finding in found.findings)
    assert gives_the_logits_of(model, found, 4)


def test_another_program_for_the_same_function_is_the_same_model(decoder: tuple[str, Any]) -> None:
    """Attention as one operator, against our own capture of many."""
    name, model = decoder
    found = verification_graph(program_of(model), 8, build(name, "eager"))
    assert found.route == "own capture"
    apart = [finding.distance for finding in found.findings if finding.name == "decode graph"]
    assert len(apart) == 2
    assert 0 < max(apart) < 1e-13
    assert gives_the_logits_of(model, found, 8)


def test_a_committed_template_is_bound_where_there_is_no_model(
    decoder: tuple[str, Any], templated: DecodeProgram
) -> None:
    _, model = decoder
    found = verification_graph(templated, 8)
    assert found.route == "symbolic length"
    assert found.passed_over == {"own capture": "there is no model of our own"}
    assert gives_the_logits_of(model, found, 8)


def test_a_graph_of_one_size_is_transformed_where_there_is_nothing_else(decoder: tuple[str, Any]) -> None:
    _, model = decoder
    found = verification_graph(program_of(model), PAST + 1)
    assert found.route == "teacher forcing"
    assert list(found.passed_over) == ["own capture", "symbolic length"]
    assert gives_the_logits_of(model, found, PAST + 1)


def test_a_graph_of_one_size_reaches_no_further(llama: Any) -> None:
    with pytest.raises(UnavailableError, match="teacher forcing: the committed graph reaches 6 tokens"):
        verification_graph(program_of(llama), PAST + 2)


def test_a_template_that_is_too_short_is_passed_over(templated: DecodeProgram) -> None:
    assert templated.template is not None
    short = Template({"length": (1, 5), "past": (0, 9)}, templated.template.document)
    found = verification_graph(replace(templated, template=short), PAST + 1)
    assert found.route == "teacher forcing"
    assert "from 1 to 5" in found.passed_over["symbolic length"]


def test_a_template_has_the_committed_graph_among_its_bindings(
    decoder: tuple[str, Any], templated: DecodeProgram
) -> None:
    name, _ = decoder
    setting = "layer_norm_epsilon" if name == "gpt2" else "rms_norm_eps"
    other = program_of(build(name, "sdpa", **{setting: 1e-3}))
    with pytest.raises(ProofError, match="not among the bindings of its template"):
        verification_graph(replace(other, template=templated.template), 6)


def test_only_the_routes_asked_for_are_taken(decoder: tuple[str, Any], templated: DecodeProgram) -> None:
    with pytest.raises(UnavailableError, match="own capture: there is no model of our own; symbolic length: not asked"):
        verification_graph(templated, 6, routes=["own capture"])
    found = verification_graph(templated, 6, decoder[1], routes=["symbolic length"])
    assert (found.route, found.passed_over) == ("symbolic length", {"own capture": "not asked for"})


def test_without_any_weights_the_routes_are_checked_on_random_ones(llama: Any) -> None:
    found = verification_graph(replace(program_of(llama), state={}), PAST + 1)
    assert [finding.detail for finding in found.findings] == ["one step against the pass, random weights"]


def test_a_graph_that_goes_on_to_choose_a_token_is_compared_up_to_its_logits(llama: Any) -> None:
    program = program_of(llama)
    sampled = with_sampler(program.graph, temperature=0.7, top_k=9, repetition_penalty=1.2)
    found = verification_graph(replace(program, graph=sampled), 4, llama)
    assert any(finding.detail == "the same program" for finding in found.findings)
    assert gives_the_logits_of(llama, found, 4)
    other = with_sampler(capture_decode(build("llama", rms_norm_eps=1e-5), PAST).graph, temperature=0.7)
    with pytest.raises(ProofError, match="not the step of the model"):
        verification_graph(DecodeProgram(other), 4, llama)


# ---- other functions than the promised one


def edited(graph: Graph, change: Callable[[bytes], bytes]) -> Graph:
    data = change(graph_bytes(graph))
    assert data != graph_bytes(graph)
    return read_graph(data)


def swapped(data: bytes) -> bytes:
    """The second layer's weights in the first layer, and the other way round: in the nodes alone."""
    header, mark, nodes = data.partition(b'"nodes":')
    return (
        header
        + mark
        + nodes.replace(b"layers.0.", b"@").replace(b"layers.1.", b"layers.0.").replace(b"@", b"layers.1.")
    )


def unscaled(model: Any) -> Any:
    for block in DECODERS["blocks"](model):
        block.self_attn.scaling = 1.0
    return model


FORGED: dict[str, tuple[Callable[[], Graph], str]] = {
    "layers swapped": (
        lambda: edited(capture_decode(build("llama"), PAST).graph, swapped),
        r"part at n\d+ \(aten",
    ),
    "scale missing": (
        lambda: capture_decode(unscaled(build("llama")), PAST).graph,
        r"part at n\d+ \(aten.mul.Scalar: other\)",
    ),
    "another epsilon": (
        lambda: capture_decode(build("llama", rms_norm_eps=1e-5), PAST).graph,
        r"part at n\d+ \(aten.add.Scalar: other\)",
    ),
    "another activation": (
        lambda: capture_decode(build("llama", hidden_act="gelu"), PAST).graph,
        r"only here, before that: .*aten.gelu.default",
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_another_function_is_refused_and_the_operator_named(forged: str, llama: Any) -> None:
    make, said = FORGED[forged]
    with pytest.raises(ProofError, match=r"not the step of the model: decode graph: .*" + said):
        verification_graph(DecodeProgram(make()), PAST + 1, llama)


def test_gelu_by_tanh_in_place_of_erf_is_refused() -> None:
    """The formulas differ by 5e-4 at most: random weights bring the operator to where they do."""
    own = build("gpt2", activation_function="gelu")
    cheaper = capture_decode(build("gpt2", activation_function="gelu_pytorch_tanh"), PAST)
    with pytest.raises(ProofError, match=r"part at n\d+ \(aten.gelu.default: approximate\)"):
        verification_graph(DecodeProgram(cheaper.graph), PAST + 1, own)
    honest = capture_decode(own, PAST)
    assert verification_graph(DecodeProgram(honest.graph), PAST + 1, own).route == "own capture"


def test_another_base_of_rotary_embeddings_is_refused(llama: Any) -> None:
    other = build("llama", rope_parameters={"rope_type": "default", "rope_theta": 5000.0})
    with pytest.raises(ProofError, match=r"model: buffers\.model\.rotary_emb\.inv_freq is off by"):
        verification_graph(program_of(other), PAST + 1, llama)


def test_other_weights_than_the_models_are_refused(llama: Any) -> None:
    program = program_of(llama)
    name = "weights.model.norm.weight"
    other = Tensor.of(program.state[name].array() * np.float32(1.001))
    with pytest.raises(ProofError, match=f"model: {name}"):
        verification_graph(replace(program, state={**program.state, name: other}), PAST + 1, llama)


def test_a_graph_that_reads_more_than_the_step_cannot_be_compared(llama: Any) -> None:
    """Another architecture is no proof of fraud, and the reason is part of the report."""
    found = verification_graph(program_of(build("qwen3")), PAST + 1, llama)
    assert found.route == "teacher forcing"
    assert "q_norm" in found.passed_over["own capture"] or "k_norm" in found.passed_over["own capture"]


def test_what_is_no_decode_graph_is_malformed(llama: Any) -> None:
    program = program_of(llama)
    with pytest.raises(MalformedError, match=r"outputs\.logits"):
        verification_graph(replace(program, graph=replace(program.graph, outputs=())), 4, llama)
    with pytest.raises(UsageError, match="at least one token"):
        verification_graph(program, 0, llama)
