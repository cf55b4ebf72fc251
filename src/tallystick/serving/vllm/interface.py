"""The parts of vLLM that the plugin uses: `vllm.v1.sample.logits_processor` and `vllm.forward_context`."""

from __future__ import annotations

from typing import Any

from vllm.forward_context import get_forward_context  # type: ignore[import-not-found]
from vllm.v1.sample.logits_processor import (  # type: ignore[import-not-found]
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)


def query_starts() -> Any:
    """The first position of each request in the current pass, and the end of the last one: I[requests + 1].

    vLLM keeps them in the attention metadata, which is one object or one per layer.
    """
    metadata = get_forward_context().attn_metadata
    if isinstance(metadata, dict):
        metadata = next(iter(metadata.values()))
    return metadata.query_start_loc


__all__ = ["BatchUpdate", "LogitsProcessor", "MoveDirectionality", "query_starts"]
