"""Every command prints its result as one JSON object, and nothing else on stdout; a short list says which do not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tallystick.tally.cli.application import application
from tests.support.prefork.commands import commands
from tests.tally.cli.test_graph import SHIFT, program

Tally = Callable[..., Any]
UNTIL_STOPPED: Final = "runs until it is stopped; `tally dispute status --json` says where disputes stand"
EXCEPTIONS: Final = {
    "prover": UNTIL_STOPPED,
    "watchtower": UNTIL_STOPPED,
    "dispute delegate": "writes a file, whose path it prints",
    "challenger": UNTIL_STOPPED,
    "committee": UNTIL_STOPPED,
    "rule": UNTIL_STOPPED,
    "coordinator serve": "runs until it is stopped; `tally coordinator show --json` says what it holds",
    "contract attest": "runs until it is stopped, and prints an address",
    "serve-model": "runs until it is stopped, and answers in JSON",
    "serve-vllm": "starts vLLM in its place, which runs until it is stopped",
    "completion": "prints a script",
    "demo": "shows other commands, each of which prints JSON",
}


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands_of(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS: Final = dict(commands_of(application()))


def offers_json(command: Any) -> bool:
    return any("--json" in parameter.opts for parameter in command.params)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in EXCEPTIONS])
def test_every_command_offers_json(name: str) -> None:
    assert offers_json(COMMANDS[name])


def test_the_exceptions_are_commands_and_offer_none() -> None:
    assert {name: offers_json(COMMANDS[name]) for name in EXCEPTIONS} == dict.fromkeys(EXCEPTIONS, False)


def object_of(out: str) -> dict[str, Any]:
    """The one object on stdout, in one line."""
    assert out.count("\n") == 1
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_commands_as_programs_print_one_object(tmp_path: Path) -> None:
    from tallystick.programs.files import save_program

    graph = save_program(tmp_path / "g.json", program(), {"shift": SHIFT})
    (tmp_path / "text.txt").write_text("one\n")

    def tell(*words: object) -> dict[str, Any]:
        done = subprocess.run(
            [commands() / "tally", *map(str, words), "--json"], capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return object_of(done.stdout)

    made = tell("new-key", "a.key")
    assert (set(made), made["file"], len(made["public"])) == ({"file", "public"}, "a.key", 64)
    assert set(tell("commit", "text.txt")) == {"commit", "file", "path"}
    assert tell("graph", "stats", graph)["root"] == tell("graph", "show", graph)["root"]
    assert tell("graph", "slice", graph, "--nodes", "1", "--out", "part.json")["nodes"] == 1
    assert tell("graph", "draw", graph)["dot"].startswith("digraph")
    assert tell("graph", "draw", graph, "--out", "g.svg") == {"file": "g.svg", "nodes": 4}
    assert set(tell("dispute", "seal", made["public"], "--answer", "prover")) == {"salt", "seal"}
    placed = tell("coordinator", "init", "--db", "court.db")
    assert tell("coordinator", "grant", made["public"], 5, "--db", "court.db") == {"party": made["public"], "purse": 5}
    assert tell("coordinator", "show", "--db", "court.db")["coordinator"] == placed["coordinator"]
    assert tell("dispute", "status", "--coordinator", "court.db")["claims"] == []


def test_commands_on_a_run_print_one_object(tally: Tally, run: Path, tmp_path: Path) -> None:
    def tell(*words: object) -> dict[str, Any]:
        told = tally(*words, "--json")
        assert told.code == 0, told.err
        return object_of(told.out)

    checked = tell("fsck", run)
    assert (checked["differing"], checked["checks"] > 0, checked["steps"] > 0) == ([], True, True)
    assert set(tell("verify-data", run)) == {"count", "root", "run"}
    assert tell("prove-data", run, "--index", 0) == json.loads(tally("prove-data", run, "--index", 0).out)
    assert tell("open", run, "--step", 1)["record"]["index"] == 1
    assert tell("targets", run)
    assert set(tell("digest", next((run / "anchors").iterdir()))) == {"state", "tensors"}
    assert tell("export-model", run, tmp_path / "model") == {"model": str(tmp_path / "model"), "run": str(run)}
    attacks = tell("attack", "--list")["attacks"]
    assert {"change", "honest", "name", "seen_by"} == set(attacks[0])
    forged = tell("attack", "honest-copy", run, tmp_path / "copy")
    assert (forged["name"], forged["out"]) == ("honest-copy", str(tmp_path / "copy"))


def test_a_check_that_fails_is_one_object_too(tally: Tally, run: Path) -> None:
    trace = run / "trace.jsonl"
    trace.write_bytes(trace.read_bytes().replace(b'"seconds":0', b'"seconds":1', 1))
    told = tally("fsck", run, "--json")
    assert told.code == 1
    assert object_of(told.out)["differing"]
    assert told.complaint.startswith("tally: ")
