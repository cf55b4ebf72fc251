"""`tally record-inference`: run a graph on given inputs and record the calls."""

from __future__ import annotations

from pathlib import Path

import typer

from tallystick.cli.options import device_option


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="record-inference")(record_inference)


def record_inference(
    graph: Path = typer.Argument(help="A graph; its constants stand beside it."),
    inputs: list[Path] = typer.Option(..., "--inputs", help="A safetensors file of inputs; one call for each."),
    weights: Path = typer.Option(..., "--weights", help="Weights and buffers, as safetensors."),
    out: Path = typer.Option(..., "--out", help="The directory to write."),
    device: str = device_option("Run on cpu or cuda."),
    json: bool = typer.Option(False, "--json", help="Print the claim as JSON."),
) -> None:
    """Run a graph on given inputs and record the calls.

    Every file of inputs is one call; its inputs and outputs are kept.
    """
    from tallystick.documents.targets import require_writable_folder

    require_writable_folder(out)
    from tallystick.cli.output import print_json, talk
    from tallystick.frameworks.torch.engine import TorchEngine
    from tallystick.graphs.files import load_program
    from tallystick.graphs.modules import load_modules
    from tallystick.recorders.inference import record_graph_inference
    from tallystick.tensors.safetensors import read_state

    program, constants = load_program(graph)
    prefix = "inputs."
    calls = [{name.removeprefix(prefix): t for name, t in read_state(path).items()} for path in inputs]
    modules = load_modules(graph, program).paths
    claim = record_graph_inference(
        program, constants, read_state(weights), calls, TorchEngine(device), out, device, modules
    )
    talk().print(f"{out}: {claim.transcript.size} calls", soft_wrap=True)
    if json:
        print_json(claim.to_json())
    else:
        print(claim.identity)
