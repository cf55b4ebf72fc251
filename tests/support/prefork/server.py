"""Imports what programs import, and is forked for every client: `python server.py FOLDER`, until its stdin ends.

It listens at `tally.socket`; a fork of before ours was imported listens at `python.socket`, and runs scripts.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = (
    "torch",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    *(
        "fastapi",
        "jinja2",
        "matplotlib.backends.backend_agg",
        "matplotlib.figure",
        "openai",
        "sqlalchemy",
        "tokenizers",
        "uvicorn",
    ),
)
"""What of it is not installed is left out: the tests that need it are skipped."""
OURS = (
    "tallystick.tally.answers",
    "tallystick.tally.auditing",
    "tallystick.tally.cli.entry",
    "tallystick.engines.torch.training.verifier_stack",
    "tallystick.recording.models",
    "tallystick.recording.training",
)
"""A script imports it afresh, so that a page which forgets an import fails."""
READY = "ready"


class Server:
    """The clients that are connected, and the fork that runs for each of them."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.forks: dict[socket.socket, int] = {}
        self.ready = selectors.DefaultSelector()
        self.woken, self.waking = socket.socketpair()
        for end in (self.woken, self.waking):
            end.setblocking(False)

    def serve(self) -> dict[str, Any]:
        """The request that this process, a fork by then, is for; the server itself never comes back from here."""
        signal.set_wakeup_fd(self.waking.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for each in (sys.stdin, self.listening, self.woken):
            self.ready.register(each, selectors.EVENT_READ)
        while True:
            found = [key.fileobj for key, _ in self.ready.select()]
            # A client that was killed ends before one that is started after it: they may write into the same files.
            self.kill([each for each in found if each in self.forks])
            self.report_ends()
            if sys.stdin in found:
                self.kill(list(self.forks))
                os._exit(0)
            if self.listening in found and (request := self.fork()):
                return request

    def kill(self, clients: Sequence[Any]) -> None:
        for client in clients:
            os.kill(self.forks[client], signal.SIGKILL)
            os.waitpid(self.forks[client], 0)
            self.forget(client)

    def report_ends(self) -> None:
        """Tell each client whose fork has ended how it ended."""
        while self.woken in (key.fileobj for key, _ in self.ready.select(0)):
            self.woken.recv(4096)
        for client, process in list(self.forks.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                self.forget(client)

    def forget(self, client: socket.socket) -> None:
        del self.forks[client]
        self.ready.unregister(client)
        client.close()

    def fork(self) -> dict[str, Any] | None:
        """Accept a client; its request in the fork, None in the server."""
        client, _ = self.listening.accept()
        text, streams, _, _ = socket.recv_fds(client, 1 << 16, 3)
        while not text.endswith(b"\n"):
            text += client.recv(1 << 16)
        process = os.fork()
        if not process:
            self.leave()
            return {**json.loads(text), "streams": streams, "client": client}
        for stream in streams:
            os.close(stream)
        client.sendall(b"%d\n" % process)
        self.forks[client] = process
        self.ready.register(client, selectors.EVENT_READ)
        return None

    def leave(self) -> None:
        """Let go of all that is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.ready.close()
        for each in (self.listening, self.woken, self.waking, *self.forks):
            each.close()


def become(request: dict[str, Any]) -> None:
    """Take on the words, the folder, the variables, the limits and the streams of a program that starts by itself."""
    request["client"].close()
    for number, stream in enumerate(request["streams"]):
        os.dup2(stream, number)
        os.close(stream)
    for name, limit in request["limits"].items():
        resource.setrlimit(getattr(resource, name), limit)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.argv = list(request["words"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts in the background ignores it
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))


def run(program: Callable[[], None]) -> NoReturn:
    """Run it and end as the interpreter does, but for the memory, which takes it a third of a second to free."""
    code: object = 0
    try:
        program()
    except SystemExit as leaving:
        code = leaving.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else bool(code))


def script() -> None:
    """What `python FILE …` and `python - …` do, the file or stdin being that of `sys.argv`."""
    file, main = sys.argv[0], types.ModuleType("__main__")
    named, first = ("<stdin>", "") if file == "-" else (file, str(Path(file).resolve().parent))
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules["__main__"], main.__file__ = main, named
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    exec(compile(text, named, "exec", dont_inherit=True), vars(main))


def tally() -> None:
    sys.argv.insert(0, "tally")
    sys.modules["tallystick.tally.cli.entry"].main()


def load(modules: Iterable[str]) -> None:
    for name in modules:
        with suppress(ImportError):
            importlib.import_module(name)
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False  # what libraries would take apart at the end of a process is a third of a small fork's work
    gc.freeze()  # else the first collection of a fork would copy all of it


def serve(listening: socket.socket, program: Callable[[], None]) -> NoReturn:
    become(Server(listening).serve())
    run(program)


def listening_at(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    return listening


def main() -> None:
    scripts, commands = (listening_at(f"{sys.argv[1]}/{name}.socket") for name in ("python", "tally"))
    load(LIBRARIES)
    if not os.fork():
        commands.close()
        serve(scripts, script)
    scripts.close()
    load(OURS)
    print(READY, flush=True)
    serve(commands, tally)


if __name__ == "__main__":
    main()
