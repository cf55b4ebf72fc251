"""What an operator relies on: limits, tokens, health, counters, the log; and no request that breaks the service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from queue import Queue

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tallystick.core.errors import UnavailableError, UsageError
from tallystick.core.http.problems import Problem
from tallystick.database.service import watching
from tallystick.database.service.access import (
    SCOPES,
    RequestRates,
    ServiceOptions,
    TokenGrant,
    grant_of,
    list_tokens,
    new_token,
    revoke_token,
)
from tallystick.database.service.watching import write_line
from tallystick.database.workload_database import WorkloadDatabase
from tests.support.services import Service, serving

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]


def test_tokens_are_kept_as_digests_and_end_when_they_should(empty: WorkloadDatabase) -> None:
    token = new_token(empty, TokenGrant("alice", frozenset(("read", "open")), frozenset(("a", "b"))))
    grant = grant_of(empty, token)
    assert grant == list_tokens(empty)[0]
    assert (grant.scopes, grant.runs) == (frozenset(("read", "open")), frozenset(("a", "b")))
    assert [grant_of(empty, each) for each in (token[:-1] + "-", token.upper(), "", "tally_")] == [None] * 4
    with empty.sql.reading() as connection:
        assert token not in str(connection.exec_driver_sql("SELECT * FROM token").all())
    assert grant_of(empty, new_token(empty, TokenGrant("past", frozenset(("read",)), end_ns=1))) is None
    with pytest.raises(UsageError, match="alice: has a token"):
        new_token(empty, TokenGrant("alice", frozenset(("read",))))
    with pytest.raises(UsageError, match="not write"):
        new_token(empty, TokenGrant("bob", frozenset(("write",))))
    revoke_token(empty, "alice")
    assert grant_of(empty, token) is None
    with pytest.raises(UnavailableError, match="no such token"):
        revoke_token(empty, "alice")


def test_requests_are_counted_for_each_caller() -> None:
    clock = [0.0]
    rates = RequestRates(lambda: clock[0])
    for _ in range(3):
        rates.count("a", 3)
    with pytest.raises(Problem) as refused:
        rates.count("a", 3)
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "21")
    rates.count("b", 3)
    clock[0] = 21.0
    rates.count("a", 3)


def test_too_many_requests_are_told_to_come_back(plain: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "tally.db", plain, ServiceOptions("read", requests_per_minute=2)) as found:
        assert [found.ask("/v1/claims", None).status_code for _ in range(3)] == [200, 200, 429]
        assert found.ask("/v1/claims", "read").status_code == 200


def test_a_service_without_a_folder_takes_no_runs(plain: Path, tmp_path: Path) -> None:
    with serving(tmp_path / "tally.db", plain) as found:
        assert found.ask("/v1/runs/x/upload").json()["code"] == "closed"


def test_bodies_have_a_size_a_type_and_a_time(plain: Path, tmp_path: Path) -> None:
    options = ServiceOptions(json_bytes_max=1000, body_seconds_max=0.2)
    with serving(tmp_path / "tally.db", plain, options) as found:
        large = found.ask("/v1/query", method="POST", json={"noun": "x" * 2000})
        assert (large.status_code, large.json()["code"]) == (413, "size")
        assert found.ask("/v1/query", method="POST", content=b"{}").status_code == 400
        head = "POST /v1/query HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 100"
        assert b" 408 " in found.begin(head, b"{")


def test_health_and_counters(service: Service) -> None:
    assert service.ask("/health", None).json()["status"] == "ok"
    service.ask("/v1/runs/some-name/records/1")
    text = service.ask("/metrics", None).text
    assert 'tally_requests_total{method="GET",route="/v1/runs/{name}/records/{number}",status="404"}' in text
    assert "some-name" not in text


def test_every_request_is_one_line_of_the_log(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Queue[dict[str, object]]()
    monkeypatch.setattr(watching, "write_line", lines.put)
    service.ask("/v1/runs/a%0ab/files")
    line = next(line for line in iter(lambda: lines.get(timeout=30), None) if line["path"] == "/v1/runs/a\nb/files")
    assert (line["event"], line["status"], line["token"]) == ("request", 404, "all")
    assert service.tokens["all"] not in str(line)


def test_a_line_of_the_log_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    write_line({"event": "request", "path": "/a\n\x1b[31mb"})
    (line,) = capfd.readouterr().err.splitlines()
    assert json.loads(line)["path"] == "/a\n\x1b[31mb"
    assert "\x1b" not in line


def test_what_is_not_there_is_a_problem_too(service: Service) -> None:
    for path, method, status in (("/nothing", "GET", 404), ("/v1/runs", "DELETE", 405), ("/docs", "GET", 404)):
        answer = service.ask(path, method=method)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_whoever_may_not_ask_is_told_so_before_what_they_ask_is_read(service: Service) -> None:
    elsewhere = TokenGrant("elsewhere", frozenset(SCOPES), frozenset(("another",)))
    headers = {"Authorization": f"Bearer {new_token(service.database, elsewhere)}"}
    paths = service.ask("/openapi.json", None).json()["paths"]
    operations = [(method, path) for path in paths if path.startswith("/v1/") for method in paths[path]]
    with httpx.Client(base_url=service.url, params={"limit": "x", "size": "x"}, timeout=120) as client:
        for method, path in operations:
            asked = client.build_request(method, re.sub(r"\{\w+\}", "%00", path))
            assert client.send(asked).status_code == 401, path
            if "{name}" in path:
                asked.headers.update(headers)
                assert client.send(asked).status_code == 403, path
    assert len(operations) > 35


def meet_every_operation(service: Service, examples: int) -> int:
    """Send examples of every operation that OpenAPI describes, and compare the answers; returns how many were sent."""
    schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
    sent = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def meets(case: schemathesis.Case) -> None:
            nonlocal sent
            sent += 1
            case.call_and_validate(headers={"Authorization": f"Bearer {service.tokens['all']}"}, checks=CHECKS)

        meets()
    return sent


def test_no_request_that_openapi_describes_breaks_the_service(service: Service) -> None:
    assert meet_every_operation(service, 2) > 40


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_requests_that_openapi_describes_do_not_break_the_service(service: Service) -> None:
    assert meet_every_operation(service, 200) > 4000
