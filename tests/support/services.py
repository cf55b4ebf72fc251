"""A service over one honest run, and tokens for it; a conftest imports the fixtures."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tallystick.core.http.server import served
from tallystick.database.indexing.add import add_place
from tallystick.database.service import watching
from tallystick.database.service.access import SCOPES, ServiceOptions, TokenGrant, new_token
from tallystick.database.service.application import build_application
from tallystick.database.workload_database import WorkloadDatabase

RUN = "digits"


@dataclass(frozen=True)
class Service:
    """A running service, a token for each scope, one for all, and the run that it serves."""

    url: str
    tokens: dict[str, str]
    run: Path
    database: WorkloadDatabase

    def ask(self, path: str, scope: str | None = "all", method: str = "GET", **more: Any) -> httpx.Response:
        """The answer to a request with the token of `scope`, or with none."""
        headers = dict(more.pop("headers", {}))
        if scope is not None:
            headers["Authorization"] = f"Bearer {self.tokens[scope]}"
        return httpx.request(method, self.url + path, headers=headers, timeout=60, **more)

    def begin(self, head: str, body: bytes = b"") -> bytes:
        """The first bytes of the answer to a request of which no more comes than a head and the start of a body."""
        address = urlsplit(self.url)
        with socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=30) as slow:
            token = f"Authorization: Bearer {self.tokens['all']}"
            slow.sendall("\r\n".join((head, "Host: x", token, "", "")).encode() + body)
            return slow.recv(200)


@contextmanager
def serving(place: str | Path, run: Path, options: ServiceOptions | None = None) -> Iterator[Service]:
    """Serve a database that holds `run`, as long as the block lasts."""
    with WorkloadDatabase(place, writable=True) as database:
        add_place(database, run, RUN)
        grants = {scope: frozenset((scope,)) for scope in SCOPES} | {"all": frozenset(SCOPES)}
        tokens = {
            name: new_token(database, TokenGrant(name, scopes, requests_per_minute=10**6))
            for name, scopes in grants.items()
        }
        with served(build_application(database, options)) as url:
            yield Service(url, tokens, run, database)


@pytest.fixture(scope="module", autouse=True)
def unheard() -> Iterator[None]:
    """A request is logged behind its answer, when its test may be over: its line would stand among those of pytest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "write_line", lambda _: None)
        yield


@pytest.fixture(scope="session")
def service(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service over the plain run, with the folder `runs` for those that are sent. Shared by all tests."""
    folder = tmp_path_factory.mktemp("service")
    run = Path(shutil.copytree(plain, folder / "plain"))
    with serving(folder / "tally.db", run, ServiceOptions(runs=folder / "runs")) as found:
        yield found
