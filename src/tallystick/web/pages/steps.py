"""One step: its record, its batch, the tensors bound to it, who replayed it, and what can be replayed of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tallystick.api.database import Database
from tallystick.commitments.nesting import loose_json
from tallystick.commitments.tree import leaf_hash
from tallystick.errors import TallyError
from tallystick.store.database.query import below
from tallystick.store.database.rows import RunRow, StepRow
from tallystick.store.log import line_at
from tallystick.web.pages.asked import PageQuestion
from tallystick.web.pages.coverage import verdict_of

BINDINGS: Final = 500
AUDITS: Final = 100
BEHIND: Final = 1 << 62


def step_view(database: Database, asked: PageQuestion) -> dict[str, Any]:
    """One step of a run."""
    run = database.runs.where(name=asked.text("run")).one()
    step = database.steps.where(run=run.name, step=asked.number("step", 1)).one()
    leaf = database.records.where(run=run.name, number=step.record).one().leaf
    return {
        "run": asdict(run),
        "step": asdict(step),
        "leaf": leaf,
        "record": _record(run, step, leaf),
        "bindings": [asdict(each) for each in _bindings(database, step)],
        "audits": _audits(database, step),
        "replay": replay_of(database, run, step),
    }


def replay_of(database: Database, run: RunRow, step: StepRow) -> dict[str, Any]:
    """From which anchor the step can be replayed, up to which state it can be compared, and what is missing for it."""
    anchors = database.anchors.where(run=run.name)
    before = list(anchors.where(step=below(step.step)).newest_first().first(1))
    behind = list(anchors.where(step=range(step.step, BEHIND)).first(1))
    missing = [f"anchor {each.step}: {each.file} was not there" for each in (*before, *behind) if not each.present]
    if not before:
        missing.append("no anchor comes before this step")
    if step.graph is None and run.graph is None:
        missing.append(step.no_graph or run.no_graph or "no graph was recorded: only the recipe says what the step did")
    return {
        "begins": before[0].step if before else None,
        "ends": behind[0].step if behind else None,
        "graph": step.graph or run.graph,
        "missing": missing,
    }


def _record(run: RunRow, step: StepRow, leaf: str) -> dict[str, Any]:
    """The record as it stands in the transcript; `problem` says why it does not stand here."""
    path = Path(run.place, "transcript.jsonl")
    try:
        line = line_at(path, step.record)
    except (OSError, TallyError) as error:
        return {"text": None, "problem": f"the transcript cannot be read: {error}"}
    if leaf_hash(line).hex() != leaf:
        return {"text": None, "problem": "the transcript holds another record than the database: `tally db check`"}
    return {"text": json.dumps(loose_json(line), indent=2, ensure_ascii=True), "problem": None}


def _bindings(database: Database, step: StepRow) -> Any:
    return database.bindings.where(run=step.run, step=step.step).first(BINDINGS)


def _audits(database: Database, step: StepRow) -> list[dict[str, Any]]:
    """The audits that replayed the step, and what each found at it."""
    audits = {audit.digest: audit for audit in database.audits.where(run=step.run).first(AUDITS)}
    segments = database.about("audited_segments").where(run=step.run, first_step=below(step.step + 1))
    found = []
    for each in segments.newest_first():
        if each.last_step >= step.step and each.audit in audits:
            audit = audits[each.audit]
            found.append(
                {
                    "digest": audit.digest,
                    "verdict": verdict_of(each.outcome, audit.outcome),
                    "outcome": each.outcome,
                    "first": each.first_step,
                    "last": each.last_step,
                    "sentence": audit.sentence,
                    "findings": [asdict(finding) for finding in _findings(database, audit.digest, step.step)],
                }
            )
    return found[:AUDITS]


def _findings(database: Database, audit: str, step: int) -> Any:
    return database.findings.where(audit=audit, step=step).first(AUDITS)
