"""A language model from a directory, or from a graph: one pass over a whole sequence, or one layer."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch

from tallystick.core.canonical_json import parse
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.files import read_document
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.engines.tokenizers import REFUSALS
from tallystick.engines.torch.generation.decoding import capture_prefill
from tallystick.engines.torch.generation.grammars import SchemaMasks, check_library, grammar_tokenizer
from tallystick.engines.torch.generation.layer_tap import watching_layers
from tallystick.engines.torch.generation.model_files import DTYPES, check_directory, describe, read_card, shared_tensors
from tallystick.engines.torch.generation.twins import attention_twin, coarse_twin, run_layers
from tallystick.engines.torch.tensors import to_tensor
from tallystick.formats.claims import Dtype, ModelCard
from tallystick.formats.receipt import Grammar
from tallystick.formats.requests import template_message
from tallystick.programs.decoding import LOGITS, empty_cache, fed
from tallystick.programs.execution import Engine, Run, execute
from tallystick.programs.graph import Graph, Ref
from tallystick.programs.slicing import verification_slice
from tallystick.programs.templates import Template
from tallystick.verdicts.language_model import LanguageModel, Prefill, Rows, TokenMasks

# A language model from a directory in the form of transformers, and one pass over a whole sequence.
#
# Only data is read: configuration, safetensors, tokenizer and template. No code from the directory runs.

Attention: TypeAlias = Literal["eager", "sdpa"]


@dataclass(frozen=True)
class TorchLanguageModel:
    """A causal language model of transformers with its tokenizer, in evaluation mode."""

    model: Any
    tokenizer: Any
    card: ModelCard
    device: str = "cpu"
    directory: Path | None = None

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """The end tokens of the generation configuration, or else of the tokenizer."""
        listed = self.model.generation_config.eos_token_id
        return _as_set(self.tokenizer.eos_token_id if listed is None else listed)

    @property
    def context_length(self) -> int | None:
        """The most places of a sequence that the configuration states."""
        found = getattr(self.model.config, "max_position_embeddings", None)
        return found if isinstance(found, int) else None

    @property
    def knows_tools(self) -> bool:
        """Whether the chat template speaks of tools."""
        return "tools" in (self.tokenizer.chat_template or "")

    def widened(self) -> TorchLanguageModel | None:
        """The same weights in F32, made once; None for a model of F32."""
        return None if self.card.dtype == "F32" else self._wide

    @cached_property
    def _wide(self) -> TorchLanguageModel:
        return replace(self, model=copy.deepcopy(self.model).float())

    def in_fewer_bits(self, name: str) -> TorchLanguageModel:
        """The model with its matrices in one of `twins.FORMATS`, rounded when they are used."""
        return replace(self, model=coarse_twin(self.model, name, DTYPES[self.card.dtype]))

    def reruns(self, tokens: Sequence[int], given: Mapping[int, Rows]) -> Iterator[Mapping[int, Rows]]:
        """The layers behind `given` with fused attention and with the eager one; raises as `prefill`."""
        check_tokens(tokens, self.card.vocabulary)
        ids = torch.tensor([list(tokens)], device=self.device)
        return (run_layers(each, ids, given) for each in self._stacks)

    @cached_property
    def _stacks(self) -> tuple[Any, ...]:
        return tuple(attention_twin(self.model, each) for each in ("sdpa", "eager"))

    def encode_text(self, text: str) -> list[int]:
        """The tokens of a prompt, with the special tokens that the tokenizer adds."""
        return list(self.tokenizer.encode(text))

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], tools: str | None = None) -> list[int]:
        """The tokens of messages, with tools as JSON text, in the chat template.

        Raises `UsageError` if there is no template, or if it refuses them or does not know tools.
        """
        return chat_tokens(self.tokenizer, messages, tools)

    def token_masks(self, grammar: Grammar, schema: str) -> TokenMasks:
        """The masks of JSON by this schema; `UnavailableError` if `grammar` names another library than is installed."""
        check_library(grammar)
        return SchemaMasks(schema, self.grammar_tokenizer)

    @cached_property
    def grammar_tokenizer(self) -> Any:
        """The tokenizer as the library of grammars has it."""
        return grammar_tokenizer(self.tokenizer, self.card.vocabulary, self.end_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def spellings(self, token: int) -> frozenset[str]:
        """The names under which servers report a token: its text, its piece of the vocabulary, its number."""
        texts = (self.tokenizer.decode([token]), self.decode([token]), self.tokenizer.convert_ids_to_tokens(token))
        return frozenset({*(each for each in texts if each is not None), f"token_id:{token}"})

    def card_in(self, dtype: Dtype) -> ModelCard | None:
        """The card of the same directory in another precision; None for a model without a directory.

        Weights are read from the directory again, because weights that were already rounded cannot be converted back.
        """
        if self.directory is None:
            return None
        return read_card(self.directory, dtype) or load_language_model(self.directory, dtype).card

    def former_card(self) -> ModelCard | None:
        """The card in version 1, by which older receipts name the model; None for a model without a directory."""
        return None if self.directory is None else describe_model(self.model, self.directory, self.card.dtype, 1)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], first: int, layers: Collection[int] = ()) -> Prefill:
        """One pass with an empty cache; raises `MalformedError` for a token outside the vocabulary."""
        check_tokens(tokens, self.card.vocabulary)
        hidden: dict[int, torch.Tensor] = {}
        with watching_layers(self.model, layers, lambda layer, states: hidden.update({layer: states[0, first:]})):
            ids = torch.tensor([list(tokens)], device=self.device)
            logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=len(tokens) - first).logits[0]
        rows = {layer: states.float().cpu().numpy() for layer, states in hidden.items()}
        return Prefill(first, logits.float().cpu().numpy(), rows)


def check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """Raise `MalformedError` unless there are tokens and all are in the vocabulary."""
    if not tokens:
        raise MalformedError("tokens: none")
    if not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise MalformedError(f"tokens: {max(tokens)} or {min(tokens)} is outside the vocabulary of {vocabulary}")


def load_language_model(
    directory: Path | str, dtype: Dtype = "F32", attention: Attention = "sdpa", device: str = "cpu"
) -> TorchLanguageModel:
    """The model in a directory, its weights converted to `dtype`.

    Raises:
        UnavailableError: there is no model, or weights are missing, which transformers would draw at random.
        MalformedError: a file is malformed, or asks for code to be run.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    path = Path(directory)
    check_directory(path)
    disable_progress_bar()
    tokenizer = load_tokenizer(path)
    try:
        model, loaded = AutoModelForCausalLM.from_pretrained(
            path,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=DTYPES[dtype],
            attn_implementation=attention,
        )
    except (OSError, SafetensorError, *REFUSALS) as error:
        raise _not_loaded(path, error) from None
    if loaded["missing_keys"]:
        raise UnavailableError(f"{path}: no whole model: {min(loaded['missing_keys'])} is in no .safetensors file")
    model = model.eval().to(device)
    return TorchLanguageModel(model, tokenizer, describe_model(model, path, dtype), device, path)


def load_tokenizer(path: Path) -> Any:
    """The tokenizer in a directory, with its chat template; raises `MalformedError` for one that cannot be read."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, *REFUSALS) as error:
        raise _not_loaded(path, error) from None


def chat_tokens(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: str | None = None) -> list[int]:
    """The tokens of messages, with tools as JSON text, in a tokenizer's chat template; raises as `encode_chat`."""
    from jinja2 import TemplateError

    if tokenizer.chat_template is None:
        raise UsageError("the model has no chat template")
    try:
        shown = [template_message(each) for each in messages]
        held = None if tools is None else json.loads(tools)
        text = tokenizer.apply_chat_template(shown, tools=held, tokenize=False, add_generation_prompt=True)
    except (TemplateError, *REFUSALS) as error:
        raise UsageError(f"messages: the chat template refuses them: {str(error).splitlines()[0][:200]}") from None
    return list(tokenizer.encode(text, add_special_tokens=False))


def end_tokens_in(path: Path) -> frozenset[int]:
    """The `end_tokens` of the model in a directory, without loading it."""
    generation = path / "generation_config.json"
    config = parse(
        read_document(generation if generation.is_file() else path / "config.json"), str(path), long_integers=True
    )
    listed: Any = config.get("eos_token_id") if isinstance(config, dict) else None
    return _as_set(load_tokenizer(path).eos_token_id if listed is None else listed)


def _as_set(listed: int | Sequence[int] | None) -> frozenset[int]:
    return frozenset(() if listed is None else [listed] if isinstance(listed, int) else listed)


def _not_loaded(path: Path, error: Exception) -> MalformedError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return MalformedError(f"{path}: transformers cannot load it: {reason[:200]}; fetch or export it anew")


def describe_model(model: Any, path: Path, dtype: Dtype, version: Literal[1, 2] = 2) -> ModelCard:
    """The card of a loaded model whose tokenizer and template are in `path`."""
    state = model.state_dict(keep_vars=True)
    names = state if version == 1 else [names[0] for names in shared_tensors(state)]
    return describe(model.config, state_digest({name: to_tensor(state[name]) for name in names}), path, dtype, version)


# A language model that runs as a graph: a receipt can be verified on any engine.
#
# The graph of a pass is captured from the verifier's own model. The engine then needs only tensors and operators, and
# not the framework that captured them.

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
        # only a next step would read the cache
        without_cache = tuple(each for each in graph.outputs if not each.name.startswith("outputs.cache."))
        outputs = self.run(replace(graph, outputs=without_cache), given, self.engine)
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


def _hidden(layer: int) -> str:
    return f"outputs.hidden.{layer}"


def _rows(tensor: Tensor, first: int) -> Rows:
    return tensor.values()[0, first:].astype(np.float32)


# One layer of a language model as a separate graph, which reads the hidden states of the layer before.

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
    given = None if layer == 0 else values[_hidden(layer - 1)]
    wanted = values[_hidden(layer)]
    if wanted == given:
        raise UnavailableError(f"layer {layer} computes nothing")
    graph = verification_slice(captured.graph, () if given is None else (given,), (wanted,))
    ids = Tensor.of(np.asarray([tokens], np.int64))
    places = Tensor.of(np.arange(len(tokens), dtype=np.int64)[None])
    held = {**captured.bindings, IDS: ids, POSITIONS: places}
    read = {source.name for source in graph.sources} - {given}
    return LayerSlice(graph, given, {name: held[name] for name in sorted(read)})
