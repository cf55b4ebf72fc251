"""`tally db check` finds what was changed in a database or in the files; `tally db rebuild` makes it right again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tallystick.database.bulk import inserted, key_of
from tallystick.database.indexing.add import add_place
from tallystick.database.indexing.audits import add_audit
from tallystick.database.indexing.checking import check, rebuild
from tallystick.database.indexing.graphs import link_forms
from tallystick.database.indexing.sources import forget_source
from tallystick.database.schema import AUDIT, CHALLENGE, EVENT, METADATA, OPERATOR, RUN
from tallystick.database.workload_database import WorkloadDatabase
from tests.database.indexing.test_graphs import EXAMPLE
from tests.database.indexing.test_places import RECEIPTS
from tests.support.database_content import content
from tests.support.traces import ONE, TWO, kernel, reduction, trace_at

EVENTS = (kernel(5, 10, operator=3, step=1, memory=900), reduction(ONE, 20, 5), reduction(TWO, 20, 9))


@pytest.fixture
def added(empty: WorkloadDatabase, run: Path) -> WorkloadDatabase:
    """A database that holds the run."""
    add_place(empty, run, "digits")
    return empty


def filled(database: WorkloadDatabase) -> list[sa.Table]:
    held = content(database)
    return [table for table in METADATA.sorted_tables if held[table.name]]


def test_an_untouched_database_agrees(added: WorkloadDatabase) -> None:
    report = check(added)
    assert (report.findings, report.unchecked) == ([], [])
    assert report.rows == sum(len(rows) for rows in content(added).values())


def test_a_changed_cell_of_any_table_is_found(added: WorkloadDatabase) -> None:
    changed = []
    for table in filled(added):
        cell = next(
            column
            for column in table.c
            if isinstance(column.type, sa.Text) and column.name not in key_of(table) and column.name != "status"
        )
        with added.writing("") as connection:
            first = connection.execute(sa.select(*table.primary_key).order_by(*table.primary_key)).first()
            row = sa.and_(*(one == value for one, value in zip(table.primary_key, first or (), strict=True)))
            if cell.name != "place":
                connection.execute(sa.update(table).where(row).values({cell: "forged"}))
                changed.append(f"{table.name} ")
    findings = check(added).findings
    assert len(findings) == len(changed) > 6
    assert all(any(line.startswith(table) and "forged" in line for line in findings) for table in changed)


def test_changed_files_are_found(
    added: WorkloadDatabase, run: Path, rewrite: Callable[..., None], tmp_path: Path
) -> None:
    anchors = sorted((run / "anchors").iterdir())
    shutil.copy(anchors[-1], tmp_path / "kept")
    shutil.copy(anchors[0], anchors[-1])
    assert any("the state has digest" in line for line in check(added).findings)
    assert check(added, quick=True).findings == []
    shutil.copy(tmp_path / "kept", anchors[-1])

    def change(records: list[dict[str, Any]]) -> None:
        records[3]["loss"] = 1.0

    rewrite(run, change)
    findings = check(added, quick=True).findings
    assert any("leaf is " in line for line in findings)
    assert any(line.startswith("step of run digits, step") and "loss is" in line for line in findings)


def test_records_that_are_not_those_of_the_claim_are_found(empty: WorkloadDatabase, run: Path) -> None:
    transcript = run / "transcript.jsonl"
    transcript.write_bytes(transcript.read_bytes().replace(b'"loss":', b'"loss":1', 1))
    add_place(empty, run, "digits")
    assert any("transcript" in line for line in check(empty).findings)


def test_what_is_not_there_could_not_be_checked(added: WorkloadDatabase, run: Path) -> None:
    sorted((run / "anchors").iterdir())[0].unlink()
    add_place(added, run)
    report = check(added)
    assert (report.findings, len(report.unchecked)) == ([], 2)
    assert any("rows of binding" in line for line in report.unchecked)
    shutil.rmtree(run)
    report = check(added)
    assert report.findings == []
    assert "not there" in report.unchecked[0]


def test_challenges_cannot_be_read_again_and_survive_a_rebuilding(added: WorkloadDatabase) -> None:
    with added.writing("") as connection:
        run = connection.execute(sa.select(RUN.c.id)).scalar_one()
        inserted(connection, CHALLENGE, digest="sha256:1", run=run, asked="{}", made_ns=1)
    assert check(added).only_here == ["1 rows of challenge"]
    before = content(added)
    assert rebuild(added).read == ["digits"]
    after = content(added)
    assert [row[1:] for row in after.pop("challenge")] == [row[1:] for row in before.pop("challenge")]
    assert after == before


def test_a_rebuilding_makes_forged_rows_right_and_numbers_go_on(
    added: WorkloadDatabase, run: Path, honest: Path
) -> None:
    with added.writing("") as connection:
        connection.execute(sa.update(RUN).values(title="forged"))
    assert check(added, quick=True).findings
    rebuild(added)
    assert check(added).findings == []
    add_place(added, honest, "another")
    assert check(added).findings == []


def test_a_place_that_is_gone_stays_named_and_the_rest_is_built(
    added: WorkloadDatabase, run: Path, honest: Path
) -> None:
    add_place(added, honest, "another")
    shutil.rmtree(run)
    report = rebuild(added)
    assert (report.read, list(report.lacking)) == (["another"], ["digits"])
    with added.writing("") as connection:
        forget_source(connection, "digits")
    report = check(added)
    assert (report.findings, report.unchecked) == ([], [])


def test_every_kind_of_place_is_compared(empty: WorkloadDatabase, run: Path, tmp_path: Path) -> None:
    trace_at(run / "traces" / "first", EVENTS)
    (tmp_path / "receipts.jsonl").write_text("".join(f"{text}\n" for text in RECEIPTS))
    (tmp_path / "program.json").write_text(EXAMPLE)
    add_place(empty, run, "digits")
    add_place(empty, tmp_path / "receipts.jsonl", "answers")
    root = add_place(empty, tmp_path / "program.json")
    report = {"verdict": "accepted", "findings": [], "receipt": json.loads(RECEIPTS[0])["receipt"]["model"]}
    add_audit(empty, report)
    link_forms(empty, root, "slice of", root)
    found = check(empty)
    assert found.findings == []
    assert (found.unchecked, found.only_here) == ([], ["1 report of an audit, which the database keeps whole"])
    rebuild(empty)
    assert check(empty).findings == []
    with empty.writing("") as connection:
        connection.execute(sa.update(AUDIT).values(outcome="rejected"))
        connection.execute(sa.update(EVENT).where(EVENT.c.number == 1).values(duration_ns=1))
        connection.execute(sa.update(OPERATOR).where(OPERATOR.c.number == 1).values(operations=7))
    assert {line.partition(" ")[0] for line in check(empty, quick=True).findings} == {"audit", "operator", "event"}
    (tmp_path / "program.json").unlink()
    assert any(line.startswith(f"graph {root}") for line in check(empty, quick=True).unchecked)
