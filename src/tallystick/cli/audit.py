"""`tally audit` and `tally verify-segment`: replay what was recorded and say how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.audits.policy import Policy
    from tallystick.audits.report import Report
    from tallystick.audits.training import Progress
    from tallystick.store.run import RunDirectory
    from tallystick.workloads.verifier_stack import VerifierStack

RUN = typer.Argument(help="A finished run directory.")
POLICY = typer.Option(None, help="The verifier's policy, as TOML or JSON.")
CLAIM = typer.Option(None, help="The digest of the claim that was published: sha256:…")
DEVICE = typer.Option(None, help="Replay on cpu or cuda; by default on the device that the spec names.")
HTML = typer.Option(None, "--html", help="Also write the report as one self-contained page.")
JSON = typer.Option(False, "--json", help="Print the report as JSON.")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(audit)
    app.command(name="verify-segment")(verify_segment)


def audit(
    run: Path = RUN,
    samples: int | None = typer.Option(None, min=1, help="How many steps to sample."),
    window: int | None = typer.Option(None, min=1, help="The longest replay from an anchor, in steps."),
    nonce: str | None = typer.Option(None, help="Repeat an audit with the nonce it printed."),
    policy: Path | None = POLICY,
    claim: str | None = CLAIM,
    full: bool = typer.Option(False, "--full", help="Replay the whole chain, anchor to anchor."),
    tolerant: bool = typer.Option(False, "--tolerant", help="Judge by calibrated limits, for another stack."),
    replay: str | None = typer.Option(
        None, help="Replay the step graph, or the recipe with a trainer: graph or recipe."
    ),
    device: str | None = DEVICE,
    html: Path | None = HTML,
    json: bool = JSON,
) -> int:
    """Recheck every digest of a run, replay sampled steps and compare; likewise the recorded calls of a model."""
    from tallystick.audits.sampling import draw_nonce, parse_nonce
    from tallystick.audits.training import audit_training
    from tallystick.cli.inference import audit_calls
    from tallystick.store.inference import InferenceDirectory
    from tallystick.store.statement import OpeningDirectory, read_statement

    statement = read_statement(run)
    if isinstance(statement, OpeningDirectory):
        raise UsageError(f"{run}: holds opened operators; `tally judge {run}` judges them")
    chosen = {"samples": samples, "window": window, "claim": claim, "full": full or None}
    asked = _policy(policy, chosen | {"mode": "tolerant" if tolerant else None, "replay": replay})
    drawn = draw_nonce() if nonce is None else parse_nonce(nonce)
    if isinstance(statement, InferenceDirectory):
        return audit_calls(statement, asked, drawn, device, json)
    stack = verifier_stack_for(statement, device, asked)
    with _watched() as progress:
        report = audit_training(statement, asked, drawn, stack, progress)
    return _show(report, html, json)


def verify_segment(
    run: Path = RUN,
    start: int = typer.Option(..., "--from", min=0, help="The anchor to start from."),
    end: int = typer.Option(..., "--to", min=1, help="The anchor to arrive at."),
    claim: str | None = CLAIM,
    device: str | None = DEVICE,
    html: Path | None = HTML,
    json: bool = JSON,
) -> int:
    """Replay one segment and ask for equality of every bit of the state."""
    from tallystick.audits.training import verify_segment
    from tallystick.store.run import RunDirectory

    asked = _policy(None, {"claim": claim})
    directory = RunDirectory(run)
    stack = verifier_stack_for(directory, device, asked)
    with _watched() as progress:
        report = verify_segment(directory, asked, start, end, stack, progress)
    return _show(report, html, json)


def _policy(path: Path | None, chosen: dict[str, Any]) -> Policy:
    from tallystick.audits.policy import Policy, read_policy
    from tallystick.errors import MalformedError

    asked = {name: value for name, value in chosen.items() if value is not None}
    held = read_policy(path).model_dump(mode="json", exclude_none=True) if path else {}
    try:
        return Policy.from_json(held | asked, "policy")
    except MalformedError as error:
        raise UsageError(str(error)) from None


def verifier_stack_for(run: RunDirectory, device: str | None, policy: Policy) -> VerifierStack:
    """PyTorch on this machine, for the environment that the run states; raises `UsageError` for another device."""
    from tallystick.frameworks.torch.training.verifier_stack import torch_verifier_stack

    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    return torch_verifier_stack(run.environment(), device, policy.parameters_max)


@contextmanager
def _watched() -> Iterator[Progress]:
    from tallystick.cli.output import progress_bar

    with progress_bar() as bar:
        task = bar.add_task("replaying", total=None, seen="")

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield progress


def _show(report: Report, html: Path | None, as_json: bool) -> int:
    from tallystick.cli.output import existing, print_json
    from tallystick.cli.report import print_report

    if html is not None:
        from tallystick.cli.page import render_page
        from tallystick.documents.files import write_atomically

        existing(html.absolute().parent, "folder")
        write_atomically(html, render_page(report).encode())
    if as_json:
        print_json(report.to_json())
    else:
        print_report(report)
        print(f"replayed: {report.replayed}")
    return report.verdict.exit_code
