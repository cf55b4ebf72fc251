#!/usr/bin/env python3
"""Commit every catalogued fraud on the reference run, ask every audit about it, and write down what they say.

Usage: python -m research.falsifiability [--out docs] [--only ATTACK …]

Writes <out>/data/falsifiability.json and <out>/falsifiability.md; exits 1 if an answer is not the expected one. With
--only, these attacks on runs are made and asked about, and everything else is kept as it stands in the data.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from research.attacks.states import SHARE_OF_REACH
from research.attacks.training import PROVER_NONCE, SAMPLES
from research.falsifiability_page import SAMPLE_SIZES, OpeningRow, Row, page, undetermined
from tallystick.audits.policy import sample_steps
from tallystick.audits.tolerant import find_undetermined
from tallystick.core.digests import Digest, digest
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.training.trainer import Trainer
from tallystick.formats.data.step_program import batch_plan, classes, micro_batches, open_data
from tallystick.formats.store.run import RunDirectory
from tallystick.tally.attacks.catalogue import ATTACKS, AUDITS, Attack, Audit, Reference
from tallystick.tally.attacks.forging import read_anchor
from tests.support.attacks.examine import Answer, examine
from tests.support.attacks.openings.attack import JUDGES, Judge
from tests.support.attacks.openings.catalogue import OPENING_ATTACKS
from tests.support.attacks.openings.examine import examine_opening
from tests.support.attacks.openings.scene import STEP, Scene, train_opened
from tests.support.attacks.reference import (
    STEPS,
    STRIDE,
    reference_policy,
    stack_for,
    this_verifier_stack,
    train_reference,
)

NONCES = 1000
LOSS_BATCHES = 8
ALWAYS_SEEN = {"initial state", "first weights", "step graph of the recipe", "tokens of the corpus"}


def main() -> int:
    """Forge, ask, write; return 1 if anything came out otherwise than expected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--only", nargs="+", default=[], choices=list(ATTACKS), metavar="ATTACK")
    options = parser.parse_args()
    torch.set_num_threads(1)
    return add_rows(options.out, options.only) if options.only else write_all(options.out)


def write_all(out: Path) -> int:
    """Make every attack anew."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        honest: dict[Reference, Path] = {each: folder / f"honest-{each}" for each in get_args(Reference)}
        for reference, run in honest.items():
            train_reference(run, reference)
        rows = list(examine_all(honest, folder, ATTACKS))
        scene = opened_scene(folder)
        openings = list(examine_openings(scene, folder))
        freedom = [freedom_of(honest[row.attack.reference], folder / row.attack.name) for row in undetermined(rows)]
        facts = circumstances(model_size(honest["recipe"])) | {
            "outcome_with_the_provers_nonce": prover_nonce_outcome(folder / "nonce-ground", honest["recipe"]),
            "gpt2_parameters": model_size(honest["gpt2"]),
            "share_of_reach": SHARE_OF_REACH,
            "loss_batches": LOSS_BATCHES,
            "opened_step": STEP,
            "opened_steps": scene.evidence.steps,
            "opened_operators": len(scene.program.graph.nodes),
        }
    write(out, facts, rows, openings, freedom)
    asked = len(rows) * len(AUDITS) + len(openings) * len(JUDGES)
    return say(rows, openings, asked)


def add_rows(out: Path, names: list[str]) -> int:
    """Make some attacks anew, and keep the rows of the others as they were committed."""
    held = json.loads((out / "data" / "falsifiability.json").read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        honest = {ATTACKS[each].reference: folder / f"honest-{ATTACKS[each].reference}" for each in names}
        for reference, run in honest.items():
            train_reference(run, reference)
        made = {row.attack.name: row for row in examine_all(honest, folder, names)}
    kept = {row["attack"]: row for row in held["rows"]}
    rows = [made.get(each) or read_row(kept[each]) for each in ATTACKS]
    openings = [read_opening(row) for row in held["openings"]]
    write(out, held["circumstances"], rows, openings, held["undetermined"])
    return say(list(made.values()), [], len(made) * len(AUDITS))


def read_row(row: dict[str, Any]) -> Row:
    """A row as it was committed."""
    shares = {int(size): share for size, share in row["seen_share_by_samples"].items()}
    answers: dict[Audit, Answer] = {audit: read_answer(row["answers"][audit]) for audit in AUDITS}
    return Row(ATTACKS[row["attack"]], answers, shares)


def read_opening(row: dict[str, Any]) -> OpeningRow:
    """A row of opened operators as it was committed."""
    answers: dict[Judge, Answer] = {judge: read_answer(row["answers"][judge]) for judge in JUDGES}
    return OpeningRow(OPENING_ATTACKS[row["attack"]], answers)


def read_answer(answer: dict[str, Any]) -> Answer:
    """An answer as it was committed."""
    segments = tuple((start, end) for start, end in answer["bad_segments"])
    return Answer(answer["outcome"], tuple(answer["checks"]), answer["detail"], segments)


def write(
    out: Path, facts: dict[str, Any], rows: list[Row], openings: list[OpeningRow], freedom: list[dict[str, Any]]
) -> None:
    """Write the data and the page."""
    (out / "data").mkdir(parents=True, exist_ok=True)
    data = {
        "circumstances": facts,
        "rows": [row.to_json() for row in rows],
        "openings": [row.to_json() for row in openings],
        "undetermined": freedom,
    }
    (out / "data" / "falsifiability.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    (out / "falsifiability.md").write_text("\n".join(page(facts, rows, openings, freedom)) + "\n")


def say(rows: list[Row], openings: list[OpeningRow], asked: int) -> int:
    """Print what was asked; 1 if an answer was not the expected one."""
    wrong = [row.attack.name for row in rows if not row.as_expected]
    wrong += [row.attack.name for row in openings if not row.as_expected]
    print(f"{len(rows)} runs and {len(openings)} openings, asked {asked} times; not as expected: {wrong or 'none'}")
    return 1 if wrong else 0


def examine_all(honest: dict[Reference, Path], folder: Path, names: Iterable[str]) -> Iterator[Row]:
    """Forge each attack of `names` and ask all audits."""
    kept = {reference: RunDirectory(run).claim().identity for reference, run in honest.items()}
    for name in names:
        attack = ATTACKS[name]
        stack = stack_for(honest[attack.reference], attack.reference)
        run, claim = folder / name, kept[attack.reference]
        attack.forge(honest[attack.reference], run)
        answers = {audit: examine(run, audit, reference_policy(), claim, nonce(0), stack) for audit in AUDITS}
        yield Row(attack, answers, seen_shares(run, answers))
        print(f"{name}: {'as expected' if all_meet(attack, answers) else 'NOT AS EXPECTED'}", file=sys.stderr)


def opened_scene(folder: Path) -> Scene:
    """The run whose step is opened, trained and opened."""
    train_opened(folder / "opened")
    return Scene.of(folder / "opened", folder / "honest-openings")


def examine_openings(scene: Scene, folder: Path) -> Iterator[OpeningRow]:
    """Forge each opening and judge it in every way."""
    for name, attack in OPENING_ATTACKS.items():
        attack.forge(scene, folder / name)
        row = OpeningRow(attack, {judge: examine_opening(folder / name, judge, scene.run) for judge in JUDGES})
        yield row
        print(f"{name}: {'as expected' if row.as_expected else 'NOT AS EXPECTED'}", file=sys.stderr)


def freedom_of(honest: Path, forged: Path) -> dict[str, Any]:
    """What a forger achieves who moves only weights that no replay determines."""
    spec = RunDirectory(honest).spec()
    assert spec.recipe is not None  # both follow a recipe
    states = [read_anchor(RunDirectory(run), STEPS) for run in (honest, forged)]
    before, dtype = read_anchor(RunDirectory(forged), STEPS - STRIDE), spec.recipe.training.dtype
    decay = spec.recipe.optimizer.betas[1]
    found = find_undetermined(states[1], dtype, before, decay)
    names = [name for name in states[0] if name.startswith("weights.")]
    move = max(float(np.abs(states[0][name].values() - states[1][name].values()).max()) for name in names)
    count = sum(states[0][name].values().size for name in names)
    losses = [mean_loss(honest, state) for state in states]
    return {
        "precision": dtype,
        "undetermined": sum(int(mask.sum()) for mask in found.values()),
        "parameters": count,
        "move_max": move,
        "learning_rate": spec.recipe.optimizer.learning_rate,
        "loss_honest": losses[0],
        "loss_forged": losses[1],
    }


def mean_loss(run: Path, state: Mapping[str, Tensor]) -> float:
    """The mean loss of a state over the first batches of its run."""
    spec = RunDirectory(run).spec()
    assert spec.recipe is not None  # see `freedom_of`
    dataset = open_data(spec, RunDirectory(run).data_path)
    plan, losses = batch_plan(spec, dataset), []
    for step in range(1, LOSS_BATCHES + 1):
        trainer = Trainer(spec.recipe, classes(spec))
        trainer.restore(state)
        losses.append(trainer.step(micro_batches(spec.recipe, dataset, plan.indices(step))).loss)
    return sum(losses) / len(losses)


def all_meet(attack: Attack, answers: dict[Audit, Answer]) -> bool:
    """Whether every answer is the expected one."""
    return all(answer.meets(attack.expected(audit)) for audit, answer in answers.items())


def seen_shares(run: Path, answers: dict[Audit, Answer]) -> dict[int, float]:
    """Share of nonces whose sample holds a step of a segment that does not replay, by the size of the sample."""
    exact, bad = answers["exact"], answers["full"].bad_segments
    if answers["screens"].outcome != "accepted" or ALWAYS_SEEN & set(exact.checks):
        return dict.fromkeys(SAMPLE_SIZES, 1.0)
    if exact.outcome != "rejected":
        return dict.fromkeys(SAMPLE_SIZES, 0.0)
    claim = RunDirectory(run).claim().identity
    return {size: sum(hits(claim, trial, size, bad) for trial in range(NONCES)) / NONCES for size in SAMPLE_SIZES}


def hits(claim: Digest, trial: int, size: int, bad: tuple[tuple[int, int], ...]) -> bool:
    """Whether the sample of one nonce holds a step of a bad segment."""
    sampled = sample_steps(nonce(trial), claim, STEPS, size)
    return any(start < step <= end for step in sampled for start, end in bad)


def nonce(trial: int) -> bytes:
    """The nonces of this script can be repeated; those of an audit are drawn."""
    return bytes.fromhex(digest("nonce", trial.to_bytes(8, "big")).removeprefix("sha256:"))


def prover_nonce_outcome(run: Path, honest: Path) -> str:
    """What an exact audit says that takes the nonce for which the claim was ground."""
    kept = RunDirectory(honest).claim().identity
    return examine(run, "exact", reference_policy(SAMPLES), kept, PROVER_NONCE, this_verifier_stack()).outcome


def model_size(honest: Path) -> int:
    """The number of parameters of the reference model."""
    spec = RunDirectory(honest).spec()
    assert spec.recipe is not None  # a reference run by a recipe
    trainer = Trainer(spec.recipe, classes(spec))
    return sum(parameter.numel() for parameter in trainer.model.parameters())


def circumstances(parameters: int) -> dict[str, Any]:
    """On what the table was made."""
    here = describe_environment("cpu")
    return {
        "machine": f"{here.cpu}, {here.threads} thread",
        "python": platform.python_version(),
        "torch": here.torch,
        "parameters": parameters,
        "steps": STEPS,
        "anchor_stride": STRIDE,
        "nonces": NONCES,
    }


if __name__ == "__main__":
    sys.exit(main())
