"""`tally cluster` and the timelines of profilers: described, imported, judged, written for Perfetto."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import typer

from tallystick.audits.timeline import audit as trace_audit, graph_work
from tallystick.core.errors import UnavailableError
from tallystick.core.files import DOCUMENT_BYTES_MAX, read_document, write_atomically
from tallystick.engines.torch import environment as torch_environment
from tallystick.formats import cluster as clusters, slurm
from tallystick.formats.store import folders, traces
from tallystick.formats.store.folders import require_folder
from tallystick.recording.timelines import imported
from tallystick.tally import training
from tallystick.tally.cli import output
from tallystick.tally.cli.options import AsJson, ReplayDevice, Verbose, VerdictAsJson, run_in, show_verdict
from tallystick.tally.cli.output import print_json
from tallystick.verdicts import words

# `tally cluster`: the devices of a cluster, described and shown.

SLURM_BYTES_MAX = 1 << 20
OUT = typer.Option(..., help="Write the cluster here, as `cluster.json`.")


def describe(out: Path = OUT, json: AsJson = False) -> None:
    """Describe this machine: its processor, its memory and its accelerators. No name of the machine is written."""
    _write(torch_environment.this_machine(), out, json)


def import_(
    folder: Path = typer.Argument(help="The folder of slurm.conf, gres.conf and topology.yaml or topology.conf."),
    out: Path = OUT,
    topology: str | None = typer.Option(None, help="The topology of topology.yaml; by default its default one."),
    json: AsJson = False,
) -> None:
    """Read the nodes, GPUs and switches of a SLURM cluster; what its files do not say is left out."""
    files = {name: read_document(folder / name, SLURM_BYTES_MAX) for name in slurm.FILES if (folder / name).is_file()}
    if not files:
        raise UnavailableError(f"{folder}: holds none of {', '.join(slurm.FILES)}")
    _write(slurm.read_slurm(files, topology), out, json)


def show(
    file: Path = typer.Argument(help="A cluster.json."),
    json: AsJson = False,
) -> None:
    """List the devices and links of a cluster."""
    _print(clusters.Cluster.from_bytes(read_document(file), file.name), json)


def _write(cluster: clusters.Cluster, out: Path, as_json: bool) -> None:
    data = cluster.to_bytes()
    if len(data) > DOCUMENT_BYTES_MAX:
        raise UnavailableError(f"{out}: {len(data)} bytes, more than the {DOCUMENT_BYTES_MAX} that can be read again")
    write_atomically(out, data)
    _print(cluster, as_json)


def _print(cluster: clusters.Cluster, as_json: bool) -> None:
    if as_json:
        print_json({"digest": cluster.identity, "cluster": cluster.to_json()})
        return
    print(cluster.identity)
    for device in cluster.devices:
        print(words.printable(_line(device)))
    for link in cluster.links:
        speed = "unknown speed" if link.bandwidth is None else f"{link.bandwidth:,} bytes/s"
        print(words.printable(f"link {link.ends[0]} - {link.ends[1]}: {speed}"))


def _line(device: clusters.Device) -> str:
    parts = [device.kind, *([device.model] if device.model else []), *([f"in {device.host}"] if device.host else [])]
    parts += [f"{device.memory:,} bytes"] if device.memory else []
    parts += [f"{device.bandwidth:,} bytes/s"] if device.bandwidth else []
    parts += [f"{dtype} {rate:.3g} operations/s" for dtype, rate in device.peak.items()]
    return f"{device.name}: {', '.join(parts)}"


# `tally import-trace`, `audit-trace`, `export-trace`: timelines of profilers, judged, and written for Perfetto.

TRACE = typer.Argument(help="The folder of a trace: RUN/traces/NAME, or one that stands alone.")


def profile_step(
    run: Path = typer.Argument(help="A run directory with a step graph."),
    step: int = typer.Option(..., min=1, help="The step that is replayed."),
    name: str = typer.Option("replay", help="The name of the trace in the run."),
    out: Path | None = typer.Option(None, help="Write the trace into this folder, and not into the run."),
    device: ReplayDevice = "cpu",
    json: AsJson = False,
) -> None:
    """Replay a step and keep its timeline.

    Every operator of the step graph is marked, so that all of its kernels are explained. It is the timeline of this
    machine, not that of the recorded run.
    """
    target = imported.target_of(run if out is None else None, name, out)
    _show_trace(training.profile_step(run_in(run), step, target, device), target, json)


def import_trace(
    files: list[Path] = typer.Argument(help="What the profiler wrote; of several processes, one file each."),
    run: Path | None = typer.Option(None, help="The run that was profiled: the trace becomes RUN/traces/NAME."),
    name: str = typer.Option("profile", help="The name of the trace in its run."),
    out: Path | None = typer.Option(None, help="Write the trace into this folder instead."),
    step: int | None = typer.Option(None, min=0, help="The step that was profiled, or the first of them."),
    graph: Path | None = typer.Option(None, help="The graph of the step, if not that of the run."),
    cluster: Path | None = typer.Option(None, help="The devices (`tally cluster`); by default those of this machine."),
    compiled: Path | None = typer.Option(None, help="Of JAX: the text of the compiled program, `compile().as_text()`."),
    host: str = typer.Option("host", help="The host in the cluster on which the files were written."),
    rank: list[str] = typer.Option([], help="The device of a rank of a distributed run, as 0=node1/gpu0; repeat it."),
    json: AsJson = False,
) -> None:
    """Import the timeline of a profiler.

    It takes what torch.profiler and the profiler of JAX write. Operators of the graph are found by marks, or by name
    and shapes; what cannot be told apart stays unexplained. No host name is kept.
    """
    target = imported.target_of(run, name, out)
    subject = imported.subject_of(run, graph, cluster, imported.placement_of(host, rank), step, compiled)
    _show_trace(imported.import_profile(files, target, subject), target, json)


def _show_trace(statement: traces.TraceStatement, target: Path, as_json: bool) -> None:
    result = {"trace": statement.identity, "folder": str(target), "events": statement.events.size}
    text = f"{target}: {statement.events.size:,} events; judge them with `tally audit-trace {quote(str(target))}`"
    output.show(result, text, as_json)  # type: ignore[arg-type]


def audit_trace(
    trace: Path = TRACE,
    graph: Path | None = typer.Option(None, help="The graph that the trace names, if it stands in no run directory."),
    skew: int | None = typer.Option(
        None, min=0, help="How far the clocks of two devices may differ, in nanoseconds; 100000 by default."
    ),
    unexplained: float | None = typer.Option(
        None, min=0.0, max=1.0, help="The share of device time that no operator has to account for; 0.1 by default."
    ),
    json: VerdictAsJson = False,
    verbose: Verbose = False,
) -> int:
    """Judge a reported trace by graph and devices.

    Every operator ran, behind those it reads, on a device that exists, within its memory, its peak and its bandwidth;
    collectives have all their members; no two kernels share a stream.
    """
    opened = trace_audit.open_trace(trace_folder(trace), graph)
    given: dict[str, Any] = {"skew": skew, "unexplained": unexplained}
    limits = replace(graph_work.DEFAULT, **{name: value for name, value in given.items() if value is not None})
    return show_verdict(trace_audit.audit_trace(opened, limits), str(trace), json, verbose)


def export_trace(
    trace: Path = TRACE,
    out: Path = typer.Option(..., help="Write this file, for ui.perfetto.dev or chrome://tracing."),
    json: AsJson = False,
) -> None:
    """Write a trace for Perfetto.

    The file is Chrome trace JSON with one track for each device and stream.
    """
    folder = trace_folder(trace)
    statement = folder.statement()
    pieces = traces.chrome_json(statement, folder.cluster(), folder.events())
    write_atomically(out, lambda file: file.writelines(piece.encode() for piece in pieces))
    result = {"file": str(out), "events": statement.events.size, "trace": statement.identity}
    output.show(result, f"{out}: {statement.events.size:,} events; open it at https://ui.perfetto.dev", json)  # type: ignore[arg-type]


def trace_folder(path: Path) -> traces.TraceFolder:
    """The trace at `path`; raises `UnavailableError` that says what such a folder holds."""
    return traces.TraceFolder(require_folder(path, folders.TRACE))
