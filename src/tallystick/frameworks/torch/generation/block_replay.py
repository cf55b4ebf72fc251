"""One layer of a language model as a separate graph, which reads the hidden states of the layer before."""

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
    """A layer for one sequence length; `given` is the reference of its input states, None for layer 0."""

    graph: Graph
    given: Ref | None
    bindings: Mapping[Ref, Tensor]


def capture_layer(model: TorchLanguageModel, tokens: Sequence[int], layer: int) -> LayerSlice:
    """The slice of the pass over `tokens` between two layers; layer 0 starts from the tokens.

    Raises `UnavailableError` if the model cannot be captured, or if the layer's output is its input.
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
