"""A PostgreSQL server for the test session, and a fresh database for whoever asks."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import psycopg
import pytest
import sqlalchemy as sa

NUMBERS = itertools.count()


@contextmanager
def database(copied: str = "template1") -> Iterator[str]:
    """The URL of a fresh database, a copy of that of this name; skips where no server can be started."""
    name = f"fresh{next(NUMBERS)}"
    create(name, copied)
    try:
        yield f"{server()}/{name}"
    finally:
        _administer(f"drop database {name} with (force)")


def create(name: str, copied: str = "template1") -> None:
    """Create a database on the server as a copy of another, to which nobody may be connected."""
    _administer(f"create database {name} template {copied} strategy file_copy")  # a third of the work of the other one


def _administer(statement: str) -> None:
    url = f"{server()}/postgres".replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()


@dataclass(frozen=True)
class Tools:
    """PostgreSQL's programs, and the user they run as: they refuse to run as root."""

    folder: Path
    base: Path

    def command(self, tool: str, *arguments: object) -> list[str]:
        """The words that run a tool; where it can be had, `setpriv` ends it with these tests, however they end."""
        user = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        before = ["setpriv", *user, "--pdeathsig=INT"] if shutil.which("setpriv") else []
        return [str(each) for each in [*before, self.folder / tool, "-D", self.base / "data", *arguments]]


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
    return _started(Tools(programs, base))


def _started(tools: Tools) -> str:
    base, port = tools.base, _free_port()
    atexit.register(shutil.rmtree, base)
    initialise = tools.command("initdb", "-A", "trust", "-U", "tally", "--no-sync", "-E", "UTF8", "--locale=C")
    subprocess.run(initialise, check=True, capture_output=True, cwd=base)
    settings = ("listen_addresses=127.0.0.1", "fsync=off", f"port={port}", f"unix_socket_directories={base}")
    serve = tools.command("postgres", *(word for setting in settings for word in ("-c", setting)))
    log = (base / "log").open("wb")
    process = subprocess.Popen(serve, stdout=log, stderr=log, cwd=base)
    atexit.register(_stop, process, log)
    url = f"postgresql://tally@127.0.0.1:{port}"
    _await(url, process)
    return url


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        try:
            psycopg.connect(f"{url}/postgres", connect_timeout=60).close()
        except psycopg.OperationalError:
            assert process.poll() is None, "PostgreSQL ended at once"
            time.sleep(0.05)
        else:
            return
    pytest.skip("postgresql: the server did not start")


def _stop(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    process.wait()
    log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
