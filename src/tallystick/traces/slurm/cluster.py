"""A cluster out of SLURM's files: nodes and memory of `slurm.conf`, GPUs of `gres.conf`, switches of the topology.

What SLURM does not say is left out: it knows no bandwidths, and its link speeds have no unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from tallystick.errors import MalformedError
from tallystick.traces.cluster import Cluster, Device, Link
from tallystick.traces.datasheets import capacity_of
from tallystick.traces.slurm.conf import Line, conf_lines
from tallystick.traces.slurm.hostlist import ListedNames
from tallystick.traces.slurm.topology import (
    CONF_NAME,
    YAML_NAME,
    Switch,
    read_topology_conf,
    read_topology_yaml,
)

NODES: Final = "slurm.conf"
GRES: Final = "gres.conf"
FILES: Final = (NODES, GRES, YAML_NAME, CONF_NAME)
MEBIBYTE: Final = 1 << 20
GPUS_MAX: Final = 1024
"""The most GPUs of one node."""
DEVICES_MAX: Final = 1 << 17


@dataclass
class NodeParts:
    """What is known of one node: its memory in bytes, and the model of each of its GPUs."""

    memory: int | None = None
    gpus: list[str] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)
    """The GPUs that slurm.conf counts; those of gres.conf are used where it has any."""


def read_slurm(files: Mapping[str, bytes], topology: str | None = None) -> Cluster:
    """The cluster of these files by name, those of `FILES` that there are.

    Raises `MalformedError` naming the file where something is no configuration, or names do not fit together.
    """
    nodes = _nodes(files.get(NODES, b""))
    switches = _switches(files, topology)
    for name in (each for switch in switches for each in switch.nodes):
        nodes.setdefault(name, NodeParts())
    _add_gpus(nodes, files.get(GRES, b""))
    if not nodes:
        raise MalformedError(f"no node is named in {', '.join(files)}")
    _require_few(nodes, switches)
    try:
        return Cluster.of(*_parts(nodes, switches))
    except ValidationError as error:
        why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise MalformedError(f"these files are no cluster: {why[:200]}") from None


def _require_few(nodes: Mapping[str, NodeParts], switches: list[Switch]) -> None:
    """Raise `MalformedError` where there are too many devices, before any is made."""
    count = len(switches) + sum(2 + len(each.gpus or each.promised) for each in nodes.values())
    if count > DEVICES_MAX:
        raise MalformedError(f"these files name {count:,} devices, more than the {DEVICES_MAX:,} of one cluster")


def _switches(files: Mapping[str, bytes], topology: str | None) -> list[Switch]:
    if YAML_NAME in files:
        return read_topology_yaml(files[YAML_NAME], topology)
    return read_topology_conf(files.get(CONF_NAME, b""))


def _nodes(data: bytes) -> dict[str, NodeParts]:
    found: dict[str, NodeParts] = {}
    default: Line = {}
    listed = ListedNames(NODES)
    for line in conf_lines(data, NODES):
        if line.get("nodename", "").upper() == "DEFAULT":
            default |= line
        elif "nodename" in line:
            whole = default | line
            memory = _count(whole["realmemory"], NODES) * MEBIBYTE if "realmemory" in whole else None
            promised = _promised(whole.get("gres", ""))
            for name in listed.names_in(line["nodename"]):
                found[name] = NodeParts(memory, promised=promised)
    return found


def _promised(gres: str) -> list[str]:
    """`gpu:h100:8,nic:2` as the models of eight GPUs; a model that is not stated is empty."""
    found: list[str] = []
    for each in gres.partition("(")[0].split(","):
        words = each.strip().split(":")
        if words[0] == "gpu":
            count = _count(words[-1], NODES) if words[-1][:1].isdigit() and len(words) > 1 else 1
            model = words[1] if len(words) > 2 or (len(words) == 2 and not words[1][:1].isdigit()) else ""
            found += [model] * min(count, GPUS_MAX)
    return found


def _add_gpus(nodes: dict[str, NodeParts], data: bytes) -> None:
    listed, left = ListedNames(GRES), DEVICES_MAX
    for line in conf_lines(data, GRES):
        if line.get("name", "").lower() != "gpu":
            continue
        count = len(listed.names_in(line["file"])) if "file" in line else 1
        count = _count(line["count"], GRES) if "count" in line else count
        if count > GPUS_MAX:
            raise MalformedError(f"{GRES}: {count} GPUs in one node, more than {GPUS_MAX}")
        names = listed.names_in(line["nodename"]) if "nodename" in line else [*nodes]
        left -= count * len(names)
        if left < 0:
            raise MalformedError(f"{GRES}: more than {DEVICES_MAX:,} GPUs")
        for name in names:
            nodes.setdefault(name, NodeParts()).gpus += [line.get("type", "")] * count


def _parts(nodes: Mapping[str, NodeParts], switches: list[Switch]) -> tuple[list[Device], list[Link]]:
    devices = [Device(name=each.name, kind="switch") for each in switches]
    links = [_link(each.name, other) for each in switches for other in (*each.nodes, *each.switches)]
    for name, parts in nodes.items():
        devices.append(Device(name=name, kind="host", memory=parts.memory))
        devices.append(Device(name=f"{name}/cpu", kind="cpu", memory=parts.memory, host=name))
        devices += [_gpu(name, number, model) for number, model in enumerate(parts.gpus or parts.promised)]
    links += [_link(device.host, device.name) for device in devices if device.host is not None]
    return devices, links


def _gpu(node: str, number: int, model: str) -> Device:
    known = capacity_of(model.replace("_", " "))
    return Device(
        name=f"{node}/gpu{number}",
        kind="gpu",
        model=model or None,
        bandwidth=None if known is None else known.bandwidth,
        peak={} if known is None else dict(known.peak),
        host=node,
    )


def _link(one: str, other: str) -> Link:
    return Link(ends=(min(one, other), max(one, other)))


def _count(text: str, what: str) -> int:
    """A number that may end with K, M, G or T, powers of 1024."""
    digits, factor = (text[:-1], "KMGT".find(text[-1:].upper()) + 1) if text[-1:].isalpha() else (text, 0)
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 15 or (digits != text and not factor):
        raise MalformedError(f"{what}: {text[:40]!a} is no number")
    return int(digits) * (1 << 10 * factor)
