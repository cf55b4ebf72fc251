"""Clusters out of SLURM's configuration: names, nodes, GPUs, and the topology of switches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

from pydantic import ValidationError

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.lazy import require
from tallystick.formats.cluster import Cluster, Device, Link, capacity_of

# SLURM's lists of names: `node[1-3,07],rack[1-2]n[0-1]` is eight names.

NAMES_MAX: Final = 1 << 17
"""The most names in one list: larger than any cluster that SLURM runs."""
LISTED_MAX: Final = 1 << 20
"""The most names in all lists of one file: a node stands in several."""
# Possessive quantifiers keep the time linear where a text does not match.
WORD: Final = r"(?:[^\[\],\s]|\[[\d,\- ]++\])"
LIST: Final = re.compile(rf"\s*+{WORD}*+\s*+(?:,\s*+{WORD}*+\s*+)*+", re.ASCII)
WORDS: Final = re.compile(f"{WORD}+", re.ASCII)
PIECES: Final = re.compile(r"[^\[\]]+|\[[^\]]+\]")
RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass
class NameLists:
    """Reads the lists of names of one file, which are limited together."""

    file: str
    left: int = LISTED_MAX

    def names_in(self, text: object) -> list[str]:
        """The names of a list, in its order; raises `MalformedError` naming the file for other texts and long lists."""
        if not isinstance(text, str) or not LIST.fullmatch(text):
            raise self._refused(str(text))
        names: list[str] = []
        for word in WORDS.findall(text):
            options, count = list[list[str]](), 1
            for piece in PIECES.findall(word):
                options.append(self._numbers(piece[1:-1]) if piece[0] == "[" else [piece])
                count *= len(options[-1])
                if count > NAMES_MAX - len(names):
                    raise MalformedError(f"{self.file}: a list of more than {NAMES_MAX} names")
            names += map("".join, product(*options))
        self.left -= len(names)
        if self.left < 0:
            raise MalformedError(f"{self.file}: its lists hold more than {LISTED_MAX} names")
        return names

    def _numbers(self, ranges: str) -> list[str]:
        """`1-3,07` as four numbers, with the zeros in front of the first of a range."""
        numbers: list[str] = []
        for part in ranges.split(","):
            match = RANGE.fullmatch(part.strip())
            if match is None:
                raise self._refused(ranges)
            first, last = match[1], match[2] or match[1]
            if not 0 <= int(last) - int(first) < NAMES_MAX - len(numbers):
                raise MalformedError(f"{self.file}: the range {part.strip()} is empty, or more than {NAMES_MAX} names")
            numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        return numbers

    def _refused(self, text: str) -> MalformedError:
        return MalformedError(f"{self.file}: {text[:40]!a} is no list of names")


# Lines of SLURM's configuration: `Key=value Key="a value"`, with comments and lines that go on after a backslash.

PAIR: Final = re.compile(r'\s*([A-Za-z_]\w*)\s*\+?=("[^"]*"|[^\s"]*)', re.ASCII)
Line = dict[str, str]
"""The values of one line by their keys in lower case."""


def conf_lines(data: bytes, name: str) -> Iterator[Line]:
    """The lines of a file, continued ones joined; raises `MalformedError` naming the file and the line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(f"{name}: byte {error.start} is not UTF-8") from None
    number, whole = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        whole += line.partition("#")[0].rstrip()
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        if whole.strip() and not whole.strip().lower().startswith("include "):
            yield _pairs(whole, f"{name}: line {number}")
        whole = ""
    if whole.strip():
        raise MalformedError(f"{name}: line {number} continues behind the end of the file")


def _pairs(line: str, where: str) -> Line:
    values: Line = {}
    place = 0
    while line[place:].strip():
        match = PAIR.match(line, place)
        if match is None:
            raise MalformedError(f"{where}: {line[place:].strip()[:40]!a} is not of the form Key=value")
        values[match[1].lower()] = match[2].strip('"')
        place = match.end()
    return values


# SLURM's switches and blocks: `topology.yaml`, or `topology.conf` where there is none.

YAML_NAME: Final = "topology.yaml"
CONF_NAME: Final = "topology.conf"
DEPTH_MAX: Final = 32


@dataclass(frozen=True)
class Switch:
    """A switch or a block of nodes, and what is connected to it: nodes, or other switches."""

    name: str
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


def read_topology_conf(data: bytes) -> list[Switch]:
    """The switches of a tree, or the blocks; raises `MalformedError` naming the line."""
    lists = NameLists(CONF_NAME)
    return [
        Switch(name, *(tuple(lists.names_in(line.get(key, ""))) for key in ("nodes", "switches")))
        for line in conf_lines(data, CONF_NAME)  # lines without such a name, as BlockSizes, say how jobs are placed
        if (name := line.get("switchname") or line.get("blockname")) is not None
    ]


def read_topology_yaml(data: bytes, wanted: str | None = None) -> list[Switch]:
    """The switches of the topology `wanted`, else of the default one, else of the first.

    Raises:
        MalformedError: the file holds no such topology.
        UnavailableError: PyYAML is not installed, or the topology is of a kind that is not read.
    """
    topologies = [topology for topology in _parsed(data) if isinstance(topology, dict)]
    if wanted is not None:
        topologies = [topology for topology in topologies if topology.get("topology") == wanted]
    if not topologies:
        raise MalformedError(f"{YAML_NAME}: no topology{'' if wanted is None else f' named {wanted[:40]!a}'}")
    chosen = next((topology for topology in topologies if topology.get("cluster_default") is True), topologies[0])
    if isinstance(chosen.get("tree"), dict):
        return list(_switches(chosen["tree"].get("switches"), "switch"))
    if isinstance(chosen.get("block"), dict):
        return list(_switches(chosen["block"].get("blocks"), "block"))
    if chosen.get("flat"):
        return []
    raise UnavailableError(
        f"{YAML_NAME}: only tree, block and flat topologies are read; use topology.conf, or remove it"
    )


def _switches(entries: object, key: str) -> Iterator[Switch]:
    if not isinstance(entries, list):
        raise MalformedError(f"{YAML_NAME}: a topology without a list that names each {key}")
    lists = NameLists(YAML_NAME)
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
            raise MalformedError(f"{YAML_NAME}: an entry without the name of a {key}")
        given = (entry.get(name) for name in ("nodes", "children"))
        nodes, children = (tuple(lists.names_in("" if names is None else names)) for names in given)
        yield Switch(entry[key], nodes, children)


def _parsed(data: bytes) -> list[Any]:
    """The YAML of a file as plain values."""
    require("yaml")
    import yaml

    try:
        _check_plain(yaml.parse(data, Loader=yaml.SafeLoader))
        topologies = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError) as error:
        raise MalformedError(f"{YAML_NAME}: no YAML: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(topologies, list):
        raise MalformedError(f"{YAML_NAME}: not a list of topologies")
    return topologies


def _check_plain(events: Iterable[Any]) -> None:
    """Refuse aliases, a few lines of which are more than any memory, and deep nesting."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if name == "AliasEvent" or depth > DEPTH_MAX:
            raise MalformedError(f"{YAML_NAME}: aliases, and nesting deeper than {DEPTH_MAX}, are not read")


# A cluster out of SLURM's files: nodes and memory of `slurm.conf`, GPUs of `gres.conf`, switches of the topology.
#
# What SLURM does not say is left out: it knows no bandwidths, and its link speeds have no unit.

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
    if YAML_NAME in files:
        switches = read_topology_yaml(files[YAML_NAME], topology)
    else:
        switches = read_topology_conf(files.get(CONF_NAME, b""))
    for name in (name for switch in switches for name in switch.nodes):
        nodes.setdefault(name, NodeParts())
    _add_gpus(nodes, files.get(GRES, b""))
    if not nodes:
        raise MalformedError(f"no node is named in {', '.join(files)}")
    count = len(switches) + sum(2 + len(parts.gpus or parts.promised) for parts in nodes.values())
    if count > DEVICES_MAX:  # before any is made
        raise MalformedError(f"these files name {count:,} devices, more than the {DEVICES_MAX:,} of one cluster")
    try:
        return Cluster.of(*_parts(nodes, switches))
    except ValidationError as error:
        why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise MalformedError(f"these files are no cluster: {why[:200]}") from None


def _nodes(data: bytes) -> dict[str, NodeParts]:
    nodes: dict[str, NodeParts] = {}
    default: Line = {}
    lists = NameLists(NODES)
    for line in conf_lines(data, NODES):
        if line.get("nodename", "").upper() == "DEFAULT":
            default |= line
        elif "nodename" in line:
            whole = default | line
            memory = _count(whole["realmemory"], NODES) * MEBIBYTE if "realmemory" in whole else None
            promised = _promised(whole.get("gres", ""))
            for name in lists.names_in(line["nodename"]):
                nodes[name] = NodeParts(memory, promised=promised)
    return nodes


def _promised(gres: str) -> list[str]:
    """`gpu:h100:8,nic:2` as the models of eight GPUs; a model that is not stated is empty."""
    models: list[str] = []
    for resource in gres.partition("(")[0].split(","):
        words = resource.strip().split(":")
        if words[0] == "gpu":
            count = _count(words[-1], NODES) if words[-1][:1].isdigit() and len(words) > 1 else 1
            model = words[1] if len(words) > 2 or (len(words) == 2 and not words[1][:1].isdigit()) else ""
            models += [model] * min(count, GPUS_MAX)
    return models


def _add_gpus(nodes: dict[str, NodeParts], data: bytes) -> None:
    lists, left = NameLists(GRES), DEVICES_MAX
    for line in conf_lines(data, GRES):
        if line.get("name", "").lower() != "gpu":
            continue
        count = len(lists.names_in(line["file"])) if "file" in line else 1
        count = _count(line["count"], GRES) if "count" in line else count
        if count > GPUS_MAX:
            raise MalformedError(f"{GRES}: {count} GPUs in one node, more than {GPUS_MAX}")
        names = lists.names_in(line["nodename"]) if "nodename" in line else [*nodes]
        left -= count * len(names)
        if left < 0:
            raise MalformedError(f"{GRES}: more than {DEVICES_MAX:,} GPUs")
        for name in names:
            nodes.setdefault(name, NodeParts()).gpus += [line.get("type", "")] * count


def _parts(nodes: Mapping[str, NodeParts], switches: list[Switch]) -> tuple[list[Device], list[Link]]:
    devices = [Device(name=switch.name, kind="switch") for switch in switches]
    links = [_link(switch.name, other) for switch in switches for other in (*switch.nodes, *switch.switches)]
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
