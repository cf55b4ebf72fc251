"""What vLLM calls in each of its processes (entry point `vllm.general_plugins`); calling it again does nothing more."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

LOG: Final = logging.getLogger("tallystick.vllm")
METHODS: Final = ("apply", "is_argmax_invariant", "update_state", "validate_params")


@cache
def register() -> bool:
    """Say that the plugin is there, and whether this vLLM has the interface it was written for."""
    is_known = has_interface()
    state = "requests ask for it with vllm_xargs {'tally': 1}" if is_known else "this vLLM is unknown to it"
    LOG.warning("tallystick's plugin is experimental; %s", state)
    return is_known


def has_interface() -> bool:
    """Whether vLLM has the logits processors that the plugin knows."""
    try:
        from tallystick.serving.vllm.interface import LogitsProcessor
    except ImportError:
        return False
    return all(hasattr(LogitsProcessor, name) for name in METHODS)
