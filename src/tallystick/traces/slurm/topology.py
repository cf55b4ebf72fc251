"""SLURM's switches and blocks: `topology.yaml`, or `topology.conf` where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tallystick.errors import MalformedError, UnavailableError
from tallystick.traces.slurm.conf import conf_lines
from tallystick.traces.slurm.hostlist import ListedNames

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
    found: list[Switch] = []
    listed = ListedNames(CONF_NAME)
    for line in conf_lines(data, CONF_NAME):
        name = line.get("switchname") or line.get("blockname")
        if name is not None:  # other lines, as BlockSizes, say how jobs are placed
            nodes, switches = (tuple(_listed(line.get(key), listed)) for key in ("nodes", "switches"))
            found.append(Switch(name, nodes, switches))
    return found


def read_topology_yaml(data: bytes, wanted: str | None = None) -> list[Switch]:
    """The switches of the topology `wanted`, else of the default one, else of the first.

    Raises:
        MalformedError: no topologies stand there.
        UnavailableError: PyYAML is not installed, or the topology is of a kind that is not read.
    """
    topologies = [each for each in _parsed(data) if isinstance(each, dict)]
    if wanted is not None:
        topologies = [each for each in topologies if each.get("topology") == wanted]
    if not topologies:
        raise MalformedError(f"{YAML_NAME}: no topology{'' if wanted is None else f' named {wanted[:40]!a}'}")
    chosen = next((each for each in topologies if each.get("cluster_default") is True), topologies[0])
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
    listed = ListedNames(YAML_NAME)
    for each in entries:
        if not isinstance(each, dict) or not isinstance(each.get(key), str):
            raise MalformedError(f"{YAML_NAME}: an entry without the name of a {key}")
        nodes, children = (tuple(_listed(each.get(name), listed)) for name in ("nodes", "children"))
        yield Switch(each[key], nodes, children)


def _listed(text: object, listed: ListedNames) -> Iterable[str]:
    if text is None:
        return ()
    if not isinstance(text, str):
        raise MalformedError(f"{listed.file}: {str(text)[:40]!a} is no list of names")
    return listed.names_in(text)


def _parsed(data: bytes) -> list[Any]:
    """The YAML of a file as plain values."""
    from tallystick.extras import require

    require("yaml")
    import yaml

    try:
        _check_plain(yaml.parse(data, Loader=yaml.SafeLoader))
        found = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError) as error:
        raise MalformedError(f"{YAML_NAME}: no YAML: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(found, list):
        raise MalformedError(f"{YAML_NAME}: not a list of topologies")
    return found


def _check_plain(events: Iterable[Any]) -> None:
    """Refuse aliases, a few lines of which are more than any memory, and deep nesting."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if name == "AliasEvent" or depth > DEPTH_MAX:
            raise MalformedError(f"{YAML_NAME}: aliases, and nesting deeper than {DEPTH_MAX}, are not read")
