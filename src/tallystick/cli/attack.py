"""`tally attack`: forge a run in one of the catalogued ways, to see which audit rejects it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.cli.options import JSON
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.attacks.attack import Attack, Expected
    from tallystick.commitments.encoding import Json


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(attack)


def attack(
    name: str | None = typer.Argument(None, help="The name of an attack; --list shows all."),
    run: Path | None = typer.Argument(None, help="A finished honest run; it is left alone."),
    out: Path | None = typer.Argument(None, help="The run directory to write the forgery to."),
    list_all: bool = typer.Option(False, "--list", help="List all attacks and what they change."),
    json: bool = JSON,
) -> None:
    """Forge a run, to see which audit rejects it."""
    if list_all:
        return _list(json)
    if name is not None:
        from tallystick.attacks.names import require_attack

        require_attack(name)
    if name is None or run is None or out is None:
        raise UsageError("`tally attack NAME RUN OUT`, or `tally attack --list`")
    return _forge(name, run, out, json)


def _list(as_json: bool) -> None:
    if as_json:
        from tallystick.attacks.catalogue import ATTACKS
        from tallystick.cli.output import print_json

        print_json({"attacks": [_json(each) for each in ATTACKS.values()]})
        return
    from tallystick.attacks.names import CHANGES

    width = max(map(len, CHANGES))
    for name, change in CHANGES.items():
        print(f"{name:<{width}}  {change}")


def _forge(name: str, run: Path, out: Path, as_json: bool) -> None:
    from tallystick.documents.targets import require_empty_folder
    from tallystick.store.folders import RUN, require_folder

    require_folder(run, RUN)
    require_empty_folder(out)
    import torch

    from tallystick.attacks.catalogue import find_attack
    from tallystick.cli.output import show
    from tallystick.store.run import RunDirectory

    chosen = find_attack(name)
    torch.set_num_threads(RunDirectory(run).environment().threads)
    chosen.forge(run, out)
    show({**_json(chosen), "out": str(out)}, f"{out}: {chosen.change}. {_who_sees(chosen)}", as_json)


def _json(attack: Attack) -> dict[str, Json]:
    return {"change": attack.change, "honest": attack.is_honest, "name": attack.name, "seen_by": _who_sees(attack)}


def _who_sees(attack: Attack) -> str:
    """The first audit, in the order of their effort, that should not accept the forgery."""
    if attack.is_honest:
        return "Every audit should accept it."
    sampled = "`tally audit` should see it, if its sample hits the forged steps"
    if attack.reference == "corpus":
        sampled = "`tally audit --corpus`, with the directory of the shards, should see it"
    if attack.reference == "checkpoint":
        sampled = "`tally audit --initial`, with the directory of the checkpoint, should see it"
    if "rows of the corpus" in attack.exact.checks:
        sampled = "`tally audit --corpus --initial`, with the shards and a directory of their tokenizer, should see it"
    commands = {
        "screens": "Any audit should see it without a replay",
        "exact": sampled,
        "full": "`tally audit --full` should see it",
        "claim": "`tally audit --claim`, with the digest of the honest claim, should see it",
        "tolerant": "`tally audit --tolerant` should see it",
    }
    for audit in ("screens", "exact", "full", "tolerant", "claim"):
        if attack.expected(audit).outcome in ("rejected", "refused"):
            return f"{commands[audit]}: {_by(attack.expected(audit))}."
    return f"No audit can see it: {attack.exact.why}."


def _by(expected: Expected) -> str:
    return ", ".join(expected.checks)
