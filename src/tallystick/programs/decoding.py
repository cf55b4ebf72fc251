"""Decode graphs: the names in their interface, generation with them, and comparison with a whole pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import State, Tensor, TensorSpec, numpy_dtype
from tallystick.programs.difference import cast, from_numbers, share_apart
from tallystick.programs.execution import Engine, execute
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.operators.precision import FORMATS

# The names in the interface of a decode graph: tokens, places, and a cache of keys and values for every layer.
#
# Inputs `inputs.input_ids` and `inputs.position_ids` [B, length], `inputs.cache.<layer>.key` and `.value` [B, heads,
# past, width]; outputs `outputs.logits` [B, length, V] and `outputs.cache.<layer>.…` of past + length places. A graph
# without a cache among its inputs is a pass over whole sequences.
#
# A graph that contains a sampler gives the token itself. It reads the sampler's seed and the place of the token in the
# answer, and with a repetition penalty the tokens seen so far.

TOKENS: Final = "inputs.input_ids"
PLACES: Final = "inputs.position_ids"
LOGITS: Final = "outputs.logits"
TOKEN: Final = "token"
SEED: Final = "sampler.seed"
POSITION: Final = "sampler.position"
SEEN: Final = "sampler.seen"
CACHE: Final = re.compile(r"inputs\.cache\.(\d{1,6})\.(key|value)")
SEQUENCE: Final = 2
"""The axis of a cache along which it grows."""


@dataclass(frozen=True)
class DecodeSizes:
    """The number of sequences, the tokens fed to each, and the places already in the cache."""

    batch: int
    length: int
    past: int
    vocabulary: int


def decode_sizes(graph: Graph) -> DecodeSizes:
    """The sizes of a decode graph; raises `MalformedError` naming what of its interface is missing or inconsistent."""
    specs = {each.name: each.spec for each in graph.inputs}
    values = graph.specs()
    logits = next((values[each.value] for each in graph.outputs if each.name == LOGITS), None)
    if logits is None or len(logits.shape) != 3:
        raise MalformedError(f"{LOGITS}: a decode graph gives it with three axes")
    batch, length, vocabulary = logits.shape
    if TOKENS not in specs or specs[TOKENS].shape != (batch, length):
        raise MalformedError(f"{TOKENS}: a decode graph reads it, of the shape {[batch, length]}")
    caches = cache_specs(graph)
    past = {spec.shape[SEQUENCE] if len(spec.shape) == 4 else -1 for spec in caches.values()} or {0}
    if len(past) > 1 or -1 in past:
        raise MalformedError("inputs.cache: keys and values of all layers have four axes and one length")
    return DecodeSizes(batch, length, past.pop(), vocabulary)


def cache_specs(graph: Graph) -> dict[Ref, TensorSpec]:
    """The specs of the cached keys and values by input name."""
    return {each.name: each.spec for each in graph.inputs if CACHE.fullmatch(each.name)}


def grown_cache(outputs: Mapping[str, Tensor]) -> dict[Ref, Tensor]:
    """The cache among the outputs of a step, under the names by which the next step reads it."""
    named = {name.replace("outputs.", "inputs.", 1): tensor for name, tensor in outputs.items()}
    return {name: tensor for name, tensor in named.items() if CACHE.fullmatch(name)}


def fed(graph: Graph, tokens: npt.NDArray[Any], past: int) -> dict[Ref, Tensor]:
    """The bindings that feed `graph` the `tokens` [B, length] after `past` others: tokens and their places."""
    specs = {each.name: each.spec for each in graph.inputs}
    places = np.broadcast_to(np.arange(past, past + tokens.shape[1]), tokens.shape)
    arrays = {TOKENS: tokens, PLACES: places}
    return {
        name: Tensor.of(np.ascontiguousarray(array, numpy_dtype(specs[name].dtype)), specs[name].dtype)
        for name, array in arrays.items()
        if name in specs
    }


def empty_cache(graph: Graph) -> dict[Ref, Tensor]:
    """A cache without places, if the graph reads an empty cache; else nothing."""
    return {
        name: Tensor.of(np.zeros(spec.shape, numpy_dtype(spec.dtype)), spec.dtype)
        for name, spec in cache_specs(graph).items()
        if spec.shape[SEQUENCE] == 0
    }


# Autoregressive generation with graphs: one pass over the prompt, then one step per token, on any engine.
#
#     (cache', logits or token) = graph(cache, tokens)
#
# The token is chosen outside the graph, from its logits (greedy, or a sampler); or the graph contains the sampler's
# operators and gives the token itself.


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
        graph = graph_for(len(fresh), past)
        outputs = _fed(graph, np.asarray([fresh]), past, cache, {**bindings, **given(step)}, engine)
        answer.append(choose(outputs, step))
        seen.append({name: tensor for name, tensor in outputs.items() if not name.startswith("outputs.cache.")})
        cache = grown_cache(outputs)
    return GraphAnswer(tuple(answer), tuple(seen))


def _fed(
    graph: Graph, tokens: npt.NDArray[Any], past: int, cache: State, bindings: State, engine: Engine
) -> dict[str, Tensor]:
    """The outputs of a graph for `tokens` [B, length] after `past` others; the cache is rounded as the graph reads it.

    Raises `MalformedError` for a graph of other sizes.
    """
    sizes, specs = decode_sizes(graph), cache_specs(graph)
    if (sizes.batch, sizes.length, sizes.past) != (*tokens.shape, past):
        what = f"{tokens.shape[1]} tokens after {past}"
        raise MalformedError(f"inputs.cache: a graph of {what} is needed, for {len(tokens)} sequences")
    rounded = {name: cast(tensor, specs[name].dtype) for name, tensor in cache.items() if name in specs}
    return execute(graph, {**bindings, **empty_cache(graph), **rounded, **fed(graph, tokens, past)}, engine)


# Compares a pass over a whole sequence with decoding token by token. Nothing but the cache is kept between steps.

DecodeGraphs = Callable[[int], Graph]
"""Returns the decode graph of length 1 for this number of places in the cache."""
Distances = dict[str, float]
"""By output name, the largest |Δ| as a share of the largest element."""
ROUNDINGS: Final = 16
"""How many roundings of its dtype an output may be off, because the cache is rounded between steps."""


def decoding_distances(
    decode: DecodeGraphs, whole: Graph, bindings: State, engine: Engine, generator: np.random.Generator
) -> Distances:
    """How far logits and cache differ between feeding random tokens one by one and feeding them at once to `whole`.

    Decoding starts from an empty cache. `bindings` holds weights, buffers and constants of all these graphs. Raises
    `MalformedError` if a graph does not have the interface of a decode graph, or if the sizes do not fit together.
    """
    sizes = decode_sizes(whole)
    tokens = generator.integers(sizes.vocabulary, size=(sizes.batch, sizes.length))
    at_once = _fed(whole, tokens, 0, {}, bindings, engine)
    cache: dict[Ref, Tensor] = {}
    rows = []
    for past in range(sizes.length):
        outputs = _fed(decode(past), tokens[:, past : past + 1], past, cache, bindings, engine)
        cache = grown_cache(outputs)
        rows.append(outputs[LOGITS].values())
    given = {LOGITS: Tensor.of(np.concatenate(rows, 1))} | {_output(name): value for name, value in cache.items()}
    return _distances(given, at_once)


def last_step_distances(
    decode: Graph, whole: Graph, bindings: tuple[State, State], engine: Engine, generator: np.random.Generator
) -> Distances:
    """As `decoding_distances`, for one decode graph: it gets the last token and the cache of `whole` before that token.

    `bindings` holds those of `decode` and of `whole`; `whole` is one token longer than the cache of `decode`. Because
    the cache is right for all places but the last, this is one step of an induction over the sequence.
    """
    sizes = decode_sizes(whole)
    past = sizes.length - 1
    tokens = generator.integers(sizes.vocabulary, size=(sizes.batch, sizes.length))
    at_once = _fed(whole, tokens, 0, {}, bindings[1], engine)
    before = {name: Tensor.of(value.array()[:, :, :past], value.dtype) for name, value in grown_cache(at_once).items()}
    outputs = _fed(decode, tokens[:, past:], past, before, bindings[0], engine)
    logits = Tensor.of(at_once[LOGITS].array()[:, past:], at_once[LOGITS].dtype)
    return _distances(outputs, {**at_once, LOGITS: logits})


def allowed_share(graph: Graph) -> float:
    """The allowed distance of decoding from the whole pass on the reference: the effect of rounding the cache."""
    dtypes = [spec.dtype for spec in cache_specs(graph).values()]
    return ROUNDINGS * max((FORMATS[dtype].unit for dtype in dtypes if dtype in FORMATS), default=FORMATS["F32"].unit)


def draw_step(graph: Graph, generator: np.random.Generator, places: int) -> dict[Ref, Tensor]:
    """Random tokens at random places in the upper half of `places`, after a normally distributed random cache.

    The angles of rotary embeddings are large there. Masks of a graph depend on the order in the cache, not on places.
    """
    sizes = decode_sizes(graph)
    tokens = generator.integers(sizes.vocabulary, size=(sizes.batch, sizes.length))
    given = fed(graph, tokens, 0)
    if PLACES in given:
        given[PLACES] = from_numbers(generator.integers(places // 2, places, size=tokens.shape), given[PLACES].dtype)
    specs = cache_specs(graph)
    return given | {name: from_numbers(generator.standard_normal(s.shape), s.dtype) for name, s in specs.items()}


def _distances(outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Distances:
    names = [LOGITS, *(_output(name) for name in grown_cache(expected))]
    return {name: share_apart(expected[name], outputs[name]) if name in outputs else np.inf for name in names}


def _output(name: Ref) -> str:
    return name.replace("inputs.", "outputs.", 1)
