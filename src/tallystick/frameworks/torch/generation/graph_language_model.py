"""A language model that runs as a graph: a receipt can be verified on any engine.

The graph of a pass is captured from the verifier's own model. The engine then needs only tensors and operators, and not
the framework that captured them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

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
from tallystick.transcripts.sampler import Grammar
from tallystick.workloads.language_model import LanguageModel, Prefill, Rows, TokenMasks

Layers: TypeAlias = tuple[int, ...]
Passes: TypeAlias = Callable[[int, Layers], tuple[Graph, State]]
"""Returns the graph of a pass over a number of tokens, with hidden states of the given layers; and its bindings."""
KEPT: Final = 8


@dataclass(frozen=True)
class GraphLanguageModel:
    """A language model on any engine; implements `LanguageModel`.

    `source` gives the card and the tokenizer, `passes` the graphs. `run` executes a graph on `engine`, node by node or
    compiled as a whole.
    """

    source: LanguageModel
    passes: Passes
    engine: Engine
    run: Run = execute

    @property
    def card(self) -> ModelCard:
        """The card of the source model."""
        return self.source.card

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self.source.end_tokens

    def widened(self) -> LanguageModel | None:
        """None: the graph was captured in one precision."""
        return None

    def in_fewer_bits(self, name: str) -> LanguageModel | None:
        """None: the graph has its weights bound."""
        del name
        return None

    def reruns(self, tokens: Sequence[int], given: Mapping[int, Rows]) -> Iterator[Mapping[int, Rows]]:
        """None: the graph is of the whole pass."""
        del tokens, given
        return iter(())

    def encode_text(self, text: str) -> list[int]:
        """The tokens of a prompt."""
        return self.source.encode_text(text)

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: str | None = None) -> list[int]:
        """The tokens of messages in the model's chat template."""
        return self.source.encode_chat(messages, tools)

    def token_masks(self, grammar: Grammar, schema: str) -> TokenMasks:
        """The masks of a text that is JSON by this schema."""
        return self.source.token_masks(grammar, schema)

    def prefill(self, tokens: Sequence[int], first: int, layers: Collection[int] = ()) -> Prefill:
        """One pass over `tokens`.

        Raises:
            MalformedError: a token is outside the vocabulary, or a layer does not exist.
            UnavailableError: there is no graph for this pass, or the engine cannot run it.
        """
        check_tokens(tokens, self.card.vocabulary)
        wanted = tuple(sorted(set(layers)))
        graph, bindings = self.passes(len(tokens), wanted)
        given = {**bindings, **empty_cache(graph), **fed(graph, np.asarray([list(tokens)]), 0)}
        outputs = self.run(_without_cache(graph), given, self.engine)
        hidden = {layer: _rows(outputs[_hidden(layer)], first) for layer in wanted}
        return Prefill(first, _rows(outputs[LOGITS], first), hidden)


def captured_passes(source: TorchLanguageModel) -> Passes:
    """Passes captured from the model on first use; the last `KEPT` stay in memory."""

    @lru_cache(KEPT)
    def passes(length: int, layers: Layers) -> tuple[Graph, State]:
        found = capture_prefill(source.model, length, layers=layers)
        return found.graph, found.bindings

    return passes


def bound_passes(template: Template, bindings: State) -> Passes:
    """Passes bound from a decode template; `bindings` holds the weights, buffers and constants of all of them."""

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
    """The graph without the cache outputs, which only a next step would read."""
    return replace(graph, outputs=tuple(each for each in graph.outputs if not each.name.startswith("outputs.cache.")))


def _hidden(layer: int) -> str:
    return f"outputs.hidden.{layer}"


def _rows(tensor: Tensor, first: int) -> Rows:
    return tensor.values()[0, first:].astype(np.float32)
