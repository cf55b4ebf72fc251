"""Challenges are on record, with what was handed over for them."""

from __future__ import annotations

from typing import Any

import pytest

import tallystick
from tallystick.database.service.access import TokenGrant, new_token
from tests.support.services import RUN, Service

WHERE = f"/v1/runs/{RUN}/challenges"


def test_what_was_asked_and_handed_over_is_on_record(service: Service) -> None:
    asked = {"step": 6, "nonce": "07" * 32}
    answer = service.ask(WHERE, method="POST", json=asked).json()
    assert (answer["start"], answer["end"]) == (4, 8)
    with tallystick.Database(service.database) as db:
        row = db.challenges.where(digest=answer["challenge"]).one()
        assert (row.run, row.nonce, row.party) == (RUN, "07" * 32, "all")
        response = db.about("responses").where(challenge=answer["challenge"]).one()
        assert (response.digest, response.bytes) == (answer["response"], sum(each["size"] for each in answer["files"]))
        again = service.ask(WHERE, method="POST", json=asked).json()
        assert again["challenge"] == answer["challenge"]
        assert db.challenges.where(digest=answer["challenge"]).count() == 1
        marks = service.ask(WHERE, method="POST", json={"start": 8, "end": 12}).json()
        assert marks["challenge"] != answer["challenge"]
    assert service.ask(f"/v1/runs/{RUN}/segments/4-8/files/segment.json").status_code == 200


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        *(({}, 400), ({"step": 1, "start": 0, "end": 4}, 400), ({"start": 4}, 400), ({"step": 1, "nonce": "x"}, 400)),
        *(({"step": 13}, 404), ({"start": 3, "end": 8}, 404), ({"step": 0}, 400), ([], 400)),
    ],
)
def test_a_challenge_that_names_no_segment_is_refused(service: Service, asked: Any, status: int) -> None:
    assert service.ask(WHERE, method="POST", json=asked).status_code == status


def test_openings_of_a_closed_run_go_to_named_verifiers(service: Service) -> None:
    scopes = frozenset(("read", "open", "challenge"))
    service.tokens["named"] = new_token(service.database, TokenGrant("named", scopes, frozenset(("another",))))
    statuses = [
        service.ask(WHERE, scope, "POST", json={"step": 2}).status_code for scope in ("named", "challenge", "open")
    ]
    assert statuses == [403, 403, 403]
    assert service.ask(f"/v1/runs/{RUN}/segments/4-8", "named").status_code == 403
    assert service.ask(f"/v1/runs/{RUN}/records/2", "named").status_code == 403
