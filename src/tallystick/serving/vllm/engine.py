"""The engine that a receipt from vLLM states, read from the worker that runs."""

from __future__ import annotations

from typing import Any, Literal

import torch

from tallystick.frameworks.torch.environment import describe_environment
from tallystick.serving.vllm.runners import Runner
from tallystick.serving.vllm.start import vllm_version
from tallystick.transcripts.receipt import EngineStatement

ENGINE = "vllm"


def describe_engine(runner: Runner, config: Any) -> EngineStatement:
    """Version, device, attention backends, kind of cache and environment of the process of a worker."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.device(runner.runner.device).type == "cuda" else "cpu"
    is_compiled = getattr(config.compilation_config.mode, "name", "NONE") != "NONE"
    way = f"{runner.name} runner, {'compiled' if is_compiled else 'eager'}"
    return EngineStatement(
        name=ENGINE,
        version=f"{vllm_version()}, torch {torch.__version__}, {way}",
        device=device,
        attention=runner.attention,
        kv_cache=_kv_cache(config),
        environment=describe_environment(device).stack_digest,
    )


def _kv_cache(config: Any) -> str:
    """`native` if keys and values are kept as they were computed, otherwise vLLM's name of the type."""
    stated = str(config.cache_config.cache_dtype)
    own = str(config.model_config.dtype).removeprefix("torch.")
    return "native" if stated in ("auto", own) else stated
