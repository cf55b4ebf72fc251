"""A local coordinator on PostgreSQL: one server for the test session, one database for each coordinator."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.disputes.coordinators.conformance import MakeRules
from tests.disputes.coordinators.local.keys import LocalWorld, set_up

NUMBERS = itertools.count()


@contextmanager
def found(make_rules: MakeRules) -> Iterator[LocalWorld]:
    with database() as url:
        world = set_up(url, make_rules)
        with closing(world.place):
            yield world


@contextmanager
def database() -> Iterator[str]:
    """The URL of a fresh database; skips where no server can be started."""
    base, name = server(), f"coordinator{next(NUMBERS)}"
    _administer(base, f"create database {name}")
    try:
        yield f"{base}/{name}"
    finally:
        _administer(base, f"drop database {name} with (force)")


def _administer(base: str, statement: str) -> None:
    url = f"{base}/postgres".replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


@dataclass(frozen=True)
class Tools:
    """PostgreSQL's programs, and the user they run as: they refuse to run as root."""

    folder: Path
    data: Path

    def run(self, tool: str, *arguments: object) -> None:
        become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        command = [*become, self.folder / tool, "-D", self.data, *arguments]
        subprocess.run([str(each) for each in command], check=True, capture_output=True, cwd=self.data.parent)


@cache
def server() -> str:
    """The URL of a running server without a database; it is stopped when the tests end."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    initdb = shutil.which("initdb")
    programs = Path(initdb).parent if initdb else folders[-1] if folders else None
    if programs is None:
        pytest.skip("postgresql: initdb is not installed")
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("postgresql: setpriv is not installed, and the server refuses root")
    base = Path(tempfile.mkdtemp(dir="/tmp"))  # the name of a socket has 107 bytes at most
    if os.geteuid() == 0:
        shutil.chown(base, "postgres")
    return _started(Tools(programs, base / "data"))


def _started(tools: Tools) -> str:
    base, port = tools.data.parent, _free_port()
    atexit.register(shutil.rmtree, base)
    tools.run("initdb", "-A", "trust", "-U", "tally", "--no-sync", "-E", "UTF8", "--locale=C")
    settings = f"-c listen_addresses=127.0.0.1 -c fsync=off -p {port} -k {base}"
    tools.run("pg_ctl", "-o", settings, "-l", base / "log", "-w", "start")
    atexit.register(tools.run, "pg_ctl", "-m", "immediate", "stop")
    return f"postgresql://tally@127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
