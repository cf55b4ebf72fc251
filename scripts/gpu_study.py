"""Holds the calibrated limits against hardware they have never seen: runs on a GPU, replayed on a CPU.

Needs a CUDA device; writes docs/data/gpu.json. Each run of the study is recorded on the GPU at two anchor strides,
audited exactly on that GPU, audited with the shipped limits on the CPU beside it, and once more after training with
a learning rate one percent higher than declared.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tallystick.attacks.dishonest import DishonestTrainer
from tallystick.audits import Policy, Report, Workplace, audit_training, draw_nonce
from tallystick.datasets import prepare
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.replayer import TorchReplayer
from tallystick.recorders import TrainingRun
from tallystick.store import RunDirectory
from tallystick.studies.recipes import Case, cases, corpus
from tallystick.transcripts import Recipe, Spec

STRIDES = (8, 32)
OUT = Path(__file__).resolve().parent.parent / "docs" / "data" / "gpu.json"


def on_gpu(case: Case, stride: int) -> Recipe:
    """The recipe of a case, trained on the GPU with an anchor every `stride` steps."""
    recipe = case.recipe()
    training = recipe.training.model_copy(update={"device": "cuda"})
    record = recipe.record.model_copy(update={"anchor_stride": stride})
    return recipe.model_copy(update={"training": training, "record": record})


def record(folder: Path, recipe: Recipe, practised: Recipe | None = None) -> RunDirectory:
    """Record a run; with `practised`, one that trains by another recipe than it declares."""
    run, source = RunDirectory(folder), folder.parent / "corpus.txt"
    source.write_text(corpus())
    commitment = prepare(recipe.data.kind, None if recipe.data.kind == "digits" else source, run.data_path)
    spec = Spec.of(recipe, commitment)
    TrainingRun(run, spec, DishonestTrainer(spec, practised) if practised else None).record()
    return run


def faster(recipe: Recipe) -> Recipe:
    """The recipe with a learning rate one percent higher."""
    optimizer = recipe.optimizer.model_copy(update={"learning_rate": 1.01 * recipe.optimizer.learning_rate})
    return recipe.model_copy(update={"optimizer": optimizer})


def audit(run: RunDirectory, device: str, mode: str) -> Report:
    """Replay the whole chain on `device`."""
    here = describe_environment("cuda" if device == "cuda" else "cpu")
    workplace = Workplace(here, lambda spec, dataset, plan: TorchReplayer(spec, dataset, plan, device))
    policy = Policy.from_json({"mode": mode, "full": True}, "policy")
    return audit_training(run, policy, draw_nonce(), workplace)


def worst(report: Report) -> dict[str, list[float]]:
    """For every tolerant check the finding that came closest to its limit, or went furthest beyond it."""
    found: dict[str, list[float]] = {}
    for finding in report.verdict.findings:
        share = finding.distance / finding.allowed if finding.allowed else float(finding.distance > 0)
        if share > found.get(finding.name, [0.0, 0.0, -1.0])[2]:
            found[finding.name] = [finding.distance, finding.allowed, share]
    return {name: values[:2] for name, values in found.items() if values[1] > 0}


def study(folder: Path) -> Iterator[dict[str, Any]]:
    """One row a case and stride."""
    for case in (case for case in cases(1) if not case.held_out):
        for stride in STRIDES:
            recipe = on_gpu(case, stride)
            honest = record(folder / f"{case.name}-{stride}" / "honest", recipe)
            cheat = record(folder / f"{case.name}-{stride}" / "cheat", recipe, faster(recipe))
            exact, tolerant, caught = (
                audit(honest, "cuda", "exact"),
                audit(honest, "cpu", "tolerant"),
                audit(cheat, "cpu", "tolerant"),
            )
            row = {
                "case": case.name,
                "stride": stride,
                "segments": len(exact.segments),
                "exact on the GPU": exact.verdict.outcome,
                "tolerant on the CPU": tolerant.verdict.outcome,
                "objections": sorted({finding.name for finding in tolerant.verdict.objections}),
                "learning rate +1 %": caught.verdict.outcome,
                "worst": worst(tolerant),
            }
            print(json.dumps({name: value for name, value in row.items() if name != "worst"}), flush=True)
            yield row


def main(out: Path) -> None:
    """Run the study and write it."""
    with tempfile.TemporaryDirectory() as folder:
        rows = list(study(Path(folder)))
    table = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__, "rows": rows}
    out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
