"""Questions that people ask often, as SQL over the views: for `tally query`, Datasette and DuckDB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.commitments.encoding import Json


@dataclass(frozen=True)
class UsefulQuery:
    """A question, and the SQL that answers it on SQLite, PostgreSQL and DuckDB."""

    name: str
    title: str
    sql: str


USEFUL_QUERIES: Final = (
    UsefulQuery(
        "runs_and_verdicts",
        "Each run with what audits said of it",
        """
SELECT r.name, r.status, r.steps, count(a.digest) AS audits,
       sum(CASE WHEN a.outcome = 'accepted' THEN 1 ELSE 0 END) AS accepted,
       sum(CASE WHEN a.outcome = 'rejected' THEN 1 ELSE 0 END) AS rejected
FROM runs r LEFT JOIN audits a ON a.run = r.name
GROUP BY r.run_id, r.name, r.status, r.steps ORDER BY r.run_id
""",
    ),
    UsefulQuery(
        "runs_without_an_accepted_audit",
        "Runs that nobody has found correct yet",
        """
SELECT r.name, r.status, r.steps FROM runs r
WHERE NOT EXISTS (SELECT 1 FROM audits a WHERE a.run = r.name AND a.outcome = 'accepted') ORDER BY r.run_id
""",
    ),
    UsefulQuery(
        "steps_that_were_replayed",
        "How many steps of each run an audit replayed",
        """
SELECT s.run, count(*) AS steps FROM steps s
WHERE EXISTS (SELECT 1 FROM audited_segments g
              WHERE g.run = s.run AND s.step BETWEEN g.first_step AND g.last_step AND g.outcome = 'agrees')
GROUP BY s.run ORDER BY s.run
""",
    ),
    UsefulQuery(
        "steps_without_a_graph",
        "Steps that no auditor can replay, and why",
        """
SELECT run, no_graph, count(*) AS steps, min(step) AS first, max(step) AS last FROM steps
WHERE no_graph IS NOT NULL GROUP BY run, no_graph ORDER BY run, first
""",
    ),
    UsefulQuery(
        "states_that_are_not_there",
        "States that a run recorded and whose files were not there when they were last looked for",
        "SELECT run, step, file FROM anchors WHERE NOT present ORDER BY run_id, step",
    ),
    UsefulQuery(
        "values_of_another_precision",
        "Values that were kept in another precision than the step graph asks for",
        """
SELECT run, step, edge, intended, realised FROM bindings WHERE intended <> realised
ORDER BY run_id, step, edge, moment
""",
    ),
    UsefulQuery(
        "operations_by_operator",
        "Which operators of each graph cost most",
        """
SELECT graph, operator, count(*) AS nodes, sum(operations) AS operations FROM operators
GROUP BY graph, operator ORDER BY graph, operations DESC
""",
    ),
    UsefulQuery(
        "busy_time_by_device",
        "How long each device of a timeline was busy, by kind of event",
        """
SELECT trace, device, kind, count(*) AS events, sum(duration_ns) / 1e9 AS seconds FROM events
GROUP BY trace, device, kind ORDER BY trace, device, kind
""",
    ),
    UsefulQuery(
        "comparisons_that_differ",
        "Every comparison of an audit that did not agree",
        "SELECT audit, place, step, distance, allowed FROM findings WHERE NOT agrees ORDER BY audit_id, number",
    ),
    UsefulQuery(
        "receipts_by_verdict",
        "How many receipts of each stream were accepted, rejected or not judged",
        """
SELECT stream, coalesce(verdict, 'not judged') AS verdict, count(*) AS receipts FROM receipts
GROUP BY stream, coalesce(verdict, 'not judged') ORDER BY stream, verdict
""",
    ),
)


def datasette_metadata(database: str) -> dict[str, Json]:
    """What `datasette -m` reads: the useful queries for the file that Datasette names `database`."""
    queries: dict[str, Json] = {each.name: {"title": each.title, "sql": each.sql.strip()} for each in USEFUL_QUERIES}
    return {"title": "Tallystick", "databases": {database: {"queries": queries}}}
