"""Rows over HTTP: the same as in the database, without a path of the server."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

import tallystick
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.database import schema
from tallystick.database.bulk import inserted
from tallystick.database.query import Page, at_least, page_json, read_page
from tallystick.database.rows import NOUNS, AuditRow, EventRow, FindingRow
from tallystick.database.service.access import SCOPES, TokenGrant, new_token
from tests.support.services import RUN, Service, serving

WITHOUT: Final[dict[str, dict[str, Any]]] = {"traces": {"place": ""}, "streams": {"place": ""}}
"""Paths of the server, which nobody is told."""


def test_the_database_behind_a_url_gives_the_rows_of_the_one_behind_it(service: Service) -> None:
    with tallystick.open(service.url, token=service.tokens["all"]) as theirs:
        for noun in sorted(NOUNS.keys() - {"runs"}):
            here = tallystick.Database(service.database).about(noun)
            assert list(theirs.about(noun)) == [replace(row, **WITHOUT.get(noun, {})) for row in here]
        assert theirs.steps.where(run=RUN, step=at_least(5)).count() == 8
        assert [row.step for row in theirs.runs.where(name=RUN, status="claimed").anchors.first(2)] == [0, 4]
        run = theirs.runs.where(name=RUN).one()
        assert (run.name, run.place) == (RUN, f"{service.url}/runs/{RUN}")


def test_pages_follow_each_other(service: Service) -> None:
    first = service.ask(f"/v1/steps?run={RUN}&limit=7").json()
    rest = service.ask("/v1/steps", params={"run": RUN, "limit": 7, "after": json.dumps(first["after"])}).json()
    assert [row["step"] for row in first["rows"] + rest["rows"]] == list(range(1, 13))
    assert rest["after"] is None


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        ("step.at_least=3&step.below=5", [3, 4]),
        ("step=2&step=9", [2, 9]),
        ("graph.stated=true", []),
        ("step.below=3&descending=true", [2, 1]),
        ("batch.starts_with=train&loss.at_least=-1e3&limit=1", [1]),
    ],
)
def test_simple_questions_stand_in_the_url(service: Service, asked: str, steps: list[int]) -> None:
    assert [row["step"] for row in service.ask(f"/v1/steps?run={RUN}&{asked}").json()["rows"]] == steps


@pytest.mark.parametrize(
    "asked",
    [
        *(
            "steps?colour=red",
            "steps?step=a",
            "steps?limit=0",
            "steps?limit=1&limit=2",
            "steps?after=5",
            "steps?after=[1]",
        ),
        *("steps?step=99999999999999999999", "steps?order=loss", "steps?step.=1", "steps?graph.stated=maybe"),
        *("runs?place=/tmp", "runs?name=%00"),
        'steps?after=["a",1]',
    ],
)
def test_a_question_that_makes_no_sense_is_refused(service: Service, asked: str) -> None:
    answer = service.ask(f"/v1/{asked}")
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


@pytest.mark.parametrize(
    "question",
    [
        {"noun": "runs", "conditions": [{"field": "place", "asked": {"starts_with": "/"}}]},
        {
            "noun": "steps",
            "related": [
                {
                    "field": "run",
                    "their_field": "name",
                    "question": {"noun": "runs", "conditions": [{"field": "place", "asked": {"starts_with": "/"}}]},
                }
            ],
        },
        {"noun": "runs", "related": [{"field": "name", "their_field": "place", "question": {"noun": "runs"}}]},
    ],
)
def test_where_files_lie_cannot_be_asked_for(service: Service, question: object) -> None:
    assert service.ask("/v1/query", method="POST", json=question).status_code == 400


def test_no_answer_holds_a_path_of_the_server(service: Service) -> None:
    for noun in NOUNS:
        assert str(service.run.parent) not in service.ask(f"/v1/{noun}").text


def test_rows_whose_types_do_not_fit_are_never_joined(service: Service) -> None:
    related = [{"field": "run", "their_field": "step", "question": {"noun": "steps"}}]
    answer = service.ask("/v1/query", method="POST", json={"noun": "steps", "related": related})
    assert (answer.status_code, answer.json()["code"]) == (400, "usage")


@pytest.mark.parametrize(
    ("scope", "noun", "status"),
    [
        *((None, "claims", 401), ("read", "claims", 200), ("read", "steps", 200), ("read", "operators", 403)),
        *(("open", "operators", 200), ("ingest", "steps", 403), ("open", "steps", 200)),
    ],
)
def test_scopes_say_who_sees_which_rows(service: Service, scope: str | None, noun: str, status: int) -> None:
    answers = [service.ask(f"/v1/{noun}", scope), service.ask("/v1/query", scope, "POST", json={"noun": noun})]
    assert [answer.status_code for answer in answers] == [status, status]


@pytest.mark.parametrize("path", ["/v1/claims", "/v1/steps", "/v1/operators", f"/v1/runs/{RUN}/files/claim.json"])
def test_a_refusal_names_a_scope_that_a_token_can_have(service: Service, path: str) -> None:
    answer = service.ask(path, "ingest")
    detail = answer.json()["detail"]
    named = re.findall(r"the scope (\w+) is needed|--scope (\w+)", detail)
    assert (answer.status_code, len(named)) == (403, 2)
    (scope, _), (_, offered) = named
    assert scope == offered
    assert scope in SCOPES
    assert new_token(service.database, TokenGrant(f"for{path.replace('/', '.')}", frozenset((scope,))))


def test_operators_cannot_be_asked_for_through_other_rows(service: Service) -> None:
    related = [{"field": "graph", "their_field": "graph", "question": {"noun": "operators"}}]
    question = {"noun": "steps", "related": related}
    assert service.ask("/v1/query", "read", "POST", json=question).status_code == 403
    assert service.ask("/v1/query", "all", "POST", json=question).status_code == 200


def test_a_token_for_some_runs_shows_the_graphs_of_these_alone(plain: Path, tmp_path: Path) -> None:
    through = [{"field": "graph", "their_field": "root", "question": {"noun": "graphs"}}]
    with serving(tmp_path / "tally.db", plain) as found:
        with found.database.writing("graphs") as connection:
            run = connection.execute(sa.select(schema.RUN.c.id)).scalar_one()
            graph = {"root": "sha256:aa", "form": "logical", "dialect": "x", "nodes": 1, "inputs": 1, "outputs": 1}
            number = inserted(connection, schema.GRAPH, **graph)
            connection.execute(sa.insert(schema.GRAPH_USE).values(run=run, graph=number, role="step", file="x"))
        for name, seen in ((RUN, 1), ("another", 0)):
            grant = TokenGrant(name, frozenset(("open",)), frozenset((name,)))
            found.tokens[name] = new_token(found.database, grant)
            assert len(found.ask("/v1/graphs", name).json()["rows"]) == seen
            joined = found.ask("/v1/count", name, "POST", json={"noun": "graph_uses", "related": through})
            assert joined.json() == {"count": seen}


def test_a_wrong_token_is_refused_and_told_in_one_line(service: Service) -> None:
    for token in ("tally_0000000000000000_" + "A" * 43, service.tokens["read"][:-1] + "~", "x"):
        with (
            pytest.raises(UnavailableError, match="a valid token is needed"),
            tallystick.open(service.url, token=token) as db,
        ):
            list(db.runs)
    with pytest.raises(UsageError, match="a token is for a service"):
        tallystick.open("tally.db", token="x")


def test_both_databases_are_served_alike(place: str, plain: Path) -> None:
    with serving(place, plain) as found, tallystick.open(found.url, token=found.tokens["all"]) as db:
        assert db.steps.where(run=RUN, step=range(2, 4)).count() == 2
        assert found.ask("/v1/records?number=3").json()["rows"][0]["kind"] == "step"
        assert found.ask('/v1/steps?after=[1,"a"]').status_code == 400
        assert found.ask("/v1/steps?step=99999999999999999999").status_code == 400


def test_large_and_infinite_numbers_travel(service: Service) -> None:
    event = EventRow("t", 0, "kernel", "k", "gpu", 0, None, None, 1_790_000_000_123_456_789, 5, *4 * (None,))
    finding = FindingRow("sha256:0", 1, "state", "step 3", 3, float("inf"), 0.5, False, False, "far")
    for noun, row in (("events", event), ("findings", finding)):
        written = json.dumps(page_json(NOUNS[noun], Page((row,), (2**60, "x"))), allow_nan=False).encode()
        assert read_page(NOUNS[noun], written, "page") == Page((row,), (2**60, "x"))
    assert service.ask(f"/v1/events?start_ns.at_least={2**62}").json()["rows"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"rows":[],"after":{}}',
        b'{"rows":[{"digest":"x"}],"after":null}',
        b'{"rows":[' + b"[]," * 10_003 + b'[]],"after":null}',
    ],
)
def test_pages_of_another_form_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedError):
        read_page(NOUNS["audits"], body, "page")
    assert AuditRow is NOUNS["audits"].row
    assert read_page(NOUNS["audits"], b'{"rows":[],"after":null}', "page").rows == ()


def test_numbers_and_texts_that_no_database_holds_are_refused() -> None:
    finding = FindingRow("sha256:0", 1, "state", "step 3", 3, 2.5, 0.5, False, False, "far")
    text = json.dumps(page_json(NOUNS["findings"], Page((finding,), None))).encode()
    assert read_page(NOUNS["findings"], text, "page").rows == (finding,)
    changed = {b'"number": 1': b'"number":1%b', b'"distance": 2.5': b'"distance":1%b', b'"far"': b'"\\ud800"'}
    for known, new in changed.items():
        with pytest.raises(MalformedError):
            read_page(NOUNS["findings"], text.replace(known, new.replace(b"%b", b"0" * 400)), "page")


def test_questions_inside_each_other_have_a_limit(service: Service) -> None:
    question: dict[str, object] = {"noun": "runs"}
    for _ in range(10):
        question = {"noun": "runs", "related": [{"field": "name", "their_field": "name", "question": question}]}
    answer = service.ask("/v1/query", method="POST", json=question)
    assert (answer.status_code, answer.json()["code"]) == (400, "usage")
