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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from research.attacks.states import SHARE_OF_REACH
from research.attacks.training import PROVER_NONCE, SAMPLES
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
from tests.support.attacks.openings.attack import JUDGES, Judge, OpeningAttack
from tests.support.attacks.openings.catalogue import OPENING_ATTACKS
from tests.support.attacks.openings.examine import examine_opening
from tests.support.attacks.openings.scene import STEP, Scene, train_opened
from tests.support.attacks.reference import (
    HITTING,
    STEPS,
    STRIDE,
    reference_policy,
    stack_for,
    this_verifier_stack,
    train_reference,
)

OWN_LOOPS = ("loop", "checkpoint", "rows")
SAMPLE_SIZES = (1, 2, 4, 8)
NONCES = 1000
LOSS_BATCHES = 8
ALWAYS_SEEN = {"initial state", "first weights", "step graph of the recipe", "tokens of the corpus"}
CHECKS_SHOWN = 3
HEADINGS: dict[Audit, str] = {
    "screens": "screens alone",
    "exact": "exact, sample hits",
    "recipe": "the same, `--replay recipe`",
    "full": "`--full`",
    "claim": "`--claim` of the honest run",
    "tolerant": "`--tolerant`",
}

INTRODUCTION = """\
# What an audit catches, and what it does not

Written by `python -m research.falsifiability`; data in `data/falsifiability.json`. Every line of the table is a run
directory that was really forged (`tally attack NAME RUN OUT`) and really audited; `tests/tally/attacks/` does the same
and fails where an answer is another one.

{frauds} frauds and {controls} controls, each asked {audits} times; n = 1 forgery per line. Most are forgeries of one
reference run: Llama-style model, {parameters:,} parameters, byte tokens, AdamW, float32, {steps} steps, an anchor
every {anchor_stride}, with its step graph. The others, in tables of their own, forge a custom training loop, a GPT-2,
and opened operators; `corpus-…` forge a run on a corpus, `loop-start-…` one from a checkpoint, and `rows-…` one on
packed rows of conversations, all of which the audits have (`--corpus`, `--initial`), the screens not.
Machine: {machine}; torch {torch}, Python {python}. Prover and auditor ran on the same stack;
`--tolerant` judges by the shipped limits. How small a change on *another* stack can be and still be caught stands in
[tolerances.md](tolerances.md).

- **screens alone**: digests, roots, bindings, order of records, and the replay-free screens. No step is taken.
- **exact, sample hits**: bit-exact replay of sampled steps from the step graph, which has to be the one that the
  verifier's own libraries capture from the recipe. The sample is so large ({hitting} of {steps}) that no segment is
  missed; how often a smaller sample hits is shown below.
- **`--replay recipe`**: the same with a trainer built from the recipe; the graph is read, and not run.
- **`--full`**: every segment is replayed, and the tokens are derived from their source again.
- **`--claim` of the honest run**: an exact audit by somebody who kept the digest of the honest claim. It does not
  apply to a prover who cheated before publishing: then the forged claim *is* the published one, and the other columns
  decide. If the digests already differ, nothing is replayed.
- **`--tolerant`**: judged by limits on update-relative residuals instead of bits.

*Made anew* and *resealed* mean that roots, tiles, offsets, summaries and the claim were computed again over the
forged records, as a careful forger would. *Refused* is exit 4: the run is malformed and gets no verdict. A cell
names up to three of the checks that objected.
"""
SAMPLING = """
## How often a sample detects a fraud

A fraud that only a replay detects is found if a sampled step lies in a segment that does not replay. Share of {nonces}
nonces with which a sample of K of the {steps} steps does so; every fraud that is not listed is seen with all nonces or
with none.
"""
NONCE = """
These shares hold for nonces that the prover could not know. In `nonce-ground` the prover knew one, and varied the
claim until that nonce's sample of {ground_samples} steps missed the fraud. An audit with the prover's nonce says
**{outcome_with_the_provers_nonce}**. Draw the nonce after the claim is fixed, as `tally audit` does.

## What is not caught
"""
LOOPS = """
## Forgeries of a custom training loop

A language model of two layers, AdamW, {steps} steps, an anchor every {anchor_stride}. There is no recipe: the spec
names a step graph and the rules of the optimizer, records name batches and learning rates. `--replay recipe` replays
the graph, as there is nothing else.
"""
UNDETERMINED = """
## Weights that no replay determines, moved as far as possible

Adam makes steps of full size out of a gradient that is rounding only
([decision 8](decisions/0008-what-no-replay-determines.md)). A tolerant audit takes such weights from its own replay.
The forger finds them as the verifier does, and moves each to {share_of_reach:.0%} of what the reach screen allows, at
every anchor, in pairs that cancel in the public sketch. Of the two ways to move a pair it takes the one up the
gradient of the last batch. The model is a GPT-2 of {gpt2_parameters:,} parameters, because of its key biases, which
have no effect on the loss; in bfloat16 other weights are undetermined too. n = 1 run each, without a search
for a worse one.
"""
FREEDOM = """
| precision | undetermined, at the last anchor | largest move | in learning rates | loss, honest | loss, forged |
|-|-:|-:|-:|-:|-:|"""
FREED = """
The loss is the mean over the first {loss_batches} batches, at the last anchor. An exact audit
rejects both (the run in bfloat16 has no step graph and is replayed from its recipe). Judged operators show such a move
if records state the digest of every state (`weight-moved-behind-its-update`, below); without them nothing ties an
opening to an anchor, and its report says so. `--tolerant` accepts both: this is the size of what it accepts.

Rows of an embedding whose token does not occur for a long time are not among these weights. Their second moment
does fall below the threshold (after some 405 steps with β₂ = 0.95), but without any gradient it falls by exactly β₂ a
step: the replay determines these weights, and the audit judges them.
"""
OPENINGS = """
## Forgeries of opened operators

`tally open RUN --step S --operators` answers a verifier with every operator of one step, or with one of them. Each
line is an opening of step {opened_step} of a run of {opened_steps} ({opened_operators} operators, the digest of every
state in the records), really forged and really judged. *All is made anew*: record, transcript and claim are those of a
prover who cheated before publishing.

- **opening alone**: the verifier has only the opening.
- **with the prover's claim**: it also has the claim and the spec that this prover published.
- **with the honest claim**: it also has claim and spec of the honest run.

| attack | what is changed | opening alone | with the prover's claim | with the honest claim |
|-|-|-|-|-|"""
NOT_SEEN = """
Ways of judging that accept, or cannot decide, and why:
"""
NOT_TRIED = """
Not tried here, and not shown by any of these verdicts:

- who made the claim and when: claims carry no signature and no log entry yet;
- training before step 0 or after the last step that the claim does not mention;
- data that were poisoned, or chosen to lead to given weights, before they were committed to;
- a fraud below honest drift: `--tolerant` accepts it by design, once in every segment;
- what a step graph of a custom training loop does: without a recipe the graph is the program, and a verdict assumes it;
- faults of the auditor's own machine or libraries."""


@dataclass(frozen=True)
class Row:
    """One attack with the answers of all audits, and how often a sample of each size sees it."""

    attack: Attack
    answers: dict[Audit, Answer]
    seen_share: dict[int, float]

    @property
    def as_expected(self) -> bool:
        """Whether every audit said what it should."""
        return all(answer.meets(self.attack.expected(audit)) for audit, answer in self.answers.items())

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        answers = {
            audit: asdict(answer) | {"as_expected": answer.meets(self.attack.expected(audit))}
            for audit, answer in self.answers.items()
        }
        return {
            "attack": self.attack.name,
            "change": self.attack.change,
            "honest": self.attack.is_honest,
            "reference": self.attack.reference,
            "answers": answers,
            "why_unseen": {a: self.attack.expected(a).why for a in AUDITS if self.attack.expected(a).why},
            "seen_share_by_samples": {str(size): share for size, share in self.seen_share.items()},
        }


@dataclass(frozen=True)
class OpeningRow:
    """One attack on opened operators with the answers of all judges."""

    attack: OpeningAttack
    answers: dict[Judge, Answer]

    @property
    def as_expected(self) -> bool:
        """Whether every judge said what it should."""
        return all(answer.meets(self.attack.expected(judge)) for judge, answer in self.answers.items())

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        answers = {
            judge: asdict(answer) | {"as_expected": answer.meets(self.attack.expected(judge))}
            for judge, answer in self.answers.items()
        }
        return {"attack": self.attack.name, "change": self.attack.change, "answers": answers}


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


def undetermined(rows: list[Row]) -> list[Row]:
    """The attacks on what no replay determines."""
    return [row for row in rows if row.attack.name.startswith("undetermined-")]


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


def page(
    facts: dict[str, Any], rows: list[Row], openings: list[OpeningRow], freedom: list[dict[str, Any]]
) -> Iterator[str]:
    """The tables and how to read them."""
    frauds = [row for row in rows if not row.attack.is_honest]
    controls = [row for row in rows if row.attack.is_honest]
    counts = {"frauds": len(frauds), "controls": len(controls), "audits": len(AUDITS), "hitting": HITTING}
    yield INTRODUCTION.format(**facts, **counts)
    apart = undetermined(frauds)
    yield from table([row for row in frauds if row.attack.reference not in OWN_LOOPS and row not in apart])
    yield from ["", "## Controls: nothing is forged", ""]
    yield from table(controls)
    yield "\nA run that is trained again has the transcript root of the first one, bit for bit, and another claim: the"
    yield "claim also covers how long each step took."
    yield LOOPS.format(**facts)
    yield from table([row for row in frauds if row.attack.reference in OWN_LOOPS])
    yield UNDETERMINED.format(**facts)
    yield from table(apart)
    yield FREEDOM
    yield from (free(each) for each in freedom)
    yield FREED.format(**facts)
    yield OPENINGS.strip("\n").format(**facts)
    yield from opened(openings)
    yield SAMPLING.format(**facts, ground_samples=SAMPLES)
    yield from shares(rows)
    yield NONCE.format(**facts, ground_samples=SAMPLES)
    yield from unseen(frauds)
    yield NOT_TRIED


def free(each: dict[str, Any]) -> str:
    """One line about what a forger achieves."""
    share = each["undetermined"] / each["parameters"]
    rates = each["move_max"] / each["learning_rate"]
    return (
        f"| {each['precision']} | {each['undetermined']:,} of {each['parameters']:,} ({share:.2%}) | "
        f"{each['move_max']:.3f} | {rates:.1f} | {each['loss_honest']:.6f} | {each['loss_forged']:.6f} |"
    )


def opened(rows: list[OpeningRow]) -> Iterator[str]:
    """One line for each opening, and why some are accepted."""
    for row in rows:
        cells = (cell(row.answers[judge]) for judge in JUDGES)
        yield f"| `{row.attack.name}` | {row.attack.change} | " + " | ".join(cells) + " |"
    yield NOT_SEEN
    for row in (row for row in rows if not row.attack.is_honest):
        expected = {judge: row.attack.expected(judge) for judge in JUDGES}
        for outcome, why in dict.fromkeys((e.outcome, e.why) for e in expected.values() if e.why):
            yield f"- **{outcome}** `{row.attack.name}`: {why}."


def table(rows: list[Row]) -> Iterator[str]:
    """One line for each run."""
    yield "| attack | what is changed | " + " | ".join(HEADINGS[audit] for audit in AUDITS) + " |"
    yield "|-|-|" + "-|" * len(AUDITS)
    for row in rows:
        cells = (cell(row.answers[audit]) for audit in AUDITS)
        yield f"| `{row.attack.name}` | {row.attack.change} | " + " | ".join(cells) + " |"


def cell(answer: Answer) -> str:
    """What one audit said, in a cell."""
    if answer.outcome != "rejected":
        return answer.outcome
    more = len(answer.checks) - CHECKS_SHOWN
    return "**rejected**: " + ", ".join(answer.checks[:CHECKS_SHOWN]) + (f" +{more}" if more > 0 else "")


def shares(rows: list[Row]) -> Iterator[str]:
    """How often small samples see what only a replay can see."""
    yield "| attack | steps that do not replay | " + " | ".join(f"K = {size}" for size in SAMPLE_SIZES) + " |"
    yield "|-|-|" + "-:|" * len(SAMPLE_SIZES)
    for row in rows:
        if any(0 < share < 1 for share in row.seen_share.values()):
            bad = ", ".join(f"{start + 1}–{end}" for start, end in row.answers["full"].bad_segments)
            cells = " | ".join(f"{row.seen_share[size]:.3f}" for size in SAMPLE_SIZES)
            yield f"| `{row.attack.name}` | {bad} | {cells} |"


def unseen(frauds: list[Row]) -> Iterator[str]:
    """What no replay can see, and what single audits cannot."""
    others = tuple(audit for audit in AUDITS if audit != "claim")
    invisible = [row for row in frauds if all(row.attack.expected(each).outcome == "accepted" for each in others)]
    yield "No audit sees these unless somebody kept the digest of the honest claim:\n"
    yield from (f"- `{row.attack.name}`: {row.attack.expected('exact').why}." for row in invisible)
    yield "\nAudits that accept one of the others, or cannot decide, and why:\n"
    for (outcome, why), cases in reasons([row for row in frauds if row not in invisible]).items():
        audits = " · ".join(HEADINGS[audit] for audit in AUDITS if any(audit == case[0] for case in cases))
        names = ", ".join(dict.fromkeys(f"`{name}`" for _, name in cases))
        yield f"- {audits}: **{outcome}** {names}. {why[0].upper()}{why[1:]}."


def reasons(rows: list[Row]) -> dict[tuple[str, str], list[tuple[Audit, str]]]:
    """The audits that do not reject, with the attack, by outcome and reason."""
    found: dict[tuple[str, str], list[tuple[Audit, str]]] = {}
    for audit in AUDITS:
        for row in rows:
            expected = row.attack.expected(audit)
            if expected.outcome in ("accepted", "inconclusive"):
                found.setdefault((expected.outcome, expected.why), []).append((audit, row.attack.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
