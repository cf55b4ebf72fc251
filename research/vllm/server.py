"""A server of vLLM in processes of its own, with our receipts or without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tallystick.core.errors import UnavailableError

START_SECONDS = 600
END_SECONDS = 60
NAME = "model"
AUDITOR = "auditor"
TALLY = str(Path(sys.executable).with_name("tally"))
QUIET = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}


INTERPRETED = Path(__file__).parent / "interpreted"


def of_runner(name: str) -> dict[str, str]:
    """The variables by which vLLM takes its runner V1 or V2; on a CPU, V2 needs Triton's interpreter, and is slow."""
    if name == "V1":
        return {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    folders = [str(INTERPRETED), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(folders)}


@dataclass(frozen=True)
class Server:
    """A running server and its process."""

    url: str
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> float:
        """The CPU time of all processes of its group so far."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if int(fields[2]) == self.process.pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(
    model: Path, folder: Path, port: int, options: Sequence[str], *, receipts: bool, runner: str = "V1"
) -> Iterator[Server]:
    """A server of `model` on `port`; with `receipts`, its journal, its key and its log are in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    given = ["--port", str(port), "--served-model-name", NAME, *options]
    command = with_receipts(model, folder, given) if receipts else plain(model, given)
    with (folder / f"server-{port}.log").open("wb") as log:
        environment = QUIET | {"VLLM_CPU_KVCACHE_SPACE": "1"} | os.environ | of_runner(runner)
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            yield _started(Server(f"http://127.0.0.1:{port}", process), folder)
        finally:
            _end(process)


def with_receipts(model: Path, folder: Path, given: Sequence[str]) -> list[str]:
    """The command that starts vLLM with receipts."""
    key, auditors = folder / "key", folder / "auditors"
    if not key.is_file():
        _tally("new-key", str(key))
    auditors.write_text(f"{AUDITOR}\n")
    where = ["--key", str(key), "--journal", str(folder), "--auditor-keys", str(auditors)]
    return [TALLY, "serve-vllm", str(model), *where, "--", *given]


def plain(model: Path, given: Sequence[str]) -> list[str]:
    """The command that starts vLLM alone."""
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *given]


def _tally(*arguments: str) -> None:
    subprocess.run([TALLY, *arguments], check=True, stdout=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server; while it starts, vLLM does not end by a signal that it could handle."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _started(server: Server, folder: Path) -> Server:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}/health", timeout=60).status_code == 200:
                return server
        except httpx.TransportError:
            time.sleep(0.5)
    raise UnavailableError(f"vLLM did not start: see {folder}")
