"""Compares a pass over a whole sequence with decoding token by token.

Each step reads the cache of the step before, rounded to the dtype of the graph's input. Nothing else is kept between
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.graphs.comparison import cast, from_numbers, share_apart
from tallystick.graphs.decode_interface import (
    LOGITS,
    PLACES,
    cache_specs,
    decode_sizes,
    empty_cache,
    fed,
    grown_cache,
)
from tallystick.graphs.engine import Engine
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph, Ref
from tallystick.operators.precision import FORMATS
from tallystick.tensors.tensor import State, Tensor

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
    at_once = _fed_whole(whole, tokens, bindings, engine)
    cache: dict[Ref, Tensor] = {}
    rows = []
    for past in range(sizes.length):
        step = _step(decode(past), past, sizes.batch)
        outputs = _fed_step(step, tokens[:, past : past + 1], cache, bindings, engine)
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
    at_once = _fed_whole(whole, tokens, bindings[1], engine)
    before = {name: Tensor.of(value.array()[:, :, :past], value.dtype) for name, value in grown_cache(at_once).items()}
    outputs = _fed_step(_step(decode, past, sizes.batch), tokens[:, past:], before, bindings[0], engine)
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


def _fed_whole(whole: Graph, tokens: npt.NDArray[Any], bindings: State, engine: Engine) -> dict[str, Tensor]:
    if decode_sizes(whole).past:
        raise MalformedError("inputs.cache: a pass over whole sequences has an empty one, or none")
    return execute(whole, {**bindings, **empty_cache(whole), **fed(whole, tokens, 0)}, engine)


def _fed_step(
    step: Graph, tokens: npt.NDArray[Any], cache: State, bindings: State, engine: Engine
) -> dict[str, Tensor]:
    specs = cache_specs(step)
    held = {name: cast(tensor, specs[name].dtype) for name, tensor in cache.items() if name in specs}
    past = decode_sizes(step).past
    return execute(step, {**bindings, **empty_cache(step), **held, **fed(step, tokens, past)}, engine)


def _step(graph: Graph, past: int, batch: int) -> Graph:
    sizes = decode_sizes(graph)
    if (sizes.batch, sizes.length, sizes.past) != (batch, 1, past):
        raise MalformedError(f"inputs.cache: a step of one token after {past} is needed, for a batch of {batch}")
    return graph


def _distances(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Distances:
    names = [LOGITS, *(_output(name) for name in grown_cache(expected))]
    return {name: share_apart(expected[name], found[name]) if name in found else np.inf for name in names}


def _output(name: Ref) -> str:
    return name.replace("inputs.", "outputs.", 1)
