"""The graph of a language model's pass: kept once, and then read in the place of the model.

The graph was captured from the verifier's own model, for these files and these versions. The weights
are read from the directory each time, and the card is made of what was read. All other work is done by the model of
transformers, which is loaded when it is first needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import digest
from tallystick.core.documents import Count, DigestText, Document
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.files import read_document, write_atomically
from tallystick.core.safetensors import StateFile, read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.engines.torch.capture.model import capture, capture_template
from tallystick.engines.torch.engine import PreparedGraph
from tallystick.engines.torch.generation.language_models import (
    Attention,
    TorchLanguageModel,
    check_tokens,
    load_language_model,
    load_tokenizer,
)
from tallystick.engines.torch.generation.layer_tap import watching_layers
from tallystick.engines.torch.generation.model_files import (
    TOKENIZER_BYTES_MAX,
    check_directory,
    read_card,
    shared_tensors,
    stored_tensors,
)
from tallystick.engines.torch.tensors import DTYPES as TORCH_DTYPES, dtype_name, from_tensor, to_tensor
from tallystick.formats.claims import Dtype, ModelCard
from tallystick.programs.templates import Template
from tallystick.verdicts.language_model import Prefill, Rows

RULES: Final = 1
"""Counts up when a kept graph would be read otherwise: those that were kept before are no longer used."""
LIBRARIES: Final = ("tallystick", "torch", "transformers")
PASS, GRAPH, VALUES = "pass.json", "graph.json", "values.safetensors"
GRAPH_BYTES_MAX: Final = 256 << 20
LENGTH, ROWS, SIZE_MIN = "length", "rows", 2
"""The sizes of a pass: the tokens fed and the rows of logits. PyTorch captures other graphs for 0 and 1."""
KEPT_SIZES: Final = 8
IDS, CHOSEN, LOGITS, HIDDEN = "inputs.input_ids", "inputs.rows", "outputs.logits", "outputs.hidden."
WEIGHTS, BUFFERS = "weights.model.", "buffers.model."


class KeptTensor(Document):
    """A tensor of the model: its names, the first of which names it in the state digest, and its form."""

    names: list[str]
    dtype: str
    shape: list[Count]


class KeptPass(Document):
    """What is kept of a model beside the graph of its pass; the `weights` of the card are not read."""

    graph: DigestText
    values: DigestText
    card: ModelCard
    end_tokens: list[Count]
    context_length: Count | None = None
    tensors: list[KeptTensor]


def kept_place(path: Path, dtype: Dtype, attention: Attention, wide: bool = False) -> Path:
    """Where the pass of the model in a directory is kept: named by its files without the weights, and by versions.

    With `wide` it is the pass in F32 over weights of 16 bits. Raises `UnavailableError` if configuration, tokenizer or
    weights are not there.
    """
    check_directory(path)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    files = (each for each in sorted(path.iterdir()) if each.is_file() and each.suffix != ".safetensors")
    entries: list[Json] = [[each.name, sha256(read_document(each, TOKENIZER_BYTES_MAX)).hexdigest()] for each in files]
    versions: list[Json] = [[name, metadata.version(name)] for name in LIBRARIES]
    named = sha256(encode([RULES, dtype, attention, wide, *versions, *entries])).hexdigest()
    return Path(cache, "tallystick", "passes", named)


def load_promised(path: Path, dtype: Dtype, attention: Attention = "sdpa", device: str = "cpu") -> TorchLanguageModel:
    """The model in a directory, by its kept pass where there is one; raises what `load_language_model` raises."""
    kept = read_kept(kept_place(path, dtype, attention)) if device == "cpu" else None
    state = None if kept is None else _read_weights(path, kept.facts.tensors)
    if kept is None or state is None:
        return load_language_model(path, dtype, attention, device)
    weights = state_digest({each.names[0]: to_tensor(state[each.names[0]]) for each in kept.facts.tensors})
    card = kept.facts.card.model_copy(update={"weights": weights})

    def whole() -> TorchLanguageModel:
        found = load_language_model(path, dtype, attention)
        if found.card != card:
            raise UnavailableError(f"{path}: its files changed while they were read")
        return found

    return KeptLanguageModel(path, card, attention, GraphPass(kept, state), whole)


@dataclass(frozen=True)
class KeptGraph:
    """A kept pass as it was read: its facts, its graph for all sizes, and what the graph reads beside the weights."""

    facts: KeptPass
    template: Template
    values: Mapping[str, torch.Tensor]


class GraphPass:
    """One pass over tokens by a kept graph, bound for the last few sizes."""

    def __init__(self, kept: KeptGraph, state: Mapping[str, torch.Tensor]) -> None:
        self.kept, self.state = kept, state
        self._bound = lru_cache(KEPT_SIZES)(self._bind)

    def reaches(self, tokens: int, rows: int) -> bool:
        """Whether there is a graph for so many tokens and rows of logits."""
        most = self.kept.template.dimensions[LENGTH][1]
        return SIZE_MIN <= rows <= tokens <= most

    def __call__(self, tokens: Sequence[int], first: int, layers: Collection[int]) -> Prefill:
        """The pass over `tokens`, which it `reaches`; raises `MalformedError` for a layer that does not exist."""
        wrong = [each for each in layers if not 0 <= each <= self.kept.facts.card.layers]
        if wrong:
            raise MalformedError(f"layers: {wrong[0]} is not from 0 to {self.kept.facts.card.layers}")
        wanted = tuple(f"{HIDDEN}{layer}" for layer in sorted(set(layers)))
        run, held = self._bound(len(tokens), len(tokens) - first, wanted)
        given = {IDS: torch.tensor([list(tokens)]), CHOSEN: torch.arange(first, len(tokens))}
        found = run({**held, **given})
        hidden = {int(name.removeprefix(HIDDEN)): _rows(found[name][0, first:]) for name in wanted}
        return Prefill(first, _rows(found[LOGITS][0]), hidden)

    def _bind(self, length: int, rows: int, hidden: Collection[str]) -> tuple[PreparedGraph, dict[str, torch.Tensor]]:
        whole = self.kept.template.bind(length=length, rows=rows)
        outputs = tuple(each for each in whole.outputs if each.name in {LOGITS, *hidden})
        graph = replace(whole, outputs=outputs)
        held = {each.name: self._value(each.name) for each in graph.sources if each.name not in {IDS, CHOSEN}}
        return PreparedGraph.of(graph, "cpu", ()), held

    def _value(self, name: str) -> torch.Tensor:
        own = self.state.get(_own_name(name))
        return self.kept.values[name] if own is None else own


class KeptLanguageModel(TorchLanguageModel):
    """The model of a directory with its pass from a kept graph: the same bits as the pass of transformers."""

    _attention: Attention
    _pass: GraphPass
    _load: Callable[[], TorchLanguageModel]

    def __init__(
        self, path: Path, card: ModelCard, attention: Attention, kept: GraphPass, load: Callable[[], TorchLanguageModel]
    ) -> None:
        held = {"directory": path, "card": card, "_attention": attention, "_pass": kept, "_load": load}
        for name, value in held.items():
            object.__setattr__(self, name, value)  # the base is frozen, and its `model` and `tokenizer` come later

    @cached_property
    def _whole(self) -> TorchLanguageModel:
        return self._load()

    @cached_property
    def model(self) -> Any:
        """The model of transformers, loaded when it is first used."""
        return self._whole.model

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers, loaded when it is first used."""
        return load_tokenizer(self._path)

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """The end tokens that the model had when its pass was kept; the files that state them are the same."""
        return frozenset(self._pass.kept.facts.end_tokens)

    @property
    def context_length(self) -> int | None:
        """The most places that the configuration states."""
        return self._pass.kept.facts.context_length

    def prefill(self, tokens: Sequence[int], first: int, layers: Collection[int] = ()) -> Prefill:
        """One pass with an empty cache; raises `MalformedError` for a token outside the vocabulary."""
        check_tokens(tokens, self.card.vocabulary)
        rows = len(tokens) - first
        return (self._pass if self._pass.reaches(len(tokens), rows) else self._whole.prefill)(tokens, first, layers)

    @cached_property
    def _wide(self) -> TorchLanguageModel:
        kept = read_kept(kept_place(self._path, self.card.dtype, self._attention, wide=True))

        def whole() -> TorchLanguageModel:
            found = self._whole.widened()
            assert found is not None  # only a model of 16 bits is widened
            return found

        if kept is None:
            return whole()
        state = {
            name: value.float() if value.is_floating_point() else value for name, value in self._pass.state.items()
        }
        return KeptLanguageModel(self._path, self.card, self._attention, GraphPass(kept, state), whole)

    @property
    def _path(self) -> Path:
        assert self.directory is not None
        return self.directory


def _own_name(name: str) -> str:
    return name.removeprefix(WEIGHTS).removeprefix(BUFFERS)


def read_kept(place: Path) -> KeptGraph | None:
    """What is kept at a place; None where nothing is, or where it is damaged."""
    try:
        facts = KeptPass.from_bytes(read_document(place / PASS, GRAPH_BYTES_MAX), PASS)
        graph, values = read_document(place / GRAPH, GRAPH_BYTES_MAX), read_state(place / VALUES)
        if (digest("blob", graph), state_digest(values)) != (facts.graph, facts.values):
            return None
        return KeptGraph(facts, Template.from_bytes(graph), {name: from_tensor(each) for name, each in values.items()})
    except (MalformedError, UnavailableError):
        return None  # the model of transformers does the work, as where nothing was kept


def _read_weights(path: Path, tensors: Sequence[KeptTensor]) -> dict[str, torch.Tensor] | None:
    """The tensors by each of their names; None where the files are not such as the pass was kept for."""
    try:
        with stored_tensors(path) as held:
            read = [(each, _read_tensor(each, held)) for each in tensors]
    except (MalformedError, UnavailableError):
        return None  # loading the model raises the error that names the file
    if any(value is None for _, value in read):
        return None
    return {name: value for each, value in read if value is not None for name in each.names}


def _read_tensor(wanted: KeptTensor, held: Mapping[str, StateFile]) -> torch.Tensor | None:
    """A tensor that stands in the files under one of its names, or under several with equal bytes."""
    stored = [held[name].tensor(name) for name in wanted.names if name in held]
    if not stored or any(each != stored[0] for each in stored[1:]) or list(stored[0].shape) != wanted.shape:
        return None
    value, dtype = from_tensor(stored[0]), TORCH_DTYPES[wanted.dtype]
    if value.dtype != dtype and not (value.is_floating_point() and dtype.is_floating_point):
        return None
    return value.to(dtype)


def _rows(states: torch.Tensor) -> Rows:
    found: Rows = states.float().numpy()
    return found


# The graph of a pass is kept, so that later verifications start without transformers.

AXES: Final = {"input_ids": {1: LENGTH}, "rows": {0: ROWS}}
LENGTH_MAX: Final = 1 << 17
EXAMPLE: Final = (11, 5)
TRIED: Final = (EXAMPLE, (2, 2), (31, 30), (200, 7))
"""Tokens and rows with which a kept pass has to give the bits of the model, those that the model has room for."""


class WholePass(nn.Module):
    """The pass over one sequence: logits of the chosen rows, and the hidden states of all layers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.layers = tuple(range(model.config.num_hidden_layers + 1))

    def forward(self, input_ids: torch.Tensor, rows: torch.Tensor) -> dict[str, Any]:
        """Returns `logits` [1, rows, V] and `hidden` states [1, length, width] by layer."""
        hidden: dict[str, torch.Tensor] = {}
        with watching_layers(self.model, self.layers, lambda layer, states: hidden.update({str(layer): states})):
            found = self.model(input_ids=input_ids, use_cache=False, logits_to_keep=rows)
        return {"logits": found.logits, "hidden": hidden}


def keep_pass(model: TorchLanguageModel, attention: Attention) -> Path:
    """Keep the graph of the pass, for 16 bits also the one in F32, in the user's cache folder; returns the place.

    Raises `UnavailableError` if the model cannot be captured, or if its graph gives other bits than the model.
    """
    path, dtype = model.directory, model.card.dtype
    if path is None or model.device != "cpu":
        raise UnavailableError("a pass is kept of a model that was loaded from a directory onto the CPU")
    if read_card(path, dtype) != model.card:
        raise UnavailableError(f"{path}: transformers converts the tensors of its files, so they are no kept pass's")
    wide = model.widened()
    if wide is not None:
        _keep(wide, kept_place(path, dtype, attention, wide=True))
    place = kept_place(path, dtype, attention)
    _keep(model, place)
    return place


def _keep(model: TorchLanguageModel, place: Path) -> None:
    whole, most = WholePass(model.model), model.context_length or LENGTH_MAX
    ranges = {LENGTH: (SIZE_MIN, most), ROWS: (SIZE_MIN, most)}
    template = capture_template(whole, _example(*EXAMPLE), AXES, ranges)
    state, own = model.model.state_dict(), model.model.state_dict(keep_vars=True)
    bindings = capture(whole, (), _example(*EXAMPLE)).bindings
    values = {name: each for name, each in bindings.items() if _own_name(name) not in state}
    facts = KeptPass(
        graph=digest("blob", template.to_bytes()),
        values=state_digest(values),
        card=model.card,
        end_tokens=sorted(model.end_tokens),
        context_length=model.context_length,
        tensors=[
            KeptTensor(names=names, dtype=dtype_name(own[names[0]].dtype), shape=list(own[names[0]].shape))
            for names in shared_tensors(own)
        ],
    )
    held = KeptGraph(facts, template, {name: from_tensor(each) for name, each in values.items()})
    _check_bits(model, GraphPass(held, state))
    place.mkdir(parents=True, exist_ok=True)
    write_atomically(place / GRAPH, template.to_bytes())
    write_state(place / VALUES, values)
    write_atomically(place / PASS, facts.to_bytes())


def _example(tokens: int, rows: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.ones(1, tokens, dtype=torch.int64), "rows": torch.arange(tokens - rows, tokens)}


def _check_bits(model: TorchLanguageModel, kept: GraphPass) -> None:
    draw, layers = torch.Generator().manual_seed(0), range(model.card.layers + 1)
    for count, rows in (each for each in TRIED if kept.reaches(*each)):
        tokens = torch.randint(model.card.vocabulary, (count,), generator=draw).tolist()
        native, found = model.prefill(tokens, count - rows, layers), kept(tokens, count - rows, layers)
        pairs = [("logits", native.logits, found.logits)]
        pairs += [(f"layer {layer}", native.hidden[layer], found.hidden[layer]) for layer in layers]
        other = next((name for name, one, two in pairs if not np.array_equal(one, two, equal_nan=True)), None)
        if other is not None:
            raise UnavailableError(f"the graph of the pass gives other bits than the model: {other} of {count} tokens")
