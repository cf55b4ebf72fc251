"""Whether a model of transformers leaves its attention mask out: decided in an eager call, repeated in the export.

Where nothing is padded or packed, such a model asks attention to be causal and makes no mask, and fused attention then
rounds otherwise. While a model is exported it cannot read values, and always makes the mask. The step of a batch whose
mask or positions are decided otherwise is another program (`workloads.masks`). A decision about positions that are made
of those of the batch is not repeated, because another batch may be decided otherwise.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

MODULE: Final = "transformers.masking_utils"
PACKED: Final = "find_packed_sequence_indices"
LEFT_OUT: Final = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
"""Functions whose first argument says which tokens are padding; `None` where the batch does not say it."""

NOT_REPEATED: Final = False
"""Stands for a decision that is made anew: no function replaced here has it as a reason to make no mask."""


class MaskDecisions:
    """The decisions of one call of a model, in their order; `batch` are its arguments by name."""

    def __init__(self, batch: Mapping[str, Any]) -> None:
        self._positions: torch.Tensor | None = batch.get("position_ids")
        self._found: dict[str, deque[Any]] = {}
        self.asked: list[torch.Tensor] = []
        """The masks and positions about which something was decided."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is decided inside this context, in an eager call."""
        with _replaced(self._noting):
            yield

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Decide inside this context as before."""
        with _replaced(self._repeating):
            yield

    def _is_own(self, given: Any) -> bool:
        """Whether these positions are those of the batch."""
        own = self._positions
        return own is not None and isinstance(given, torch.Tensor) and torch.equal(given, own)

    def _noting(self, name: str, decide: Callable[..., Any]) -> Callable[..., Any]:
        kept = self._found.setdefault(name, deque())

        def noting(*args: Any, **kwargs: Any) -> Any:
            decision = decide(*args, **kwargs)
            given = args[0] if args else kwargs.get("padding_mask")
            is_own = self._is_own(given)
            kept.append(decision if name in LEFT_OUT or is_own or self._positions is None else NOT_REPEATED)
            if isinstance(given, torch.Tensor) and (name in LEFT_OUT or is_own):
                self.asked.append(given)
            return decision

        return noting

    def _repeating(self, name: str, decide: Callable[..., Any]) -> Callable[..., Any]:
        kept = self._found.get(name, deque())

        def repeating(*args: Any, **kwargs: Any) -> Any:
            decision = kept.popleft() if kept else NOT_REPEATED
            holds = decision is None if name == PACKED else decision is True
            return decision if holds else decide(*args, **kwargs)

        return repeating


@contextmanager
def _replaced(by: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Put other functions in the place of those that decide; nothing where transformers is not loaded."""
    module = sys.modules.get(MODULE)
    before = {name: found for name in (PACKED, *LEFT_OUT) if (found := getattr(module, name, None)) is not None}
    for name, decide in before.items():
        setattr(module, name, by(name, decide))
    try:
        yield
    finally:
        for name, decide in before.items():
            setattr(module, name, decide)
