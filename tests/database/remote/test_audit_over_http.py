"""An audit over HTTP gives the verdict of the same audit here, and a service that lies is found out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

import tallystick
from tallystick.core.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.core.http.server import served
from tallystick.database.indexing.add import add_place
from tallystick.database.service.access import ServiceOptions
from tallystick.database.service.application import build_application
from tallystick.database.workload_database import WorkloadDatabase
from tests.support.prefork.commands import commands
from tests.support.services import RUN, Service, serving

NONCE = "07" * 32


def judged(report: dict[str, Any]) -> dict[str, Any]:
    """What a report says, without when and where it was made."""
    found = {name: report[name] for name in ("claim", "findings", "sampled", "sentence", "steps", "verdict")}
    return found | {"segments": [{**each, "seconds": None} for each in report["segments"]]}


def test_another_process_that_knows_url_and_token_gives_the_local_verdict(service: Service, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(service.tokens["all"] + "\n")
    command = ["audit", f"{service.url}/runs/{RUN}", "--step", "6", "--token-file", str(token), "--json"]
    done = subprocess.run([commands() / "tally", *command], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (0, ["token"])
    theirs = json.loads(done.stdout)
    tallystick.open_segment(service.run, 4, 8, tmp_path / "segment")
    ours = tallystick.audit(tmp_path / "segment").to_json()
    assert judged(theirs) == judged(json.loads(json.dumps(ours)))
    assert theirs["sentence"].startswith("4 of 12 steps were replayed")
    assert theirs["command"] == f"tally audit {service.url}/runs/{RUN} --step 6 --token-file {token}"


def test_a_whole_run_is_audited_over_http(service: Service) -> None:
    url, token = f"{service.url}/runs/{RUN}", service.tokens["all"]
    theirs = tallystick.audit_over_http(url, tallystick.Policy(samples=1), token=token, nonce=NONCE)
    ours = tallystick.audit(service.run, tallystick.Policy(samples=1), nonce=NONCE)
    assert judged(theirs.to_json()) == judged(ours.to_json())


def test_recorded_calls_are_audited_over_http_and_have_no_steps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 2)
    with torch.no_grad(), tallystick.record_inference(model, tmp_path / "calls"):
        model(torch.ones(1, 3))
    with serving(tmp_path / "tally.db", tmp_path / "calls") as found:
        token = found.tokens["all"]
        assert tallystick.audit_over_http(f"{found.url}/runs/{RUN}", token=token).outcome == "accepted"
        with tallystick.open(found.url, token=token) as there, tallystick.open(tmp_path / "tally.db") as here:
            for each in (there, here):
                with pytest.raises(UnavailableError, match="calls of a model, which have no steps"):
                    each.discover(RUN)


def test_a_forged_run_is_rejected_over_http_too(service: Service, tmp_path: Path, run: Path) -> None:
    record = run / "anchors/step_00000008.safetensors"
    data = bytearray(record.read_bytes())
    data[-1] ^= 1
    with WorkloadDatabase(tmp_path / "tally.db", writable=True) as database:
        add_place(database, run, RUN, tensors=False)
        record.write_bytes(data)
        with served(build_application(database, ServiceOptions(public="open"))) as url:
            found = tallystick.audit_over_http(f"{url}/runs/{RUN}", tallystick.Policy(full=True))
    assert found.outcome == "rejected"


def test_without_the_scope_nothing_is_fetched(service: Service) -> None:
    with pytest.raises(UnavailableError, match="the scope open is needed"):
        tallystick.audit_over_http(f"{service.url}/runs/{RUN}", token=service.tokens["read"], segment=(4, 8))


@pytest.mark.parametrize("url", ["http://host", "http://host/runs/", "http://host/v1/x", "ftp://host/runs/a"])
def test_a_url_of_no_run_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="http://HOST/runs/NAME"):
        tallystick.audit_over_http(url)


@contextmanager
def lying(files: dict[str, bytes], listed: list[dict[str, Any]] | None = None) -> Iterator[str]:
    """A service that hands over `files` whatever is asked for, and lists them, or `listed`."""
    app = FastAPI()
    shown = listed if listed is not None else [{"path": name, "size": len(body)} for name, body in files.items()]

    @app.get("/v1/runs/{name}/{rest:path}")
    def answer(name: str, rest: str) -> Response:
        file = rest.partition("files/")[2]
        return Response(files[file]) if file else JSONResponse({"run": name, "files": shown})

    with served(app) as url:
        yield url


def test_another_segment_than_the_one_asked_for_is_no_answer(service: Service, tmp_path: Path) -> None:
    tallystick.open_segment(service.run, 8, 12, tmp_path / "s")
    files = {
        path.relative_to(tmp_path / "s").as_posix(): path.read_bytes()
        for path in (tmp_path / "s").rglob("*")
        if path.is_file()
    }
    with lying(files) as url, pytest.raises(ProofError, match=r"handed over the segment 8\.\.12"):
        tallystick.audit_over_http(f"{url}/runs/x", segment=(4, 8))
    with lying(files) as url, pytest.raises(ProofError, match="in place of the run"):
        tallystick.audit_over_http(f"{url}/runs/x")
    with lying(files) as url:
        assert tallystick.audit_over_http(f"{url}/runs/x", segment=(8, 12)).outcome == "accepted"


@pytest.mark.parametrize(
    "listed",
    [
        [{"path": "../escaped", "size": 1}],
        [{"path": "/tmp/escaped", "size": 1}],
        [{"path": "data/../../escaped", "size": 1}],
        [{"path": "claim.json", "size": -1}],
        [{"path": "claim.json", "size": 1 << 60}],
        [{"path": "claim.json"}],
        ["claim.json"],
    ],
)
def test_files_of_other_names_and_sizes_are_not_taken(listed: list[Any]) -> None:
    with lying({}, listed) as url, pytest.raises(MalformedError):
        tallystick.audit_over_http(f"{url}/runs/x")


def test_a_file_with_another_digest_than_was_listed_is_not_taken() -> None:
    listed = [{"path": "claim.json", "size": 2, "sha256": "0" * 64}]
    with lying({"claim.json": b"{}"}, listed) as url, pytest.raises(ProofError, match="another digest"):
        tallystick.audit_over_http(f"{url}/runs/x", segment=(4, 8))
