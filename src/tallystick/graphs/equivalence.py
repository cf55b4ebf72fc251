"""Whether a pass over a whole sequence gives what decoding gives token by token.

The cache that a step gives is what the next one reads, rounded to the dtype of the graph's input; nothing else is kept.
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
"""The decode graph of length 1 for a number of places in the cache."""
Distances = dict[str, float]
"""By output, the largest |Δ| as a share of its largest element."""
ROUNDINGS: Final = 16
"""So many roundings of its dtype may an output be away, because the cache is rounded between steps."""


def decoding_distances(
    decode: DecodeGraphs, whole: Graph, bindings: State, engine: Engine, generator: np.random.Generator
) -> Distances:
    """Feed random tokens one by one from an empty cache, and at once to `whole`; how far logits and cache are apart.

    `bindings` holds weights, buffers and constants of all these graphs. Raises `MalformedError` where a graph does not
    have the interface of a decode graph, or the sizes do not belong together.
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
    """The same for a decode graph of one size: the last token fed to it, with the cache that `whole` gives before it.

    `bindings` are those of `decode` and of `whole`, which is one token longer than the cache of `decode`. With the
    cache right for all places but the last, this is one step of the induction over the sequence.
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
    """How far decoding may be from a pass over the whole sequence, on the reference: what rounding the cache does."""
    dtypes = [spec.dtype for spec in cache_specs(graph).values()]
    return ROUNDINGS * max((FORMATS[dtype].unit for dtype in dtypes if dtype in FORMATS), default=FORMATS["F32"].unit)


def draw_step(graph: Graph, generator: np.random.Generator, places: int) -> dict[Ref, Tensor]:
    """Random tokens at random places in the upper half of `places`, behind a normally distributed random cache.

    Angles of rotary embeddings are large there. Masks of a graph follow the order in the cache and not the places.
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
