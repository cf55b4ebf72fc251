"""Fingerprints of hidden states, and commitments to them, from tensors on any device.

A projection takes one product with a cached matrix of signs per layer. One transfer moves the results of all layers to
the host; hidden states stay on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch

from tallystick.errors import MalformedError
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.tolerances.fingerprints.logits import logit_entries
from tallystick.tolerances.fingerprints.making import encode_rows, encode_summaries
from tallystick.tolerances.fingerprints.settings import FingerprintSettings
from tallystick.tolerances.fingerprints.signs import direction_signs, position_signs
from tallystick.transcripts.receipt import Fingerprint
from tallystick.transcripts.states_opening import StatesOpening
from tallystick.workloads import hidden_states
from tallystick.workloads.fingerprints import fingerprint_of
from tallystick.workloads.hidden_states import CommittedStates

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


__all__ = ["CommittedStates", "StatesOpening", "commit_states", "logit_rows", "make_fingerprint"]
