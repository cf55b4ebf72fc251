"""Runs what it is called, `tally` or `python`, in a fork of its server.

Words, folder, variables, limits and streams go there, and signals too.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A client that is killed forwards nothing; the server sees its end and kills the fork."""
LIMITS = ("RLIMIT_FSIZE",)


def main() -> None:
    with socket.socket(socket.AF_UNIX) as server:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until it is known to whom they go
        server.connect(f"{os.path.abspath(sys.argv[0])}.socket")
        limits = {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS}
        request = {"words": sys.argv[1:], "folder": os.getcwd(), "variables": dict(os.environ), "limits": limits}
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        answers = server.makefile()
        process = int(answers.readline())
        for number in FORWARDED:
            signal.signal(number, lambda number, _: os.kill(process, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        end_as(int(answers.readline()))


def end_as(code: int) -> Any:
    """Exit with this code, or by the signal whose negative it is."""
    if code >= 0:
        sys.exit(code)
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
