"""The plugin that vLLM loads in each of its processes (entry point `vllm.general_plugins`)."""

from __future__ import annotations

import logging
from functools import cache
from typing import Final

from tallystick.recording.serving.vllm.start import TRIED, is_tried, vllm_version

LOG: Final = logging.getLogger("tallystick.vllm")


@cache
def register() -> bool:
    """Say once if this vLLM is of a version that was not tried; return whether it was. Later calls do nothing.

    It is no refusal: what the plugin needs of vLLM is looked up when a server with receipts starts, and fails there.
    """
    found = vllm_version()
    if not is_tried(found):
        LOG.warning("tallystick: vLLM %s was not tried; tried: %s", found, ", ".join(f"{each}.*" for each in TRIED))
    return is_tried(found)
