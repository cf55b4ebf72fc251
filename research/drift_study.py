"""How far honest children lie apart on stacks that really differ, by dtype: see `disputes/evidence/locate.py`.

    python -m research.drift_study docs/data/drift.json

Small models are called on the base stack in F32, F16 and BF16. On every stack a prover computes all values of a call,
and on every stack a challenger runs the children of several partitions from these values. For every value that differs:
its distance in roundoffs at its scale ÷ √k for a child of k operators, its share of |own| + rms(own), and the root mean
square of all differences ÷ rms(own). The summary holds how many values differ, and the largest of each.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.audits.opening import gather_whole, source_of_call
from tallystick.core.safetensors import read_state, write_state
from tallystick.disputes.evidence.locate import distance_in_units
from tallystick.disputes.evidence.traces import torch_engine
from tallystick.disputes.evidence.view import Cuts
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.programs.execution import execute
from tallystick.programs.operators.precision import FORMATS
from tallystick.recording.inference import record_inference
from tallystick.tally.calibration.stacks import BASE, enter, stack_named, variables_of
from tests.support.rehearsal import children_of

STACKS = ("base", "2 threads", "portable vector code", "MKL compatible", "oneDNN off", "all portable")
DTYPES = ("float32", "float16", "bfloat16")
WAYS = (1, 2, 4, 16)


def main() -> None:
    """Measure all pairs of stacks, or be one of the processes that do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        job, stack = asked.job
        enter(stack_named(stack))
        {"record": record, "prove": prove, "challenge": challenge}[job](asked.out, stack)
        return
    with tempfile.TemporaryDirectory(prefix="tally-drift-") as folder:
        start("record", BASE.name, Path(folder))
        for job in ("prove", "challenge"):
            for stack in STACKS:
                start(job, stack, Path(folder))
        rows = [row for stack in STACKS for row in json.loads((Path(folder) / f"{stack}.json").read_text())]
    found = {"machine": platform.platform(), "stacks": list(STACKS), "models": list(models()), "dtypes": summary(rows)}
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


def start(job: str, stack: str, folder: Path) -> None:
    """Do a job in a process of its own, on a stack."""
    command = [sys.executable, "-m", "research.drift_study", str(folder), "--job", job, stack]
    subprocess.run(command, env={**os.environ, **variables_of(stack_named(stack))}, check=True)


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The number of values that differ, and the largest of each measure, by dtype."""
    found = {}
    for dtype in sorted({row["dtype"] for row in rows}):
        mine = [row for row in rows if row["dtype"] == dtype]
        largest = {name: max(row[name] for row in mine) for name in ("units_by_root_k", "share", "rms")}
        found[dtype] = {"differing": len(mine), **largest}
    return found


def record(folder: Path, _: str) -> None:
    """Two calls of every model in every dtype."""
    import torch

    for dtype in DTYPES:
        for name, (make, data) in models().items():
            torch.manual_seed(0)
            model = make().eval().to(getattr(torch, dtype))
            with torch.no_grad(), record_inference(model, folder / "calls" / f"{name} {dtype}"):
                for _call in range(2):
                    batch = data()
                    model(batch.to(getattr(torch, dtype)) if batch.is_floating_point() else batch)


def prove(folder: Path, stack: str) -> None:
    """All values of the second call of every model, as this stack computes them."""
    engine = torch_engine()
    for name, subject in subjects(folder):
        values, specs = dict(subject.bindings), subject.graph.specs()

        def watch(node: Any, _: Any, results: Any, values: Any = values, specs: Any = specs) -> None:
            pairs = zip(node.outputs, results, strict=True)
            values.update({ref: engine.unload(each, specs[ref].dtype) for ref, each in pairs if ref is not None})

        execute(subject.graph, subject.bindings, engine, watch)
        write_state(folder / f"{name}.{stack}.safetensors", values, durable=False)


def challenge(folder: Path, stack: str) -> None:
    """How far this stack's children lie from the values of all stacks."""
    rows: list[dict[str, Any]] = []
    for name, subject in subjects(folder):
        for path in sorted(folder.glob(f"{name}.*.safetensors")):
            rows.extend(compared(subject.graph, path))
    (folder / f"{stack}.json").write_text(json.dumps(rows))


def subjects(folder: Path) -> Iterator[tuple[str, Any]]:
    """The second call of every model."""
    for path in sorted((folder / "calls").iterdir()):
        yield path.name, source_of_call(gather_whole(InferenceDirectory(path)), 1)


def compared(graph: Any, path: Path) -> Iterator[dict[str, Any]]:
    """Every float that differs, of the children of several partitions, each run from the values in a file."""
    values, cuts, engine, size = read_state(path), Cuts(graph), torch_engine(), len(graph.nodes)
    for ways in sorted({*WAYS, size}):
        for low, high in children_of(0, size, ways) if ways > 1 else [(0, size)]:
            child = cuts.child(low, high)
            if child is None:
                continue
            own = execute(child, {each.name: values[each.name] for each in child.sources}, engine)
            floats = {ref: each for ref, each in own.items() if each.dtype in FORMATS}
            yield from filter(None, (row(values[ref], each, len(child.nodes)) for ref, each in floats.items()))


def row(claimed: Any, own: Any, operators: int) -> dict[str, Any] | None:
    """The measures of one value; `None` where it does not differ."""
    units = distance_in_units(claimed, own)
    if not units:
        return None
    theirs, ours = (each.values().astype(np.float64) for each in (claimed, own))
    with np.errstate(invalid="ignore"):
        off = np.where(np.isfinite(theirs) & np.isfinite(ours), theirs - ours, 0.0)
    scale = math.sqrt(float(np.mean(ours[np.isfinite(ours)] ** 2))) or 1.0
    return {
        "dtype": own.dtype,
        "units_by_root_k": units / math.sqrt(operators),
        "share": units * FORMATS[own.dtype].unit,
        "rms": math.sqrt(float(np.mean(off**2))) / scale,
    }


def models() -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Small models, each with what makes a batch for it."""
    import torch
    from torch import nn

    def transformer(layers: int, width: int, fused: bool) -> Callable[[], Any]:
        return lambda: Transformer(layers, width, fused)

    def tokens(high: int, *shape: int) -> Callable[[], Any]:
        return lambda: torch.randint(0, high, shape)

    class Block(nn.Module):
        def __init__(self, width: int, fused: bool) -> None:
            super().__init__()
            self.fused, self.heads = fused, 4
            self.read, self.give = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.read(self.first(x)).split(width, -1)
            q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in parts)
            x = x + self.give(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.second(x))))

        def attend(self, q: Any, k: Any, v: Any) -> Any:
            if self.fused:
                return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            mask = torch.full((q.shape[2],) * 2, float("-inf"), dtype=q.dtype).triu(1)
            return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask, -1) @ v

    class Transformer(nn.Module):
        def __init__(self, layers: int, width: int, fused: bool) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(64, width)
            self.blocks = nn.Sequential(*(Block(width, fused) for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

        def forward(self, ids: Any) -> Any:
            return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))))

    def network() -> Any:
        inner = (nn.Linear(16, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 32))
        return nn.Sequential(nn.Embedding(32, 16), *inner)

    def images() -> Any:
        convolutions = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2))
        return nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 10))

    return {
        "network": (network, tokens(32, 2, 6)),
        "2 layers": (transformer(2, 64, fused=False), tokens(256, 2, 32)),
        "2 layers, fused": (transformer(2, 64, fused=True), tokens(256, 2, 32)),
        "12 layers, fused": (transformer(12, 128, fused=True), tokens(256, 1, 48)),
        "CNN": (images, lambda: torch.randn(2, 3, 16, 16)),
    }


if __name__ == "__main__":
    main()
