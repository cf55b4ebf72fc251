"""Tries a client's schema in a process of its own before it is used: a hostile one may take any time and memory.

`python -m tallystick.recording.serving.schemas` reads a schema and says what is wrong with it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import lru_cache
from threading import Lock
from typing import Final

from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.generation.grammars import check_grammar

TRIAL_BYTES: Final = 1 << 30
TRIAL_SECONDS: Final = 5
"""Of processor time; on a busy machine `WAIT_SECONDS` pass."""
WAIT_SECONDS: Final = 30
REFUSED: Final = 3
TOO_MUCH: Final = "the schema: its grammar takes too much time or memory"
TURN: Final = Lock()


@lru_cache(maxsize=256)
def complaint_about(schema: str) -> str:
    """What is wrong with a schema, in one line; empty if it can be used. One trial runs at a time."""
    command = [sys.executable, "-m", "tallystick.recording.serving.schemas"]
    with TURN:
        try:
            run = subprocess.run(command, input=schema.encode(), capture_output=True, timeout=WAIT_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return TOO_MUCH
    if run.returncode == REFUSED:
        return run.stdout.decode(errors="replace").strip()
    return "" if run.returncode == 0 else TOO_MUCH


def main() -> int:
    """Try the schema on standard input; its complaint goes to standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_SECONDS, TRIAL_SECONDS))
    try:
        check_grammar(sys.stdin.buffer.read().decode())
    except UnavailableError as error:
        sys.stdout.write(str(error))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
