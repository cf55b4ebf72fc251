"""The interface of custom logits processors of the V2 model runner, as its docstrings describe it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class LogitsContext:
    """The slot of each row of a pass, and the number of tokens of its request."""

    idx_mapping_np: Any
    seq_lens_upper_bound_np: Any


class LogitsProcessor(ABC):
    """Changes logits of a batch before a token is drawn; requests are known by their slots."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        """Keep what stays constant."""
        return

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise `ValueError` for parameters of no sense; by default all make sense."""
        return

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Whether this processor changes logits of the request that enters a slot."""
        return True

    @abstractmethod
    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor: ...
