"""A stub of the documented interfaces of vLLM, as far as the plugin uses them; written anew from their description."""

from __future__ import annotations

from vllm.engine import LLM, SamplingParams, config

__all__ = ["LLM", "SamplingParams", "config"]
