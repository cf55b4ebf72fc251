"""Compares the batches of replayed steps with the rows that a spec names, and rows with the corpus they are of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.replay import SegmentReport
from tallystick.audits.sampling import sample_steps
from tallystick.datasets.rows import CommittedRows, leaves_of_batch, read_rows
from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.judging.findings import AGREES, DIFFERS, require
from tallystick.tensors.tensor import State
from tallystick.workloads.names import BATCH
from tallystick.workloads.verifier_stack import VerifierStack

ROWS_MAX = 64
"""How many rows of the replayed steps, drawn with the nonce, are rendered and tokenized again."""


def check_rows(
    evidence: CheckedRun, reports: Sequence[SegmentReport], nonce: bytes, stack: VerifierStack
) -> Iterable[str]:
    """Check the batches of the replayed steps into the findings; yields what stays open."""
    steps = [step for each in reports for step in range(each.segment.start + 1, each.segment.end + 1)]
    rows: CommittedRows | None = None
    with evidence.findings.check("rows"):
        rows = read_rows(evidence.run.data_path)
        require(rows.recipe.identity == evidence.spec.rows, "data/rows.json is not the rows recipe of the spec")
    if rows is None or not steps or evidence.findings.rejected:
        return
    unnamed = [step for step in steps if evidence.step(step).batch.indices is None]
    if unnamed:
        yield f"rows: the batches of {len(unnamed)} of {len(steps)} replayed steps name no rows (step {unnamed[0]})"
    named = [step for step in steps if step not in set(unnamed)]
    for step in named:
        with evidence.findings.check("rows", f"step {step}"):
            _check_step(evidence, rows, step)
    if evidence.findings.rejected or unnamed:
        return
    what = f"{len(steps):,} replayed batches are rows of {rows.recipe.identity}, of the corpus {rows.recipe.corpus}"
    evidence.shown.append(f"data: the {what}")
    yield from _derive(evidence, rows, named, nonce, stack)


def _check_step(evidence: CheckedRun, rows: CommittedRows, step: int) -> None:
    batch: State = {name.removeprefix(BATCH): each for name, each in evidence.batch(step).items()}
    leaves, places = leaves_of_batch(batch, rows.recipe), evidence.step(step).batch.indices or ()
    require(leaves is not None and len(leaves) == len(places), f"the batch holds other tensors than {len(places)} rows")
    assert leaves is not None  # required above
    for place, leaf in zip(places, leaves, strict=True):
        is_there = place < len(rows.leaves) and rows.leaves[place] == leaf
        require(is_there, f"the batch is not row {place} of the corpus, which its record names")


def _derive(
    evidence: CheckedRun, rows: CommittedRows, steps: Sequence[int], nonce: bytes, stack: VerifierStack
) -> Iterable[str]:
    if stack.made_again is None:
        evidence.left_out.append(
            "whether the rows are those of the conversations: give the corpus with --corpus, and a directory with its "
            "tokenizer and chat template with --initial"
        )
        return
    named = sorted({place for step in steps for place in evidence.step(step).batch.indices or ()})
    drawn = sample_steps(nonce, evidence.claim.identity, len(named), ROWS_MAX)
    places = [named[number - 1] for number in drawn]
    ours, theirs = (each.package("tokenizers") for each in (stack.environment, evidence.environment))
    try:
        stack.made_again(rows, places)
    except (MalformedError, UnavailableError) as error:
        yield f"rows: {error}"
    except ProofError as error:
        if ours == theirs:
            evidence.findings.note(DIFFERS, "rows of the corpus", detail=str(error))
        else:
            yield f"rows: {error} with tokenizers {ours}; the run states {theirs}: install that one to decide"
    else:
        evidence.findings.note(AGREES, "rows of the corpus")
        evidence.shown.append(f"data: {len(places):,} of {len(named):,} rows were made again from the conversations")
