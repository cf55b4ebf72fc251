"""The plugin that vLLM loads in each of its processes (entry point `vllm.general_plugins`)."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

LOG: Final = logging.getLogger("tallystick.vllm")
METHODS: Final = ("apply", "is_argmax_invariant", "update_state", "validate_params")


@cache
def register() -> bool:
    """Log that the plugin is loaded; return whether this vLLM has the interface it needs. Later calls do nothing."""
    is_known = has_interface()
    state = "requests ask for it with vllm_xargs {'tally': 1}" if is_known else "this vLLM is unknown to it"
    LOG.warning("tallystick's plugin is experimental; %s", state)
    return is_known


def has_interface() -> bool:
    """Whether vLLM has a `LogitsProcessor` with all of `METHODS`."""
    try:
        from tallystick.serving.vllm.interface import LogitsProcessor
    except ImportError:
        return False
    return all(hasattr(LogitsProcessor, name) for name in METHODS)
