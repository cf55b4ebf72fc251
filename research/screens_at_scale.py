#!/usr/bin/env python3
"""Ask every screen about honest and forged states of 10⁶ to 10⁹ weights, and write the figures down.

Usage: python -m research.screens_at_scale [--elements N ...] [--folder DIR] [--out docs]

Writes <out>/data/screens.json and <out>/screens.md. The states lie in files that are mapped into memory, 20 bytes a
weight: two neighbouring anchors of AdamW, made block by block with the optimizer of PyTorch, and one step of SGD by the
same gradients. 10⁹ weights take 20 GB of disk and about half an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tallystick.core.tensors import Tensor
from tallystick.engines.torch.training.trainer import Sketcher
from tallystick.formats.records import decode_sketch
from tallystick.tally.calibration.stacks import machine
from tallystick.verdicts.distances import Projection, Sketch
from tallystick.verdicts.exact import norm
from tallystick.verdicts.reach import norm_shortfall, reach_adamw, reach_sgd, second_moment_floor
from tallystick.verdicts.tolerance import Finding

BLOCK = 1 << 22
RATE, BETAS, DECAY, SCALE = 1e-3, (0.9, 0.999), 0.1, 0.02
SIZES = (10**6, 10**8, 10**9)
PROJECTION = Projection(bytes(32))
Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Row:
    """One screen, asked about one state: the distance it found and the one it allows."""

    elements: int
    screen: str
    state: str
    distance: float
    allowed: float
    agrees: bool


@dataclass
class Anchors:
    """Two neighbouring states of AdamW, one step apart, the gradient between them, and its norm as PyTorch sums it."""

    before: Array
    after: Array
    moments_before: Array
    moments_after: Array
    gradient: Array

    @classmethod
    def make(cls, folder: Path, elements: int) -> Anchors:
        """Take two steps of AdamW, block by block; the first state is the one after the first step."""
        names = ("before", "after", "moments_before", "moments_after", "gradient")
        arrays = [np.memmap(folder / f"{name}.bin", np.float32, "w+", shape=(elements,)) for name in names]
        for number, start in enumerate(range(0, elements, BLOCK)):
            part = slice(start, min(start + BLOCK, elements))
            for array, values in zip(arrays, two_steps(part.stop - part.start, number), strict=True):
                array[part] = values
        return cls(*arrays)


def two_steps(elements: int, seed: int) -> tuple[Array, ...]:
    """Weights and second moments after one and after two steps of `torch.optim.AdamW`, and the second gradient."""
    drawn = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(SCALE * torch.randn(elements, generator=drawn))
    optimizer = torch.optim.AdamW([weight], lr=RATE, betas=BETAS, weight_decay=DECAY)
    states: list[Array] = []
    for _ in range(2):
        weight.grad = torch.randn(elements, generator=drawn).pow_(3)  # heavy tails, as gradients have them
        optimizer.step()
        states += [weight.detach().numpy().copy(), optimizer.state[weight]["exp_avg_sq"].numpy().copy()]
    assert weight.grad is not None
    return states[0], states[2], states[1], states[3], weight.grad.numpy()


def rows(folder: Path, elements: int) -> Iterator[Row]:
    """Every screen, asked about the honest anchors and about forged ones."""
    anchors = Anchors.make(folder, elements)
    for screen, state, finding in (*continuity(anchors), *moments(anchors), *reaches(anchors), *descents(anchors)):
        yield Row(elements, screen, state, finding.distance, finding.allowed, finding.agrees)


def continuity(anchors: Anchors) -> Iterator[tuple[str, str, Finding]]:
    """The sketch as the recorder takes it and as binary32 sums it, and that of a state exchanged in part."""
    exact, size = PROJECTION.sketch({"w": Tensor.of(anchors.after)}), norm([Tensor.of(anchors.after)])

    def finding(sketch: Sketch) -> Finding:
        return Finding(float(np.linalg.norm(sketch - exact)) / size, PROJECTION.rounding(anchors.after.size))

    live = torch.from_numpy(anchors.after)
    recorded = PROJECTION.decode(decode_sketch(Sketcher(PROJECTION, {"w": live}).sketch()))
    yield "anchor continuity", "honest", finding(recorded)
    count = live.numel() // PROJECTION.width
    signs = torch.from_numpy(PROJECTION.signs("w", count)).float()
    summed = signs @ live[: count * PROJECTION.width].view(count, -1)
    yield "anchor continuity", "honest, summed in binary32", finding(summed.double().numpy())
    kept = np.array(anchors.after[: anchors.after.size // 1000])
    anchors.after[: kept.size] = np.random.default_rng(1).normal(0, SCALE, kept.size)
    forged = PROJECTION.sketch({"w": Tensor.of(anchors.after)})
    yield "anchor continuity", "one weight of 1,000 exchanged", finding(forged)
    anchors.after[: kept.size] = kept


def moments(anchors: Anchors) -> Iterator[tuple[str, str, Finding]]:
    """The second moments of the anchors, and with one of them reset."""
    yield "second moment", "honest", second_moment_floor(anchors.moments_before, anchors.moments_after, BETAS[1], 1)
    place = int(np.argmax(anchors.moments_before[:BLOCK]))
    kept, anchors.moments_after[place] = anchors.moments_after[place], 0.0
    yield "second moment", "one reset", second_moment_floor(anchors.moments_before, anchors.moments_after, BETAS[1], 1)
    anchors.moments_after[place] = kept


def reaches(anchors: Anchors) -> Iterator[tuple[str, str, Finding]]:
    """The weights of the anchors, and with one of them moved by twice what AdamW can move it."""
    yield "reach (AdamW)", "honest", _reach(anchors)
    kept, anchors.after[7] = anchors.after[7], anchors.before[7] + 20 * RATE
    yield "reach (AdamW)", "one weight moved too far", _reach(anchors)
    anchors.after[7] = kept


def _reach(anchors: Anchors) -> Finding:
    return reach_adamw(anchors.before, anchors.after, [RATE], BETAS, DECAY, first_step=2)


def descents(anchors: Anchors) -> Iterator[tuple[str, str, Finding]]:
    """One step of SGD, its gradient's norm as PyTorch sums it; and a step of another direction, far too long."""
    recorded = float(torch.linalg.vector_norm(torch.from_numpy(anchors.gradient)))
    for start in range(0, anchors.after.size, BLOCK):
        part = slice(start, start + BLOCK)
        anchors.after[part] = anchors.before[part] - np.float32(RATE) * anchors.gradient[part]
    yield "reach (SGD)", "honest", reach_sgd(anchors.before, anchors.after, [RATE], [recorded])
    stated = recorded / (2 * norm_shortfall(anchors.after.size))
    yield "reach (SGD)", "a step too long", reach_sgd(anchors.before, anchors.after, [RATE], [stated])


def page(found: list[Row], where: str) -> str:
    """The page over the figures."""
    lines = [
        "# The screens at size",
        "",
        "Written by `python -m research.screens_at_scale`; data in `data/screens.json`. A screen looks at",
        "neighbouring anchors without a replay. What it allows is derived from how much is summed, in which",
        "precision, and how often something is rounded (`verdicts/distances.py`, `reach.py`, `screens.py`). Each",
        f"line asks one screen about one synthetic state (n = 1 each): weights ~ N(0, {SCALE}²), gradients with heavy",
        "tails, one step of PyTorch's own AdamW and one of SGD.",
        f"Machine: {where}.",
        "",
        "| weights | screen | state | distance | allowed | answer |",
        "|-|-|-|-|-|-|",
    ]
    for row in found:
        answer = "agrees" if row.agrees else "**disagrees**"
        lines.append(
            f"| {row.elements:,} | {row.screen} | {row.state} | {row.distance:.3g} | {row.allowed:.3g} | {answer} |"
        )
    shortfall = ", ".join(f"{norm_shortfall(n):.3g} times at {n:,}" for n in sorted({row.elements for row in found}))
    return "\n".join(
        [
            *lines,
            "",
            "The norm of a gradient is recorded as the trainer sums it, and one running sum in binary32 stands still",
            "once it is 2²⁴ times as large as a square. The screen of SGD therefore lets a step be longer than the",
            f"recorded norm says: {shortfall}.",
            "These are weights of the largest tensor, because a trainer takes the norm of the norms of tensors.",
            "From 10⁸ in one tensor on it shows little; AdamW's screens lose nothing with size.",
            "",
        ]
    )


def main() -> None:
    """Measure, and write data and page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--folder", type=Path, help="where the states may lie (20 bytes a weight)")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    settings = parser.parse_args()
    found: list[Row] = []
    for elements in settings.elements:
        with tempfile.TemporaryDirectory(dir=settings.folder) as folder:
            found += rows(Path(folder), elements)
    where = f"{machine()}; torch {torch.__version__}, Python {platform.python_version()}"
    held = {"machine": where, "rows": [asdict(row) for row in found]}
    assert all(math.isfinite(row.distance) for row in found)
    (settings.out / "data" / "screens.json").write_text(json.dumps(held, indent=1) + "\n")
    (settings.out / "screens.md").write_text(page(found, where))


if __name__ == "__main__":
    main()
