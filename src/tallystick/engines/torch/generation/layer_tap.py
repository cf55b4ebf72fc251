"""Records hidden states of a language model while it generates, and makes fingerprints of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import torch
from torch import nn

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.torch.tensors import to_tensor
from tallystick.formats import hidden_states
from tallystick.formats.fingerprints import PUBLIC_SEED, FingerprintSettings
from tallystick.formats.hidden_states import CommittedStates
from tallystick.formats.receipt import Fingerprint
from tallystick.verdicts.fingerprints import (
    direction_signs,
    encode_rows,
    encode_summaries,
    fingerprint_of,
    logit_entries,
    position_signs,
)

# Finds the modules that output hidden states in a language model of transformers: blocks and final norm.

NORM_NAMES: Final = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
Watch = Callable[[int, torch.Tensor], None]


def decoder_blocks(model: Any) -> list[nn.Module]:
    """The blocks in order; raises `UnavailableError` if the model does not have exactly one list of them."""
    count = model.config.num_hidden_layers
    lists = [part for part in _backbone(model).children() if isinstance(part, nn.ModuleList) and len(part) == count]
    if len(lists) != 1:
        raise UnavailableError(f"{type(model).__name__}: not built of one list of {count} blocks")
    return list(lists[0])


def final_norm(model: nn.Module) -> nn.Module:
    """The norm after the last block; raises `UnavailableError` if none has a known name."""
    for name, part in _backbone(model).named_children():
        if name in NORM_NAMES:
            return part
    raise UnavailableError(f"{type(model).__name__}: no final norm named {', '.join(NORM_NAMES)}")


@contextmanager
def watching_layers(model: nn.Module, layers: Collection[int], watch: Watch) -> Iterator[None]:
    """In every pass inside the block, call `watch` with layer number and hidden states [batch, rows, width].

    Layer 0 is the output of the first block; the last layer, numbered like the count of blocks, is the final norm.
    Raises `MalformedError` for another layer.
    """
    places = _places([*decoder_blocks(model), final_norm(model)], layers)
    handles = [
        place.register_forward_hook(lambda _module, _given, output, layer=layer: watch(layer, _states(output)))
        for layer, place in places.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _places(modules: Sequence[nn.Module], layers: Collection[int]) -> dict[int, nn.Module]:
    """The modules of `layers` in ascending order; raises `MalformedError` for a layer that does not exist."""
    wrong = [layer for layer in layers if not 0 <= layer < len(modules)]
    if wrong:
        raise MalformedError(f"layers: {wrong[0]} is not from 0 to {len(modules) - 1}")
    return {layer: modules[layer] for layer in sorted(layers)}


def _states(output: Any) -> torch.Tensor:
    """The hidden states in what a module returned."""
    states: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return states


def _backbone(model: nn.Module) -> nn.Module:
    found = getattr(model, getattr(model, "base_model_prefix", ""), model)
    return found if isinstance(found, nn.Module) else model


# Fingerprints of hidden states, and commitments to them, from tensors on any device.
#
# A projection takes one product with a cached matrix of signs per layer. One transfer moves the results of all layers
# to the host; hidden states stay on the device.

States = Mapping[int, torch.Tensor]
POSITIONS_AT_LEAST = 256
"""Signs of positions are drawn for a power of two of tokens, so that all lengths of answers share a few matrices."""


@torch.inference_mode()
def make_fingerprint(rows: States, settings: FingerprintSettings) -> Fingerprint:
    """The fingerprint of answer tokens, from the hidden states [tokens, d] they were chosen from, by layer.

    Raises:
        MalformedError: a layer is missing, or the layers have different numbers of tokens.
        UnavailableError: a hidden state is not finite or too large.
    """
    held = _rows_of(rows, settings.layers)
    tokens = len(held[0])
    if settings.method == "toploc":
        on_host = {layer: each.float().cpu().numpy() for layer, each in zip(settings.layers, held, strict=True)}
        return fingerprint_of(encode_rows(on_host, settings), tokens, settings)
    found = [_summarise(each, layer, settings) for layer, each in zip(settings.layers, held, strict=True)]
    numbers = torch.stack(found).cpu().numpy().astype(np.float64)
    data = encode_summaries(numbers[..., :-1], np.sqrt(numbers[..., -1]), settings)
    return fingerprint_of(data, tokens, settings)


@torch.inference_mode()
def logit_rows(logits: torch.Tensor, seed: str) -> torch.Tensor:
    """The rows of the layer behind the final norm, from logits [..., V] that no sampler has processed.

    Float32 [..., at most `ENTRIES_MAX`]: the entries of the vocabulary that `seed` draws, less their mean.
    """
    drawn = logits.index_select(-1, _entries(seed, logits.shape[-1], str(logits.device))).float()
    return drawn - drawn.mean(-1, keepdim=True)


def commit_states(rows: States, layers: Sequence[int], block: int, *, prompt: bool = False) -> CommittedStates:
    """The commitment to hidden states [rows, d] of `layers`, in their own dtype, copied to host memory.

    `prompt` says that the rows cover all fed tokens, not only the answer.
    """
    held = _rows_of(rows, tuple(layers))
    tensors = {layer: to_tensor(each).copy() for layer, each in zip(layers, held, strict=True)}
    return hidden_states.commit_states(tensors, layers, block, prompt=prompt)


def _rows_of(rows: States, layers: tuple[int, ...]) -> list[torch.Tensor]:
    missing = [layer for layer in layers if layer not in rows]
    if missing:
        raise MalformedError(f"layers: there are no hidden states of layer {missing[0]}")
    found = [rows[layer] for layer in layers]
    if any(each.ndim != 2 for each in found) or len({len(each) for each in found}) != 1:
        raise MalformedError("rows: not one row a token in every layer")
    return found


def _summarise(rows: torch.Tensor, layer: int, settings: FingerprintSettings) -> torch.Tensor:
    """The projected numbers of every block and its squared norm, float32[blocks, width + 1]."""
    tokens, size = rows.shape
    assert settings.seed is not None
    signs = _directions(settings.seed, layer, settings.width, size, str(rows.device))
    drawn = max(POSITIONS_AT_LEAST, 1 << (tokens - 1).bit_length())
    positions = _positions(settings.seed, layer, settings.width, drawn, str(rows.device))
    wide = rows.float()
    signed = torch.cat([(wide @ signs) * positions[:tokens], wide.square().sum(1, keepdim=True)], 1)
    padded = torch.nn.functional.pad(signed, (0, 0, 0, -tokens % settings.block))
    return padded.view(settings.blocks(tokens), settings.block, settings.width + 1).sum(1)


@lru_cache(maxsize=64)
def _entries(seed: str, vocabulary: int, device: str) -> torch.Tensor:
    return torch.tensor(logit_entries(seed, vocabulary), device=device)


@lru_cache(maxsize=256)
def _directions(seed: str, layer: int, width: int, size: int, device: str) -> torch.Tensor:
    return torch.from_numpy(direction_signs(seed, layer, width, size).astype(np.float32)).to(device)


@lru_cache(maxsize=256)
def _positions(seed: str, layer: int, width: int, tokens: int, device: str) -> torch.Tensor:
    return torch.from_numpy(position_signs(seed, layer, width, 0, tokens).astype(np.float32)).to(device)


# Records hidden states of a language model while it generates, and returns the rows of each answer afterwards.
#
# A hook appends the output of a block to a list. Of hidden states nothing is copied or moved, and no kernel is
# launched, before rows are requested. Of the logits, a sample of entries is copied in every pass: a whole row would
# take as much memory as fifty rows of hidden states.

AXIS: Final = 1
"""Hidden states are [batch, positions, width]."""


class LayerTap:
    """Keeps the outputs of the chosen layers in every pass inside the `with` block.

    Layer 0 is the output of the first block; the layer numbered like the count of blocks is the final norm. A pass over
    n positions gives n rows; a token is chosen from the last row of a pass. The layer behind the final norm is the
    logits: one row a pass, the last, by `seed`.

    With `prompt`, the rows of the prompt are kept too.

    Raises:
        MalformedError: a layer does not exist.
        UnavailableError: the model does not consist of blocks and a final norm.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Collection[int],
        *,
        seed: str = PUBLIC_SEED,
        prompt: bool = False,
    ) -> None:
        self.layers = tuple(sorted(set(layers)))
        modules = [*decoder_blocks(model), final_norm(model), model]
        self._seed, self._logits, self._first_block = seed, len(modules) - 1, modules[:1] if self.layers else []
        self._places = _places(modules, self.layers)
        self._keeps_prompt = prompt
        self._handles: list[Any] = []
        self._seen: dict[int, list[Any]] = {layer: [] for layer in self.layers}
        self._lengths: list[int] = []
        self._joined: dict[tuple[int, int], Mapping[int, torch.Tensor]] = {}

    def __enter__(self) -> Self:
        self._handles += [
            block.register_forward_hook(lambda _, __, output: self._lengths.append(_states(output).shape[AXIS]))
            for block in self._first_block
        ]
        self._handles += [place.register_forward_hook(self._hook(layer)) for layer, place in self._places.items()]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def passes(self) -> int:
        """The number of recorded passes."""
        return len(self._lengths)

    def clear(self) -> None:
        """Drop all recorded states."""
        for held in (*self._seen.values(), self._lengths):
            held.clear()
        self._joined.clear()

    def take(self) -> Mapping[int, torch.Tensor]:
        """The states [batch, positions, width] of the last pass by layer, of logits one row; drops all recorded states.

        For a custom generation loop in which the rows of the batch change. Raises `UnavailableError` if no pass was
        recorded.
        """
        self._check_whole()
        if self.layers and not self.passes:
            raise UnavailableError("no pass was seen")
        last = {layer: _states(seen[-1]) for layer, seen in self._seen.items()}
        self.clear()
        return last

    def rows(self, batch_row: int, count: int, fed: int | None = None) -> Mapping[int, torch.Tensor]:
        """The rows [count, width] by layer from which the `count` tokens of an answer were chosen.

        `fed` is the number of positions of the (padded) prompt, in one pass or several; by default those of the first
        pass. Raises `UnavailableError` if too few passes were recorded.
        """
        if not self.layers:
            return {}
        lengths = self._lengths
        start = _prompt_passes(lengths, fed) - 1
        if start + count > len(lengths):
            raise UnavailableError(f"{start + count} passes were asked for, and {len(lengths)} were seen")
        return {layer: states[batch_row, :count] for layer, states in self._join(start, lengths).items()}

    def prompt_rows(self, batch_row: int, tokens: int, fed: int | None = None) -> Mapping[int, torch.Tensor]:
        """The rows [tokens − 1, width] by layer of a prompt of `tokens` tokens without the last; left-padded.

        Of the prompt no logits are kept.

        Raises `UnavailableError` unless the tap keeps prompts and the whole prompt was fed.
        """
        if not self.layers:
            return {}
        lengths = self._lengths
        passes = _prompt_passes(lengths, fed)
        total = sum(lengths[:passes])
        if not self._keeps_prompt or total < tokens:
            raise UnavailableError(f"{tokens} rows of a prompt were asked for, and not all were kept")
        layers = [layer for layer in self.layers if layer != self._logits]
        fed_states = {layer: [*map(_states, self._seen[layer][:passes])] for layer in layers}
        whole = {layer: torch.cat(states, AXIS)[batch_row].detach() for layer, states in fed_states.items()}
        return {layer: states[total - tokens : total - 1] for layer, states in whole.items()}

    def _join(self, start: int, lengths: list[int]) -> Mapping[int, torch.Tensor]:
        """The last row of each pass from `start` on, [batch, passes, width] by layer; cached."""
        key = start, len(lengths)
        if key not in self._joined:
            self._check_whole()
            self._joined[key] = {
                layer: torch.cat([_states(each)[:, -1:] for each in seen[start:]], AXIS).detach()
                for layer, seen in self._seen.items()
            }
        return self._joined[key]

    def _check_whole(self) -> None:
        if any(len(seen) != len(self._lengths) for seen in self._seen.values()):
            raise UnavailableError("a pass broke off between two layers")

    def _hook(self, layer: int) -> Any:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            if layer == self._logits:
                logits = _states(getattr(output, "logits", output))[:, -1:].detach()
                output = logit_rows(logits, self._seed)
            self._seen[layer].append(output)

        return keep


def _prompt_passes(lengths: list[int], fed: int | None) -> int:
    """The number of passes, with `lengths` positions each, that a prompt of `fed` positions took."""
    if not lengths:
        raise UnavailableError("no pass was seen")
    seen = 0
    for number, length in enumerate(lengths, 1):
        seen += length
        if seen >= (lengths[0] if fed is None else fed):
            return number
    raise UnavailableError(f"{fed} positions of a prompt were asked for, and {seen} were seen")
