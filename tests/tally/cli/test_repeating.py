"""The line `repeat:` holds every option that was typed and says something about the verdict."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from tallystick.tally.cli.application import application
from tallystick.tally.cli.options import OUTPUTS, repeated

Tally = Callable[..., Any]
NONCE = "07" * 32
VALUES = {"device": "cpu", "nonce": NONCE, "segment": "1..2"}


def context_of(*arguments: str) -> typer.Context:
    root = application()
    with root.make_context("tally", [arguments[0]]) as above:
        return root.commands[arguments[0]].make_context(arguments[0], list(arguments[1:]), parent=above)


@pytest.mark.parametrize("command", ["audit", "verify-segment"])
def test_every_option_is_carried_but_those_for_the_output(command: str, tmp_path: Path) -> None:
    parameters = application().commands[command].params
    options = [each for each in parameters if each.param_type_name == "option" and each.name != "help"]
    for each in options:
        value = () if each.is_flag else (VALUES.get(each.name, "3"),)
        needed = () if command == "audit" else ("--from", "0", "--to", "4")
        typed = (max(each.opts, key=len), *value)
        found = repeated(context_of(command, "run", *needed, *typed), b"")
        is_carried = shlex.join(typed) in found
        assert is_carried == (each.name not in OUTPUTS | {"nonce"}), (typed, found)


def test_the_nonce_that_was_drawn_is_in_it_and_no_password() -> None:
    context = context_of("audit", "a run", "--anchors", "s3://key:secret@bucket", "--nonce", "ab" * 32)
    assert repeated(context, bytes.fromhex(NONCE)) == (
        f"tally audit 'a run' --anchors 's3://key:***@bucket' --nonce {NONCE}"
    )


def test_an_audit_repeated_by_its_line_gives_the_same_verdict(tally: Tally, honest: Path, tmp_path: Path) -> None:
    policy = tmp_path / "mine.toml"
    policy.write_text('mode = "tolerant"\nupdate_floor = 1e-7\nsamples = 2\n')
    first = json.loads(tally("audit", honest, "--policy", policy, "--window", "8", "--json").out)
    assert shlex.split(first["command"])[:-2] == [
        *("tally", "audit", str(honest), "--window", "8", "--policy", str(policy)),
    ]
    again = json.loads(tally(*shlex.split(first["command"])[1:], "--json").out)
    for name in ("policy", "nonce", "sampled", "verdict", "sentence", "command"):
        assert again[name] == first[name]
