"""SIGTERM ends a command as Ctrl-C does: one line, the exit code of the signal, and everything unwound."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HELD = """
import os, signal, sys
import tallystick.core.tensor_digests

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background

def digest_file(*_, **__):
    try:
        os.kill(os.getpid(), signal.{signal})
    finally:
        print("unwound")

tallystick.core.tensor_digests.digest_file = digest_file
from tallystick.tally.cli.entry import main
main()
"""


@pytest.mark.parametrize(("signal", "code", "line"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")])
def test_a_signal_unwinds_the_command_and_gives_one_line(tmp_path: Path, signal: str, code: int, line: str) -> None:
    command = [sys.executable, "-c", HELD.format(signal=signal), "digest", str(tmp_path / "x.safetensors")]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (code, "unwound\n", f"tally: {line}\n")
