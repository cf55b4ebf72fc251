"""Generation as graphs gives the tokens of `generate`: greedy, with draws beside the graphs, and inside of them."""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tallystick.core.errors import MalformedError, UsageError  # noqa: E402
from tallystick.core.tensors import State, Tensor  # noqa: E402
from tallystick.engines.torch.engine import TorchEngine  # noqa: E402
from tallystick.engines.torch.generation.decoding import (  # noqa: E402
    capture_decode_template,
    model_state,
)
from tallystick.engines.torch.generation.sampler import CanonicalSampling  # noqa: E402
from tallystick.formats.receipt import Sampler  # noqa: E402
from tallystick.programs.decoding import (  # noqa: E402
    GraphFor,
    TokenPosition,
    generate_with_graph,
    greedy,
    sampler_given,
    token_output,
)
from tallystick.programs.execution import Reference  # noqa: E402
from tallystick.programs.random_words import seed_words  # noqa: E402
from tallystick.programs.transforms.sampling import with_sampler  # noqa: E402
from tallystick.verdicts.sampling.choice import choose  # noqa: E402

DECODERS = runpy.run_path(str(Path(__file__).parents[1] / "engines" / "torch" / "decoders.py"))
Decoder = tuple[Any, GraphFor, State]
PROMPT = [5, 17, 3, 44]
TOKENS = 4
SAMPLERS = {
    "gumbel": Sampler(temperature=0.8, seed=3),
    "filters": Sampler(temperature=1.2, top_k=20, top_p=0.9, min_p=0.01, seed=4),
    "sums": Sampler(form="cdf", temperature=0.9, seed=5),
    "penalty": Sampler(temperature=0.7, repetition_penalty=1.3, seed=6),
    "greedy": Sampler(temperature=0.0),
}


@pytest.fixture(scope="module", params=["llama", "gpt2", pytest.param("qwen3", marks=pytest.mark.slow)])
def decoder(request: pytest.FixtureRequest, one_thread: None) -> Decoder:
    """A model whose logits differ, the graphs of its step, and its weights."""
    model = DECODERS["build"](request.param, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    template = capture_decode_template(model, {"length": (1, 12), "past": (0, 12)})
    return model, cache(lambda length, past: template.bind(length=length, past=past)), model_state(model)


def sampling(graph_for: GraphFor, sampler: Sampler) -> GraphFor:
    settings = sampler.model_dump(exclude={"seed"}, exclude_defaults=True)
    return cache(lambda length, past: with_sampler(graph_for(length, past), **settings))


def generated(model: Any, sampler: Sampler | None = None) -> tuple[int, ...]:
    """The tokens of `generate`."""
    processors = [] if sampler is None else [CanonicalSampling([sampler], [PROMPT])]
    ids = torch.tensor([PROMPT])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, logits_processor=processors
    )
    return tuple(found[0, len(PROMPT) :].tolist())


@pytest.mark.parametrize("engine", [TorchEngine(), Reference()], ids=lambda engine: engine.name)
def test_greedy_generation_gives_the_tokens_of_generate(decoder: Decoder, engine: Any) -> None:
    model, graph_for, state = decoder
    found = generate_with_graph(graph_for, state, engine, PROMPT, TOKENS)
    assert found.tokens == generated(model)
    assert len(found.outputs) == TOKENS
    assert found.outputs[0].keys() == {"outputs.logits"}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_gives_the_same_tokens_in_the_graph_beside_it_and_in_generate(decoder: Decoder, name: str) -> None:
    model, graph_for, state = decoder
    sampler, vocabulary = SAMPLERS[name], model.config.vocab_size
    sampled = sampling(graph_for, sampler)

    def chosen(outputs: Mapping[str, Tensor], step: TokenPosition) -> int:
        logits = outputs["outputs.logits"].values()[0, -1:]
        return int(choose(logits, sampler, [step.position], [step.history])[0])

    given = sampler_given(seed_words(sampler.seed), vocabulary)
    beside = generate_with_graph(graph_for, state, TorchEngine(), PROMPT, TOKENS, chosen)
    inside = generate_with_graph(sampled, state, TorchEngine(), PROMPT, TOKENS, token_output, given)
    assert inside.tokens == beside.tokens == generated(model, sampler)
    exact = generate_with_graph(sampled, state, Reference(), PROMPT, TOKENS, token_output, given)
    assert exact.tokens == inside.tokens


@pytest.mark.slow
def test_another_framework_draws_the_same_tokens(decoder: Decoder) -> None:
    jax_engine = pytest.importorskip("tallystick.engines.jax.engine")
    model, graph_for, state = decoder
    sampled = sampling(graph_for, SAMPLERS["filters"])
    given = sampler_given(seed_words(4), model.config.vocab_size)
    engines = (TorchEngine(), jax_engine.JaxEngine())
    ours, theirs = (generate_with_graph(sampled, state, each, PROMPT, 3, token_output, given) for each in engines)
    assert ours.tokens == theirs.tokens


def test_another_seed_gives_other_tokens(decoder: Decoder) -> None:
    model, graph_for, state = decoder
    sampled = sampling(graph_for, SAMPLERS["gumbel"])

    def with_seed(seed: int) -> tuple[int, ...]:
        given = sampler_given(seed_words(seed), model.config.vocab_size)
        return generate_with_graph(sampled, state, TorchEngine(), PROMPT, TOKENS, token_output, given).tokens

    assert with_seed(3) == with_seed(3) != with_seed(7)


def test_an_end_token_is_the_last(decoder: Decoder) -> None:
    _, graph_for, state = decoder
    whole = generate_with_graph(graph_for, state, TorchEngine(), PROMPT, TOKENS).tokens
    end = whole[2]
    found = generate_with_graph(graph_for, state, TorchEngine(), PROMPT, TOKENS, greedy, end_tokens={end}).tokens
    assert found == whole[: whole.index(end) + 1]


def test_what_cannot_be_generated_is_refused(decoder: Decoder) -> None:
    _, graph_for, state = decoder
    with pytest.raises(UsageError, match="prompt"):
        generate_with_graph(graph_for, state, TorchEngine(), [], TOKENS)
    with pytest.raises(MalformedError, match="4 tokens after 0"):
        generate_with_graph(lambda _, past: graph_for(3, past), state, TorchEngine(), PROMPT, TOKENS)
    nameless = replace(graph_for(4, 0), outputs=())
    with pytest.raises(MalformedError, match=r"outputs\.logits"):
        generate_with_graph(lambda *_: nameless, state, TorchEngine(), PROMPT, TOKENS)
