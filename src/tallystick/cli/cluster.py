"""`tally cluster`: the devices of a cluster, described and shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.cli.options import JSON

if TYPE_CHECKING:
    from tallystick.traces.cluster import Cluster, Device

SLURM_BYTES_MAX = 1 << 20
OUT = typer.Option(..., help="Write the cluster here, as `cluster.json`.")


def register(app: typer.Typer) -> None:
    """Add the group of this file."""
    group = typer.Typer(no_args_is_help=True, help="State the devices of a cluster.")
    for command in (describe, import_, show):
        group.command(name=command.__name__.rstrip("_"))(command)
    app.add_typer(group, name="cluster")


def describe(out: Path = OUT, json: bool = JSON) -> None:
    """Describe this machine: its processor, its memory and its accelerators. No name of the machine is written."""
    from tallystick.frameworks.torch.this_machine import this_machine

    _write(this_machine(), out, json)


def import_(
    folder: Path = typer.Argument(help="The folder of slurm.conf, gres.conf and topology.yaml or topology.conf."),
    out: Path = OUT,
    topology: str | None = typer.Option(None, help="The topology of topology.yaml; by default its default one."),
    json: bool = JSON,
) -> None:
    """Read the nodes, GPUs and switches of a SLURM cluster; what its files do not say is left out."""
    from tallystick.documents.files import read_document
    from tallystick.errors import UnavailableError
    from tallystick.traces.slurm.cluster import FILES, read_slurm

    found = {name: read_document(folder / name, SLURM_BYTES_MAX) for name in FILES if (folder / name).is_file()}
    if not found:
        raise UnavailableError(f"{folder}: holds none of {', '.join(FILES)}")
    _write(read_slurm(found, topology), out, json)


def show(
    file: Path = typer.Argument(help="A cluster.json."),
    json: bool = JSON,
) -> None:
    """List the devices and links of a cluster."""
    from tallystick.documents.files import read_document
    from tallystick.traces.cluster import Cluster

    _print(Cluster.from_bytes(read_document(file), file.name), json)


def _write(cluster: Cluster, out: Path, as_json: bool) -> None:
    from tallystick.documents.files import DOCUMENT_BYTES_MAX, write_atomically
    from tallystick.errors import UnavailableError

    data = cluster.to_bytes()
    if len(data) > DOCUMENT_BYTES_MAX:
        raise UnavailableError(f"{out}: {len(data)} bytes, more than the {DOCUMENT_BYTES_MAX} that can be read again")
    write_atomically(out, data)
    _print(cluster, as_json)


def _print(cluster: Cluster, as_json: bool) -> None:
    from tallystick.cli.output import print_json
    from tallystick.presentation.verdict_text import printable

    if as_json:
        print_json({"digest": cluster.identity, "cluster": cluster.to_json()})
        return
    print(cluster.identity)
    for device in cluster.devices:
        print(printable(_line(device)))
    for link in cluster.links:
        speed = "unknown speed" if link.bandwidth is None else f"{link.bandwidth:,} bytes/s"
        print(printable(f"link {link.ends[0]} - {link.ends[1]}: {speed}"))


def _line(device: Device) -> str:
    parts = [device.kind, *([device.model] if device.model else []), *([f"in {device.host}"] if device.host else [])]
    parts += [f"{device.memory:,} bytes"] if device.memory else []
    parts += [f"{device.bandwidth:,} bytes/s"] if device.bandwidth else []
    parts += [f"{dtype} {rate:.3g} operations/s" for dtype, rate in device.peak.items()]
    return f"{device.name}: {', '.join(parts)}"
