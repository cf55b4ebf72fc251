#!/usr/bin/env python3
"""Serve answers honestly and in every dishonest way, verify them, and write `docs/inference.md` with data and plots.

Usage: python -m research.inference_study [--models FOLDER] [--out docs] [--only PART …] [--quick]

Models are trained into FOLDER unless they are there already. A part that is not run keeps its figures of before.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from research.inference.encoder import EncoderWork, separate_encoder
from research.inference.forgeries import forge_all, fuzz_all, scene_of
from research.inference.models import make_cast, make_model
from research.inference.observe import Work
from research.inference.page import render
from research.inference.parts import encoder_part, forgeries_part, stacks_part
from research.inference.plots import plot_curves, plot_tokens
from research.inference.separation import separate
from research.inference.stacks import CrossStudy, Engine, Subject, cross
from research.inference.tokens import decide_all
from tallystick.tally.calibration.stacks import machine

COMMAND = "python -m research.inference_study"
PROMPT, TOKENS, BATCH = 32, 256, 32
SHOWN = ("both, 8 bits × 7 of 32", "final, 8 bits × 15 of 32", "TOPLOC")


def main() -> None:
    """Run the parts that are asked for, and write the page anew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="few answers, to see that it runs")
    arguments = parser.parse_args()
    data = arguments.out / "data" / "inference.json"
    held: dict[str, Any] = json.loads(data.read_text()) if data.is_file() else {"machines": {}, "parts": {}}
    parts, machines = held["parts"], held["machines"]
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            parts[name] = PARTS[name](arguments.models or Path(folder), arguments.quick)
            machines[name] = machine()
            write(arguments.out, data, parts, machines)


def separation(dtype: str) -> Callable[[Path, bool], Any]:
    """Areas of fingerprints for a model promised in `dtype`."""

    def run(models: Path, quick: bool) -> Any:
        cast = make_cast(models, dtype)
        final = cast.promised.card.layers
        return list(separate(cast, Work(4 if quick else 64, PROMPT, TOKENS, (final // 3, final), BATCH)))

    return run


def tokens(dtype: str) -> Callable[[Path, bool], Any]:
    """Decisions of the sampler's test for a model promised in `dtype`."""

    def run(models: Path, quick: bool) -> Any:
        return list(decide_all(make_cast(models, dtype), Work(2 if quick else 32, PROMPT, TOKENS, (), BATCH)))

    return run


def encoder(_: Path, quick: bool) -> Any:
    """Fingerprints of MiniLM, an encoder, whose answers have no sampler."""
    return encoder_part(list(separate_encoder(EncoderWork(4 if quick else 64))))


def forgeries(models: Path, quick: bool) -> Any:
    """Every forgery of receipts, and mutants of them."""
    cast = make_cast(models)
    scene = scene_of(cast.promised, cast.text)
    return forgeries_part(list(forge_all(scene)), list(fuzz_all(scene, 100 if quick else 3000)))


def stacks(models: Path, quick: bool) -> Any:
    """Receipts made on every stack and verified on all the others."""
    demo = Subject(make_model("demo", models), "F32", engines=get_args(Engine))
    served = make_model("served", models)
    subjects = (demo,) if quick else (Subject(served, "F32"), Subject(served, "BF16"), demo)
    with tempfile.TemporaryDirectory() as folder:
        return stacks_part(cross(CrossStudy(Path(folder), subjects)))


PARTS: Mapping[str, Callable[[Path, bool], Any]] = {
    "separation F32": separation("F32"),
    "separation BF16": separation("BF16"),
    "tokens F32": tokens("F32"),
    "tokens BF16": tokens("BF16"),
    "encoder": encoder,
    "forgeries": forgeries,
    "stacks": stacks,
}


def named(machines: Mapping[str, str]) -> str:
    """The machine of all parts, or each machine with its parts where they were measured on several."""
    kinds = list(dict.fromkeys(machines.values()))
    if len(kinds) == 1:
        return kinds[0]
    return "; ".join(f"{kind} ({', '.join(part for part in machines if machines[part] == kind)})" for kind in kinds)


def write(out: Path, data: Path, parts: Mapping[str, Any], machines: Mapping[str, str]) -> None:
    """The page, its data and its plots."""
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text(
        json.dumps({"machines": machines, "parts": parts}, ensure_ascii=False, separators=(",", ":")) + "\n"
    )
    (out / "inference.md").write_text("\n".join(render(parts, COMMAND, named(machines))) + "\n")
    for name, entries in parts.items():
        kind, _, dtype = name.partition(" ")
        if kind == "separation":
            plot_curves(entries, SHOWN, out / f"inference_curves_{dtype.lower()}.png")
        if kind == "tokens":
            plot_tokens(entries, out / f"inference_tokens_{dtype.lower()}.png")


if __name__ == "__main__":
    main()
