"""The page of what fine-tuning a real model with a recorder takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

TITLES: Final = {"lora": "LoRA", "full": "All weights"}
HEAD: Final = """# Fine-tuning a real model: what recording and auditing take

Written by `python -m research.fine_tuning MODEL WORK`; the data are in `data/fine_tuning.json`. Each training and each
audit ran once, in a process of its own with one thread, one after the other; while all weights were trained and
audited, the other core of the machine was busy too. The batches are conversations of 64 tokens, one a step, in F32,
with the defaults of the Trainer of transformers (fused AdamW, clipping at 1, a falling learning rate).
[real_models.md](real_models.md) walks through it.

The first step of a recorded training holds the capture of the step graph, and the steps that the recorder replays for
itself and those before an anchor take longer; so the median of the steps tells what an ordinary step takes, and the
whole training what a recording costs.
"""


def render(held: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    return "\n".join([HEAD, *(line for kind in TITLES if kind in held for line in section(kind, held[kind]))]) + "\n"


def section(kind: str, found: Mapping[str, Any]) -> Iterator[str]:
    """One kind of training."""
    plain, recorded = found["plain"], found["recorded"]
    yield f"## {TITLES[kind]}\n"
    yield f"{found['model']}, {found['machine']}; {plain['trained']:,} of {plain['weights']:,} weights are trained.\n"
    yield "| training | steps | first step, s | median step, s | largest other, s | all steps, s | most memory, GB |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for name, each in (("without a recorder", plain), ("recorded", recorded)):
        begin, *others = each["seconds"]
        cells = [len(each["seconds"]), begin, median(others), max(others), sum(each["seconds"]), each["memory"] / 1e9]
        yield f"| {name} | {cells[0]} | " + " | ".join(f"{cell:.2f}" for cell in cells[1:]) + " |"
    sizes = [size for name, size in found["anchors"].items() if not name.endswith(".json")]
    first, later = sizes[0] / 1e6, max(sizes[1:]) / 1e6
    yield f"\n{len(sizes)} anchors: the first {first:,.1f} MB, the largest later one {later:,.1f} MB.\n"
    yield "| audit | verdict | steps replayed | s | s of processors | most memory, GB |"
    yield "|---|---|--:|--:|--:|--:|"
    for name, each in found["audits"].items():
        took = f"{each['seconds']:.1f} | {each['cpu']:.1f} | {each['memory'] / 1e9:.2f}"
        yield f"| {name} | {each['verdict']} | {each['replayed']} | {took} |"
    yield f"\nThe segment directory has {found['segment'] / 1e6:,.1f} MB."
    if "calibration" not in found:
        yield "The audit on another stack was not measured.\n"
        return
    yield "The limits for another stack are those of `tally calibrate-training LIMITS --run RUN --segments 2`;"
    yield f"this took {found['calibration']['seconds']:.0f} s. The other stack was this machine with AVX2 kernels.\n"
