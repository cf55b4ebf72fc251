"""`tally record-inference`: run a graph on given inputs and record the calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.audits.policy import Policy
    from tallystick.store.inference import InferenceDirectory


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="record-inference")(record_inference)


def record_inference(
    graph: Path = typer.Argument(help="A graph; its constants stand beside it."),
    inputs: list[Path] = typer.Option(..., "--inputs", help="A safetensors file of inputs; one call for each."),
    weights: Path = typer.Option(..., "--weights", help="Weights and buffers, as safetensors."),
    out: Path = typer.Option(..., "--out", help="The directory to write."),
    device: str = typer.Option("cpu", help="Run on cpu or cuda."),
    json: bool = typer.Option(False, "--json", help="Print the claim as JSON."),
) -> None:
    """Run a graph on each file of inputs, and record what went in and what came out."""
    from tallystick.cli.output import print_json, talk
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.graphs.files import load_program
    from tallystick.recorders.inference import record_graph_inference
    from tallystick.tensors.safetensors import read_state

    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    program, constants = load_program(graph)
    prefix = "inputs."
    calls = [{name.removeprefix(prefix): t for name, t in read_state(path).items()} for path in inputs]
    claim = record_graph_inference(program, constants, read_state(weights), calls, TorchEngine(device), out, device)
    talk().print(f"{out}: {claim.transcript.size} calls", soft_wrap=True)
    if json:
        print_json(claim.to_json())
    else:
        print(claim.identity)


def audit_calls(run: InferenceDirectory, policy: Policy, nonce: bytes, device: str | None, as_json: bool) -> int:
    """Audit recorded calls on this machine and print what was found; returns the exit code."""
    import torch

    from tallystick.audits.inference import audit_inference
    from tallystick.cli.judge import print_verdict
    from tallystick.cli.output import print_json, progress_bar
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.frameworks.torch.environment import describe_environment

    if policy.tolerance is not None:
        raise UsageError("the policy's tolerance compares states of a training; calls are compared by their outputs")
    stated = run.environment()
    on = device or (stated.device if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(min(stated.threads, 256))
    environment = describe_environment("cuda" if on == "cuda" else "cpu")
    with progress_bar() as bar:
        task = bar.add_task("replaying", total=None, seen="")
        report = audit_inference(
            run,
            policy,
            nonce,
            environment,
            TorchEngine(on),
            lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print_json(report.to_json())
    else:
        print_verdict(report.verdict, f"claim {report.claim}")
        print(f"replayed: graph {report.graph} on {len(report.replayed)} of {report.calls} calls")
        print(f"repeat with --nonce {report.nonce.hex()}")
    return report.verdict.exit_code
