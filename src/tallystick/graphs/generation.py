"""Autoregressive generation with graphs: one pass over the prompt, then one step per token, on any engine.

    (cache', logits or token) = graph(cache, tokens)

The token is chosen outside the graph, from its logits (greedy, or a sampler); or the graph contains the sampler's
operators and gives the token itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError, UsageError
from tallystick.graphs.comparison import cast
from tallystick.graphs.decode_interface import (
    LOGITS,
    POSITION,
    SEED,
    SEEN,
    TOKEN,
    cache_specs,
    decode_sizes,
    empty_cache,
    fed,
    grown_cache,
)
from tallystick.graphs.engine import Engine
from tallystick.graphs.execution import Run, execute
from tallystick.graphs.graph import Graph, Ref
from tallystick.tensors.tensor import State, Tensor


@dataclass(frozen=True)
class TokenPosition:
    """The token to be chosen next: its place in the answer, and all tokens before it, including the prompt."""

    position: int
    history: tuple[int, ...]


@dataclass(frozen=True)
class GraphAnswer:
    """The tokens of an answer, and for each of them the outputs of its graph."""

    tokens: tuple[int, ...]
    outputs: tuple[Mapping[str, Tensor], ...]


GraphFor = Callable[[int, int], Graph]
"""Returns the graph for a number of tokens fed and a number of tokens before them."""
Choose = Callable[[Mapping[str, Tensor], TokenPosition], int]
"""Chooses the next token from the outputs of a graph."""
Given = Callable[[TokenPosition], State]
"""Gives the inputs of a step besides tokens, places and cache, such as a sampler's seed and position."""


def nothing(_: TokenPosition) -> State:
    """The `Given` of a graph without a sampler: no inputs."""
    return {}


def sampler_given(seed: npt.NDArray[np.int64], vocabulary: int) -> Given:
    """The `Given` of a graph made by `with_sampler`: the key I64 [2], the place, and the tokens seen."""

    def given(step: TokenPosition) -> State:
        seen = np.zeros((1, 1, vocabulary), np.bool_)
        seen[..., list(step.history)] = True
        arrays = {SEED: seed, POSITION: np.asarray(step.position, np.int64), SEEN: seen}
        return {name: Tensor.of(array) for name, array in arrays.items()}

    return given


def greedy(outputs: Mapping[str, Tensor], _: TokenPosition) -> int:
    """The token with the largest logit in the last row; of equal logits, the lowest token."""
    return int(np.argmax(outputs[LOGITS].values()[0, -1]))


def token_output(outputs: Mapping[str, Tensor], _: TokenPosition) -> int:
    """The token that the graph itself gives for its last row."""
    return int(outputs[TOKEN].array().reshape(-1)[-1])


def generate_with_graph(
    graph_for: GraphFor,
    bindings: State,
    engine: Engine,
    prompt: Sequence[int],
    tokens: int,
    choose: Choose = greedy,
    given: Given = nothing,
    end_tokens: Collection[int] = (),
    run: Run = execute,
) -> GraphAnswer:
    """Up to `tokens` tokens after `prompt`, for one sequence; an end token is the last.

    Args:
        graph_for: called with the prompt's length and 0, then with 1 and the number of tokens fed before.
        bindings: weights, buffers and constants of all graphs.
        engine: computes the graphs. The cache is rounded to the dtype in which the next graph reads it.
        prompt: at least one token.
        tokens: the largest number of tokens to generate.
        choose: chooses a token from the outputs.
        given: gives the inputs of a sampler inside the graphs.
        end_tokens: the tokens that end an answer.
        run: executes a graph on the engine.

    Raises:
        UsageError: there is no prompt.
        MalformedError: a graph does not have the interface of a decode graph for these sizes.
    """
    if not prompt:
        raise UsageError("a prompt has at least one token")
    answer: list[int] = []
    seen: list[Mapping[str, Tensor]] = []
    cache: dict[Ref, Tensor] = {}
    while len(answer) < tokens and not (answer and answer[-1] in end_tokens):
        fresh, past = ([answer[-1]], len(prompt) + len(answer) - 1) if answer else (list(prompt), 0)
        step = TokenPosition(len(answer), (*prompt, *answer))
        graph = _checked(graph_for(len(fresh), past), len(fresh), past)
        bound = {**bindings, **given(step), **empty_cache(graph), **_rounded(cache, graph)}
        outputs = run(graph, {**bound, **fed(graph, np.asarray([fresh]), past)}, engine)
        answer.append(choose(outputs, step))
        seen.append({name: tensor for name, tensor in outputs.items() if not name.startswith("outputs.cache.")})
        cache = grown_cache(outputs)
    return GraphAnswer(tuple(answer), tuple(seen))


def _checked(graph: Graph, length: int, past: int) -> Graph:
    sizes = decode_sizes(graph)
    if (sizes.batch, sizes.length, sizes.past) != (1, length, past):
        raise MalformedError(f"inputs.cache: a graph of {length} tokens after {past} is needed, for one sequence")
    return graph


def _rounded(cache: State, graph: Graph) -> dict[Ref, Tensor]:
    specs = cache_specs(graph)
    return {name: cast(tensor, specs[name].dtype) for name, tensor in cache.items() if name in specs}
