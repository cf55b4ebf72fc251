"""Keeps the graph of a language model's pass, so that later verifications of its answers start without transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from tallystick.commitments.digests import digest
from tallystick.documents.files import write_atomically
from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.model import capture
from tallystick.frameworks.torch.capture.named_dimensions import capture_template
from tallystick.frameworks.torch.dtypes import dtype_name
from tallystick.frameworks.torch.generation.hidden_states import watching_layers
from tallystick.frameworks.torch.generation.kept_pass import (
    BUFFERS,
    GRAPH,
    LENGTH,
    PASS,
    ROWS,
    SIZE_MIN,
    VALUES,
    WEIGHTS,
    GraphPass,
    KeptGraph,
    KeptPass,
    KeptTensor,
    kept_place,
)
from tallystick.frameworks.torch.generation.language_models import Attention, TorchLanguageModel
from tallystick.frameworks.torch.generation.model_directory import shared_tensors
from tallystick.frameworks.torch.generation.model_files import read_card
from tallystick.frameworks.torch.tensors import from_tensor
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import write_state

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
    state = model.model.state_dict()
    bindings = capture(whole, (), _example(*EXAMPLE)).bindings
    values = {name: each for name, each in bindings.items() if _own_name(name) not in state}
    facts = KeptPass(
        graph=digest("blob", template.to_bytes()),
        values=state_digest(values),
        card=model.card,
        end_tokens=sorted(model.end_tokens),
        context_length=model.context_length,
        tensors=_tensors(model.model.state_dict(keep_vars=True)),
    )
    held = KeptGraph(facts, template, {name: from_tensor(each) for name, each in values.items()})
    _check_bits(model, GraphPass(held, state))
    place.mkdir(parents=True, exist_ok=True)
    write_atomically(place / GRAPH, template.to_bytes())
    write_state(place / VALUES, values)
    write_atomically(place / PASS, facts.to_bytes())


def _example(tokens: int, rows: int) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.ones(1, tokens, dtype=torch.int64), "rows": torch.arange(tokens - rows, tokens)}


def _own_name(name: str) -> str:
    return name.removeprefix(WEIGHTS).removeprefix(BUFFERS)


def _tensors(state: Mapping[str, torch.Tensor]) -> list[KeptTensor]:
    groups = ((names, state[names[0]]) for names in shared_tensors(state))
    return [KeptTensor(names=names, dtype=dtype_name(each.dtype), shape=list(each.shape)) for names, each in groups]


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
