"""What a pass knows of its batch while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class AttentionMetadata:
    """Where the positions of each request begin, and the end of the last."""

    query_start_loc: torch.Tensor


@dataclass
class ForwardContext:
    """Metadata by layer name."""

    attn_metadata: dict[str, Any] = field(default_factory=dict)


_context = ForwardContext()


def get_forward_context() -> ForwardContext:
    """That of the pass under way."""
    return _context
