"""Python runs this file at its start where its folder is on the path of modules: in all processes of a server."""

from __future__ import annotations

import sys

if any("vllm" in word or "spawn_main" in word for word in sys.orig_argv):
    from triton_interpreter import let_triton_interpret  # type: ignore[import-not-found]

    let_triton_interpret()
