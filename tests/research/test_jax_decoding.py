"""The transformer in JAX decodes as it reads a whole sequence, and its step becomes a pass by teacher forcing."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("torch")

from research.architectures import jax_transformer  # noqa: E402
from research.decoding.jax_decoding import capture_jax_decode, capture_jax_prefill  # noqa: E402
from tallystick.core.tensors import State  # noqa: E402
from tallystick.engines.jax.capture import CapturedFunction  # noqa: E402
from tallystick.engines.jax.engine import JaxEngine  # noqa: E402
from tallystick.engines.torch.generation.verification_graph import (  # noqa: E402
    DecodeProgram,
    verification_graph,
)
from tallystick.programs.batching import slice_batch  # noqa: E402
from tallystick.programs.decoding import (  # noqa: E402
    decoding_distances,
    draw_step,
    generate_with_graph,
    last_step_distances,
)
from tallystick.programs.execution import (  # noqa: E402
    Reference,
    execute,
)
from tallystick.programs.graph import Graph  # noqa: E402

PAST = 5


@cache
def step(length: int, past: int, batch: int = 1) -> CapturedFunction:
    return capture_jax_decode(past, batch, length)


def graph_for(length: int, past: int) -> Graph:
    return step(length, past).graph


def weights() -> State:
    return {name: tensor for name, tensor in step(1, PAST).arguments.items() if name.startswith("weights.")}


def test_a_step_names_its_inputs_and_outputs_as_every_decode_graph_does() -> None:
    graph = graph_for(1, PAST)
    caches = [f"cache.{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    read = [each.name for each in graph.inputs if not each.name.startswith("weights.")]
    assert read == [f"inputs.{name}" for name in (*caches, "input_ids", "position_ids")]
    assert [each.name for each in graph.outputs] == [f"outputs.{name}" for name in (*caches, "logits")]


def test_a_whole_pass_gives_the_logits_of_the_transformer() -> None:
    captured = capture_jax_prefill(jax_transformer.LENGTH, jax_transformer.BATCH)
    tokens = np.asarray(jax_transformer.tokens())
    given = {**captured.bindings, **draw_step(captured.graph, np.random.default_rng(0), 9)}
    given["inputs.input_ids"] = type(given["inputs.input_ids"]).of(tokens)
    found = JaxEngine().run(captured.graph, given)["outputs.logits"].values()
    native = np.asarray(jax_transformer.forward(jax_transformer.weights(), tokens))
    assert np.allclose(found, native, atol=1e-5)


def test_token_by_token_it_gives_what_it_gives_at_once() -> None:
    whole, draws = capture_jax_prefill(PAST + 1), np.random.default_rng(0)
    found = decoding_distances(lambda past: graph_for(1, past), whole.graph, weights(), Reference(), draws)
    assert max(found.values()) < 4e-7
    last = last_step_distances(graph_for(1, PAST), whole.graph, (weights(), weights()), Reference(), draws)
    assert max(last.values()) < 4e-7


def test_its_step_alone_becomes_a_pass() -> None:
    found = verification_graph(DecodeProgram(graph_for(1, PAST), state=weights()), PAST + 1)
    assert found.route == "teacher forcing"
    assert all(finding.agrees for finding in found.findings)


def test_generation_gives_the_tokens_of_the_transformer() -> None:
    prompt = [3, 1, 4, 1]
    tokens: list[int] = list(prompt)
    for _ in range(2):
        logits = jax_transformer.forward(jax_transformer.weights(), np.asarray([tokens], np.int32))
        tokens.append(int(np.argmax(logits[0, -1])))
    for engine in (Reference(), JaxEngine()):
        assert list(generate_with_graph(graph_for, weights(), engine, prompt, 2).tokens) == tokens[4:]


def test_single_requests_come_out_of_a_batch() -> None:
    captured = step(1, PAST, 3)
    given = draw_step(captured.graph, np.random.default_rng(0), 9)
    single = slice_batch(captured.graph, list(given))
    bindings = {**weights(), **given}
    together = execute(captured.graph, bindings, Reference())
    for row, part in enumerate(single.split(bindings)):
        alone = execute(single.graph, part, Reference())
        for name, tensor in single.examples(together, row).items():
            assert np.allclose(alone[name].values(), tensor.values(), rtol=0, atol=1e-12)
