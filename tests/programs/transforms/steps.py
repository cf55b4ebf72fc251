"""Steps of small models with a cache, for the transform: one honest form, and changes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tallystick.core.canonical_json import decode
from tallystick.engines.torch.capture.model import CapturedModel, capture
from tallystick.engines.torch.generation.decoding import renamed
from tallystick.programs.admission import read_graph
from tallystick.programs.decoding import cache_specs, decode_sizes
from tallystick.programs.encoding import canonical, graph_bytes
from tallystick.programs.graph import Graph

PAST = 10
HEADS, WIDTH, VOCABULARY, PLACES = 2, 6, 16, 32
Held = Mapping[str, Mapping[str, torch.Tensor]]


class Attention(nn.Module):
    """One layer of attention with a cache; every method is one decision, to be changed by a test."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.tokens = nn.Embedding(VOCABULARY, HEADS * WIDTH)
            self.places = nn.Embedding(PLACES, HEADS * WIDTH)
            self.projected = nn.ModuleDict({part: nn.Linear(HEADS * WIDTH, HEADS * WIDTH) for part in "qkvo"})

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, cache: Held) -> dict[str, Any]:
        held = cache["0"]
        x = self.embedded(input_ids, position_ids, held["key"].shape[2])
        q, k, v = (self.heads(self.projected[part](x)) for part in "qkv")
        keys, values = self.joined(held["key"], k), self.joined(held["value"], v)
        mixed = self.attended(q, keys, values).transpose(1, 2).reshape(x.shape)
        x = self.finished(x + self.projected["o"](mixed), keys)
        return {"logits": x @ self.tokens.weight.T, "cache": {"0": self.kept(keys, values)}}

    def embedded(self, input_ids: torch.Tensor, position_ids: torch.Tensor, past: int) -> torch.Tensor:
        return self.tokens(input_ids) + self.places(position_ids)

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH).transpose(1, 2)

    def joined(self, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([old, new], 2)

    def attended(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.weights(q @ k.transpose(-1, -2) / math.sqrt(WIDTH)) @ v

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.softmax(-1)

    def finished(self, x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)

    def kept(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"key": keys, "value": values}


def example(past: int = PAST, batch: int = 1) -> dict[str, Any]:
    """Arguments of a step."""
    empty = torch.zeros(batch, HEADS, past, WIDTH)
    tokens = torch.zeros(batch, 1, dtype=torch.int64)
    return {"input_ids": tokens, "position_ids": tokens + past, "cache": {"0": {"key": empty, "value": empty.clone()}}}


def captured_attention(module: nn.Module, past: int = PAST, batch: int = 1) -> CapturedModel:
    """The graph of a step of it."""
    return named(capture(module.eval(), (), example(past, batch)))


def captured_step(module: nn.Module, like: Graph, past: int) -> CapturedModel:
    """The graph of a step that reads no places, with the caches of another."""
    held: dict[str, dict[str, torch.Tensor]] = {}
    for name, spec in cache_specs(like).items():
        _, _, layer, part = name.split(".")
        held.setdefault(layer, {})[part] = torch.zeros(*spec.shape[:2], past, spec.shape[3])
    tokens = torch.zeros(decode_sizes(like).batch, 1, dtype=torch.int64)
    found = named(capture(module, (), {"input_ids": tokens, "cache": held}))
    return replace(found, weights={name.replace(".model.", ".", 1): x for name, x in found.weights.items()})


def named(captured: CapturedModel) -> CapturedModel:
    """With the names of the interface of decode graphs."""
    document = decode(graph_bytes(captured.graph), "graph")
    assert isinstance(document, dict)
    return replace(captured, graph=read_graph(canonical(renamed(document)).encode()))
