"""A tiny model of position-wise blocks in the form of vLLM's models."""

from __future__ import annotations

import torch
from torch import nn

VOCABULARY, WIDTH, LAYERS = 64, 16, 3


class Block(nn.Module):
    """Output and residual apart, to be added by the next."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        residual = hidden if residual is None else hidden + residual
        return torch.tanh(self.linear(residual)), residual


class Norm(nn.Module):
    """Adds, normalises, and gives the sum too."""

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = hidden + residual
        return total / total.norm(dim=-1, keepdim=True), total


class Model(nn.Module):
    """`model.embed`, `model.layers`, `model.norm`, and logits from chosen rows."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.model.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.model.norm = Norm()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        hidden, residual = self.model.embed(ids) + positions[:, None] * 0.01, None
        for block in self.model.layers:
            hidden, residual = block(hidden, residual)
        return self.model.norm(hidden, residual)[0]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.head(hidden_states) * 8
