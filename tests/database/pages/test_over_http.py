"""The pages over the service of somebody else: rows come over HTTP, and files stay where they are."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import tallystick
from tallystick.core.errors import UsageError
from tallystick.database.pages.router import create_pages
from tests.support.services import RUN, Service


def test_rows_are_shown_and_missing_files_are_named(service: Service) -> None:
    with tallystick.open(service.url, token=service.tokens["all"]) as theirs:
        pages = TestClient(create_pages(theirs))
        for address in ("/", "/runs", f"/run?name={RUN}", f"/step?run={RUN}&step=2", "/graphs", "/audits", "/receipts"):
            answer = pages.get(address)
            assert answer.status_code == 200, address
            assert str(service.run) not in answer.text
        assert pages.get(f"/run.json?name={RUN}").json()["run"]["place"] == f"{service.url}/runs/{RUN}"


def test_numbers_are_added_up_where_they_are(service: Service) -> None:
    with tallystick.open(service.url, token=service.tokens["read"]) as theirs:
        here = tallystick.Database(service.database)
        assert theirs.steps.where(run=RUN).total("loss") == here.steps.where(run=RUN).total("loss") > 0
        with pytest.raises(UsageError, match="no number that can be added up"):
            theirs.steps.total("batch")
