"""`tally audit` and `tally verify-segment`: replay what was recorded and say how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tallystick.cli.options import device_option, from_options
from tallystick.cli.verdicts import VERBOSE, print_verdict

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from tallystick.api.audit_result import AuditResult
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import Progress

RUN = typer.Argument(help="A finished run directory.")
POLICY = typer.Option(None, help="The verifier's policy, as TOML or JSON.")
CLAIM = typer.Option(None, help="The digest of the claim that was published: sha256:…")
DEVICE = device_option("Replay on cpu or cuda; by default on the device that the spec names.", None)
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
    verbose: bool = VERBOSE,
) -> int:
    """Replay part of a run and compare it with the record.

    Every digest is rechecked first. The nonce chooses the steps to replay. Recorded calls of a model are audited in
    the same way.
    """
    from tallystick.api.auditing import audit

    _require_page(html)
    chosen = {"samples": samples, "window": window, "claim": claim, "full": full or None}
    asked = _policy(policy, chosen | {"mode": "tolerant" if tolerant else None, "replay": replay})
    with _watched() as progress:
        result = audit(run, asked, nonce=nonce, device=device, progress=progress)
    return _show(result, html, json, verbose)


def verify_segment(
    run: Path = RUN,
    start: int = typer.Option(..., "--from", min=0, help="The anchor to start from."),
    end: int = typer.Option(..., "--to", min=1, help="The anchor to arrive at."),
    claim: str | None = CLAIM,
    device: str | None = DEVICE,
    html: Path | None = HTML,
    json: bool = JSON,
    verbose: bool = VERBOSE,
) -> int:
    """Replay one segment and compare every bit.

    The state at its end has to equal the recorded anchor in every bit.
    """
    from tallystick.api.segment import verify_segment

    _require_page(html)
    with _watched() as progress:
        asked = _policy(None, {"claim": claim})
        result = verify_segment(run, start, end, asked, device=device, progress=progress)
    return _show(result, html, json, verbose)


def _policy(path: Path | None, chosen: dict[str, Any]) -> Policy:
    from tallystick.audits.policy import Policy, read_policy

    asked = {name: value for name, value in chosen.items() if value is not None}
    held = read_policy(path).model_dump(mode="json", exclude_none=True) if path else {}
    return from_options(Policy, held | asked)


@contextmanager
def _watched() -> Iterator[Progress]:
    """A bar that begins once there is a run to recheck, so that a complaint about a missing one stands alone."""
    from tallystick.cli.output import progress_bar

    with ExitStack() as shown:
        bars: list[Bar] = []

        def progress(done: int, total: int) -> None:
            if not bars:
                bars.append(shown.enter_context(progress_bar()))
                bars[0].add_task("replaying", total=None, seen="")
            bars[0].update(bars[0].task_ids[0], completed=done, total=total or None)

        yield progress


def _require_page(html: Path | None) -> None:
    if html is not None:
        from tallystick.documents.targets import require_writable

        require_writable(html)


def _show(result: AuditResult, html: Path | None, as_json: bool, verbose: bool) -> int:
    from tallystick.cli.output import print_json, talk

    if html is not None:
        from tallystick.documents.files import write_atomically

        write_atomically(html, result.page().encode())
    if as_json:
        print_json(result.to_json())
    else:
        print_verdict(result.lines(), verbose)
    if html is not None:
        talk().print(f"the report is in {html}", markup=False, soft_wrap=True)
    return result.exit_code
