"""The parts of vLLM that the plugin uses: the interfaces of logits processors of both model runners.

Both packages are documented for processors of a user's own. Their base classes have different signatures, so one class
can serve both.
"""

from __future__ import annotations

from vllm.v1.sample.logits_processor import (  # type: ignore[import-not-found]
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)
from vllm.v1.worker.gpu.sample.logits_processor import (  # type: ignore[import-not-found]
    LogitsContext,
    LogitsProcessor as SlotLogitsProcessor,
)

__all__ = ["BatchUpdate", "LogitsContext", "LogitsProcessor", "MoveDirectionality", "SlotLogitsProcessor"]
