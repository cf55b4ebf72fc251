"""Files as torch.profiler writes them, of a few calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE = 1_790_000_000_000_000_000
MAIN, BACKWARD = 4711, 4712


def operator(name: str, start: float, duration: float, dims: list[Any], thread: int = MAIN) -> dict[str, Any]:
    """A call of an operator on the processor, in microseconds."""
    return entry("cpu_op", name, start, duration, thread, {"Input Dims": dims, "External id": 1})


def span(name: str, start: float, duration: float) -> dict[str, Any]:
    """A span of `record_function`."""
    return entry("user_annotation", name, start, duration, MAIN, {})


def launch(correlation: int, start: float, thread: int = MAIN) -> dict[str, Any]:
    """The launch of a kernel."""
    return entry("cuda_runtime", "cudaLaunchKernel", start, 1, thread, {"correlation": correlation})


def gpu(correlation: int, start: float, duration: float, **more: Any) -> dict[str, Any]:
    """A kernel on GPU 0, stream 7."""
    given = {"device": 0, "stream": 7, "correlation": correlation, **more}
    return entry("kernel", f"sgemm_{correlation}", start, duration, 7, given)


def entry(
    category: str, name: str, start: float, duration: float, thread: int, arguments: dict[str, Any]
) -> dict[str, Any]:
    """One event of the file."""
    place = {"pid": 1, "tid": thread, "ts": start, "dur": duration}
    return {"ph": "X", "cat": category, "name": name, **place, "args": arguments}


def kineto(path: Path, entries: list[dict[str, Any]], **header: Any) -> Path:
    """A file of torch.profiler."""
    head = {"schemaVersion": 1, "host_name": "secret-host", "baseTimeNanoseconds": BASE, **header}
    path.write_text(json.dumps({**head, "traceEvents": entries, "traceName": "trace.json"}))
    return path


def small_step(at: float = 100.0) -> list[dict[str, Any]]:
    """The small graph of `tests.support.traces` as a processor runs it: `linear` is the product, with a view inside."""
    square = [4, 4]
    return [
        operator("aten::linear", at, 30, [square, square]),
        operator("aten::mm", at + 5, 20, [square, square]),
        operator("aten::resolve_conj", at + 6, 1, [square]),
        operator("aten::relu_", at + 40, 5, [square]),
        operator("aten::t", at + 50, 1, [square]),
        operator("aten::mm", at + 60, 10.5, [square, square]),
    ]
