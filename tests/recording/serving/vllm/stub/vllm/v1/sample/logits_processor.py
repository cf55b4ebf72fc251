"""The interface of custom logits processors, as documented under "Custom Logits Processors" and "Logits Processors"."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch


class MoveDirectionality(Enum):
    """Whether a row takes another's place, or both change places."""

    UNIDIRECTIONAL = auto()
    SWAP = auto()


@dataclass(frozen=True)
class BatchUpdate:
    """Rows removed, then added (index, params, prompt, answer), then moved, since the last step."""

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]]
    moved: Sequence[tuple[int, int, MoveDirectionality]]


class LogitsProcessor(ABC):
    """Changes logits of a batch before a token is drawn."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise `ValueError` for parameters of no sense; by default all make sense."""
        return

    @abstractmethod
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def is_argmax_invariant(self) -> bool: ...

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None: ...
