"""A language model that is a graph: a receipt is verified on whatever engine runs the verifier's own capture.

The graph of a pass is captured from the verifier's own model; the engine then sees tensors and operators, and nothing
of the framework that they were captured with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.generation.decoding import capture_prefill
from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel, check_tokens
from tallystick.graphs.decode_interface import LOGITS, empty_cache, fed
from tallystick.graphs.engine import Engine
from tallystick.graphs.execution import Run, execute
from tallystick.graphs.graph import Graph
from tallystick.graphs.template import Template
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.model_card import ModelCard
from tallystick.workloads.language_model import LanguageModel, Prefill, Rows

Layers: TypeAlias = tuple[int, ...]
Passes: TypeAlias = Callable[[int, Layers], tuple[Graph, State]]
"""The graph of a pass over so many tokens that gives the hidden states of these layers, and all that it reads."""
KEPT: Final = 8


@dataclass(frozen=True)
class GraphLanguageModel:
    """A language model on any engine; implements `LanguageModel`.

    `source` says what the model is and turns text into tokens, `passes` gives the graphs, and `run` executes one on
    `engine`: node by node, or whole where the engine compiles.
    """

    source: LanguageModel
    passes: Passes
    engine: Engine
    run: Run = execute

    @property
    def card(self) -> ModelCard:
        """What the model is."""
        return self.source.card

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens after which an answer is over."""
        return self.source.end_tokens

    def encode_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return self.source.encode_text(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The tokens of messages in the model's chat template."""
        return self.source.encode_chat(messages)

    def prefill(self, tokens: Sequence[int], first: int, layers: Collection[int] = ()) -> Prefill:
        """One pass over `tokens`.

        Raises:
            MalformedError: a token is outside the vocabulary, or there is no such layer.
            UnavailableError: there is no graph of this pass, or the engine does not run it.
        """
        check_tokens(tokens, self.card.vocabulary)
        wanted = tuple(sorted(set(layers)))
        graph, bindings = self.passes(len(tokens), wanted)
        given = {**bindings, **empty_cache(graph), **fed(graph, np.asarray([list(tokens)]), 0)}
        outputs = self.run(_without_cache(graph), given, self.engine)
        hidden = {layer: _rows(outputs[_hidden(layer)], first) for layer in wanted}
        return Prefill(first, _rows(outputs[LOGITS], first), hidden)


def captured_passes(source: TorchLanguageModel) -> Passes:
    """Each pass captured from the model when it is first asked for; the last few are kept."""

    @lru_cache(KEPT)
    def passes(length: int, layers: Layers) -> tuple[Graph, State]:
        found = capture_prefill(source.model, length, layers=layers)
        return found.graph, found.bindings

    return passes


def bound_passes(template: Template, bindings: State) -> Passes:
    """Each pass bound from a decode template, with what all of its bindings read."""

    @lru_cache(KEPT)
    def passes(length: int, layers: Layers) -> tuple[Graph, State]:
        if length > template.dimensions["length"][1]:
            raise UnavailableError(f"the template reaches {template.dimensions['length'][1]} tokens, not {length}")
        graph = template.bind(length=length, past=0)
        lacking = {_hidden(layer) for layer in layers} - {output.name for output in graph.outputs}
        if lacking:
            raise UnavailableError(f"the template does not give {min(lacking)}")
        return graph, bindings

    return passes


def _without_cache(graph: Graph) -> Graph:
    """The graph without the outputs that the next step would read: a pass has none."""
    return replace(graph, outputs=tuple(each for each in graph.outputs if not each.name.startswith("outputs.cache.")))


def _hidden(layer: int) -> str:
    return f"outputs.hidden.{layer}"


def _rows(tensor: Tensor, first: int) -> Rows:
    return tensor.values()[0, first:].astype(np.float32)
