#!/usr/bin/env python3
"""Commit every catalogued fraud on the reference run, ask every audit about it, and write down what they say.

Usage: python scripts/falsifiability.py [--out docs]

Writes <out>/data/falsifiability.json and <out>/falsifiability.md; exits 1 if an answer is not the expected one.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tallystick.attacks import ATTACKS, AUDITS, Attack, Audit
from tallystick.attacks.examine import Answer, examine
from tallystick.attacks.nonce_ground import PROVER_NONCE, SAMPLES
from tallystick.attacks.reference import (
    HITTING,
    RECIPE,
    STEPS,
    STRIDE,
    reference_policy,
    this_workplace,
    train_reference,
)
from tallystick.audits.sampling import sample_steps
from tallystick.commitments import Digest, digest
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.trainer import Trainer
from tallystick.store import RunDirectory
from tallystick.transcripts import Recipe, classes

SAMPLE_SIZES = (1, 2, 4, 8)
NONCES = 1000
CHECKS_SHOWN = 3
HEADINGS: dict[Audit, str] = {
    "screens": "screens alone",
    "exact": "exact, sample hits",
    "full": "`--full`",
    "claim": "`--claim` of the honest run",
    "tolerant": "`--tolerant`",
}

INTRODUCTION = """\
# What an audit catches, and what it does not

Written by `python scripts/falsifiability.py`; data in `data/falsifiability.json`. Every line of the table is a run
directory that was really forged (`tally attack NAME RUN OUT`) and really audited; `tests/attacks/` does the same
and fails where an answer is another one.

{frauds} frauds and {controls} controls, each asked {audits} times; n = 1 forgery per line. All are forgeries of one
reference run: Llama-style model, {parameters:,} parameters, byte tokens, AdamW, float32, {steps} steps, an anchor
every {anchor_stride}. Machine: {machine}; torch {torch}, Python {python}. Prover and auditor ran on the same stack;
`--tolerant` judges by the shipped limits. How small a change on *another* stack can be and still be caught stands in
[tolerances.md](tolerances.md).

- **screens alone**: digests, roots, bindings, order of records, and the replay-free screens. No step is taken.
- **exact, sample hits**: bit-exact replay of sampled steps, with a sample so large ({hitting} of {steps}) that no
  segment is missed. How often a smaller sample hits is shown below.
- **`--full`**: every segment is replayed, and the tokens are derived from their source again.
- **`--claim` of the honest run**: an exact audit by somebody who kept the digest of the honest claim. It says nothing
  about a prover who cheated before publishing: then the forged claim *is* the published one, and the other columns
  decide. Where the bytes disagree already, nothing is replayed.
- **`--tolerant`**: judged by limits on update-relative residuals instead of bits.

*Made anew* and *resealed* mean that roots, tiles, offsets, summaries and the claim were computed again over the
forged records, as a careful forger would. *Refused* is exit 4: the run is malformed and gets no verdict. A cell
names up to three of the checks that objected.
"""
SAMPLING = """
## How often a sample sees it

A fraud that only a replay shows is seen if a sampled step lies in a segment that does not replay. Share of {nonces}
nonces with which a sample of K of the {steps} steps does so; every fraud that is not listed is seen with all nonces or
with none.
"""
NONCE = """
These shares hold for nonces that the prover could not know. In `nonce-ground` the prover knew one, and varied the
claim until that nonce's sample of {ground_samples} steps missed the fraud. An audit with the prover's nonce says
**{outcome_with_the_provers_nonce}**. Draw the nonce after the claim is fixed, as `tally audit` does.

## What is not caught
"""
NOT_TRIED = """
Not tried here, and not shown by any of these verdicts:

- who made the claim and when: claims carry no signature and no log entry yet;
- training before step 0 or after the last step, on anything, that the claim does not mention;
- data that were poisoned, or chosen to lead to given weights, before they were committed to;
- a fraud below honest drift: `--tolerant` accepts it by design, once in every segment;
- an auditor's own machine or libraries that do not compute what they say."""


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
            "answers": answers,
            "why_unseen": {a: self.attack.expected(a).why for a in AUDITS if self.attack.expected(a).why},
            "seen_share_by_samples": {str(size): share for size, share in self.seen_share.items()},
        }


def main() -> int:
    """Forge, ask, write; return 1 if anything came out otherwise than expected."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs"))
    out = parser.parse_args().out
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        honest = Path(folder) / "honest"
        train_reference(honest)
        rows = list(examine_all(honest, Path(folder)))
        ground = prover_nonce_outcome(Path(folder) / "nonce-ground", honest)
        size = model_size(honest)
    facts = circumstances(size) | {"outcome_with_the_provers_nonce": ground}
    (out / "data").mkdir(parents=True, exist_ok=True)
    data = {"circumstances": facts, "rows": [row.to_json() for row in rows]}
    (out / "data" / "falsifiability.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    (out / "falsifiability.md").write_text("\n".join(page(facts, rows)) + "\n")
    wrong = [row.attack.name for row in rows if not row.as_expected]
    print(f"{len(rows)} runs, {len(rows) * len(AUDITS)} audits; not as expected: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


def examine_all(honest: Path, folder: Path) -> Iterator[Row]:
    """Forge each attack and ask all audits."""
    kept, workplace = RunDirectory(honest).claim().identity, this_workplace()
    for name, attack in ATTACKS.items():
        run = folder / name
        attack.forge(honest, run)
        answers = {audit: examine(run, audit, reference_policy(), kept, nonce(0), workplace) for audit in AUDITS}
        yield Row(attack, answers, seen_shares(run, answers))
        print(f"{name}: {'as expected' if all_meet(attack, answers) else 'NOT AS EXPECTED'}", file=sys.stderr)


def all_meet(attack: Attack, answers: dict[Audit, Answer]) -> bool:
    """Whether every answer is the expected one."""
    return all(answer.meets(attack.expected(audit)) for audit, answer in answers.items())


def seen_shares(run: Path, answers: dict[Audit, Answer]) -> dict[int, float]:
    """Share of nonces whose sample holds a step of a segment that does not replay, by the size of the sample."""
    exact, bad = answers["exact"], answers["full"].bad_segments
    if answers["screens"].outcome != "accepted" or "initial state" in exact.checks:
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
    return examine(run, "exact", reference_policy(SAMPLES), kept, PROVER_NONCE, this_workplace()).outcome


def model_size(honest: Path) -> int:
    """The number of parameters of the reference model."""
    spec = RunDirectory(honest).spec()
    trainer = Trainer(Recipe.from_json(RECIPE, "reference recipe"), classes(spec))
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


def page(facts: dict[str, Any], rows: list[Row]) -> Iterator[str]:
    """The table and how to read it."""
    frauds = [row for row in rows if not row.attack.is_honest]
    controls = [row for row in rows if row.attack.is_honest]
    counts = {"frauds": len(frauds), "controls": len(controls), "audits": len(AUDITS), "hitting": HITTING}
    yield INTRODUCTION.format(**facts, **counts)
    yield from table(frauds)
    yield from ["", "## Controls: nothing is forged", ""]
    yield from table(controls)
    yield "\nA run that is trained again has the transcript root of the first one, bit for bit, and another claim: the"
    yield "claim also covers how long each step took."
    yield SAMPLING.format(**facts, ground_samples=SAMPLES)
    yield from shares(rows)
    yield NONCE.format(**facts, ground_samples=SAMPLES)
    yield from unseen(frauds)
    yield NOT_TRIED


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
    invisible = [row for row in frauds if row.attack.seen_by == ("claim",)]
    yield "No audit sees these unless somebody kept the digest of the honest claim:\n"
    yield from (f"- `{row.attack.name}`: {row.attack.exact.why}." for row in invisible)
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
