"""Triton's interpreter as a backend for the CPU, as the kernels of vLLM's V2 runner need one."""

from __future__ import annotations

from types import SimpleNamespace


def let_triton_interpret() -> None:
    """Let vLLM take the interpreter for a backend of the CPU.

    Of top-k and top-p it then uses the form without Triton: the interpreter cannot run the kernel.
    """
    import triton.backends  # type: ignore[import-not-found]

    driver = SimpleNamespace(is_active=lambda: True)
    triton.backends.backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)
    import vllm.v1.sample.ops.topk_topp_sampler as filters  # type: ignore[import-not-found]

    filters.HAS_TRITON = False
