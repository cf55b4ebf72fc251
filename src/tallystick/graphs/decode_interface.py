"""The names in the interface of a decode graph: tokens, places, and a cache of keys and values for every layer.

Inputs `inputs.input_ids` and `inputs.position_ids` [B, length], `inputs.cache.<layer>.key` and `.value`
[B, heads, past, width]; outputs `outputs.logits` [B, length, V] and `outputs.cache.<layer>.…` of past + length places.
A graph without a cache among its inputs is a pass over whole sequences.

A graph that contains a sampler gives the token itself. It reads the sampler's seed and the place of the token in the
answer, and with a repetition penalty the tokens seen so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tallystick.errors import MalformedError
from tallystick.graphs.graph import Graph, Ref
from tallystick.tensors.dtypes import numpy_dtype
from tallystick.tensors.spec import TensorSpec
from tallystick.tensors.tensor import Tensor

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
