"""One layer of a language model as a graph of its own, for whoever holds the hidden states before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.generation.decoding import capture_prefill
from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
from tallystick.graphs.graph import Graph, Ref
from tallystick.graphs.slicing import verification_slice
from tallystick.tensors.tensor import Tensor

IDS = "inputs.input_ids"
POSITIONS = "inputs.position_ids"


@dataclass(frozen=True)
class LayerSlice:
    """A layer for a sequence of some length; `given` is where the states of the layer before go in, if there is one."""

    graph: Graph
    given: Ref | None
    bindings: Mapping[Ref, Tensor]


def capture_layer(model: TorchLanguageModel, tokens: Sequence[int], layer: int) -> LayerSlice:
    """The slice of the pass over `tokens` between two layers; layer 0 begins at the tokens themselves.

    Raises `UnavailableError` where the model cannot be captured, or the layer's output is its input.
    """
    layers = (layer,) if layer == 0 else (layer - 1, layer)
    captured = capture_prefill(model.model, len(tokens), layers=layers)
    values = {output.name: output.value for output in captured.graph.outputs}
    given = None if layer == 0 else values[f"outputs.hidden.{layer - 1}"]
    wanted = values[f"outputs.hidden.{layer}"]
    if wanted == given:
        raise UnavailableError(f"layer {layer} computes nothing")
    graph = verification_slice(captured.graph, () if given is None else (given,), (wanted,))
    ids = Tensor.of(np.asarray([tokens], np.int64))
    places = Tensor.of(np.arange(len(tokens), dtype=np.int64)[None])
    held = {**captured.bindings, IDS: ids, POSITIONS: places}
    read = {source.name for source in graph.sources} - {given}
    return LayerSlice(graph, given, {name: held[name] for name in sorted(read)})
