"""Makes vectors/cluster/ and vectors/trace/, with the package itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_from, leaf_hash, tree_root
from tallystick.formats.claims import Log
from tallystick.formats.cluster import Cluster, Device, Link
from tallystick.formats.store.traces import TraceEvent, TraceStatement

VECTORS = Path(__file__).parents[1] / "vectors"
ONE, TWO = "node1/gpu0", "node2/gpu0"
KERNEL: dict[str, Any] = {"device": ONE, "duration": 5100, "kind": "kernel", "name": "sgemm", "start": 901200}
REDUCE: dict[str, Any] = {
    "moved": 4 << 20,
    "device": ONE,
    "duration": 90000,
    "kind": "collective",
    "members": [ONE, TWO],
    "name": "all_reduce",
    "start": 960000,
    "step": 3,
    "stream": 20,
}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("a kernel of an operator", KERNEL | {"operator": 12, "step": 3, "stream": 7}),
    ("a kernel of three operators", KERNEL | {"operator": 12, "fused": [13, 15], "step": 3, "stream": 7}),
    ("a kernel that nobody explains", KERNEL),
    ("a collective", REDUCE),
    ("a copy, and the memory after it", KERNEL | {"kind": "memcpy", "moved": 512, "memory": 1 << 30, "name": "HtoD"}),
    ("waiting", KERNEL | {"kind": "sync", "name": "cudaDeviceSynchronize"}),
    ("an anchor is written", KERNEL | {"kind": "checkpoint", "subject": digest("blob", b"anchor"), "name": "anchor"}),
    ("at the origin, without duration", KERNEL | {"start": 0, "duration": 0}),
    ("a name that is no ASCII", KERNEL | {"name": "\u00e9\u2028\U0001f600\n\u0001"}),
]
REFUSED: list[tuple[str, str]] = [
    ("negative duration", encode(KERNEL | {"duration": -1}).decode()),
    ("start beyond 2^53", encode(KERNEL).decode().replace("901200", "9007199254740992")),
    ("a fraction of a nanosecond", encode(KERNEL | {"start": 0.5}).decode()),
    ("a start that is spelled as a float", encode(KERNEL).decode().replace("901200", "901200.0")),
    ("no device", encode({name: value for name, value in KERNEL.items() if name != "device"}).decode()),
    ("a device that is no name", encode(KERNEL | {"device": "../host"}).decode()),
    ("another kind", encode(KERNEL | {"kind": "rest"}).decode()),
    ("an unknown field", encode(KERNEL | {"pid": 1}).decode()),
    ("an explicit null", encode(KERNEL | {"step": None}).decode()),
    ("keys in another order", json.dumps(dict(reversed(KERNEL.items())), separators=(",", ":"))),
    ("a collective of nobody", encode(KERNEL | {"kind": "collective"}).decode()),
    ("members of a kernel", encode(KERNEL | {"members": [ONE]}).decode()),
    ("members out of order", encode(REDUCE | {"members": [TWO, ONE]}).decode()),
    ("a member twice", encode(REDUCE | {"members": [ONE, ONE]}).decode()),
    ("a collective of others", encode(REDUCE | {"members": [TWO]}).decode()),
    ("further operators without a first", encode(KERNEL | {"fused": [3]}).decode()),
    ("an empty name", encode(KERNEL | {"name": ""}).decode()),
    ("no object", "[]"),
    ("a key twice", '{"device":"a",' + encode(KERNEL).decode()[1:]),
]
HOSTS = [Device(name=name, kind="host", memory=1 << 40) for name in ("node1", "node2")]
GPUS = [
    Device(
        name=f"{host.name}/gpu0",
        kind="gpu",
        model="NVIDIA H200",
        memory=150754820096,
        bandwidth=4800 * 10**9,
        peak={"BF16": 990 * 10**12, "F32": 495 * 10**12},
        host=host.name,
    )
    for host in HOSTS
]
LINKS = [Link(ends=("node1", ONE)), Link(ends=("node1", "rack1"), bandwidth=50 * 10**9, latency=2e-6)]
CLUSTER = Cluster.of([*HOSTS, *GPUS, Device(name="rack1", kind="switch")], LINKS)
BAD_CLUSTERS: list[tuple[str, dict[str, Any]]] = [
    ("no device", {"devices": [], "links": []}),
    ("a device twice", {"devices": [{"kind": "cpu", "name": "a", "peak": {}}] * 2, "links": []}),
    ("a link to nobody", {"links": [{"ends": ["node1", "rack9"]}]}),
    ("a link to itself", {"links": [{"ends": ["node1", "node1"]}]}),
    ("a link whose ends do not ascend", {"links": [{"ends": ["rack1", "node1"]}]}),
    ("a host that is none", {"devices": [{"host": "b", "kind": "gpu", "name": "a", "peak": {}}], "links": []}),
    ("no memory at all", {"devices": [{"kind": "gpu", "memory": 0, "name": "a", "peak": {}}], "links": []}),
    ("another version", {"version": 2}),
]


def main() -> None:
    """Write both folders."""
    write(VECTORS / "cluster" / "clusters.json", clusters())
    write(VECTORS / "trace" / "events.json", events())
    write(VECTORS / "trace" / "trace.json", trace())


def clusters() -> list[dict[str, Any]]:
    """A cluster with its digest, and some to refuse."""
    good = {"case": "two nodes", "bytes": CLUSTER.to_bytes().decode(), "digest": CLUSTER.identity}
    stated: Any = CLUSTER.to_json()
    return [
        good,
        *({"case": case, "bytes": encode(stated | change).decode(), "refused": True} for case, change in BAD_CLUSTERS),
    ]


def events() -> list[dict[str, Any]]:
    """Events to read, and lines to refuse."""
    good: list[dict[str, Any]] = [{"case": case, "bytes": encode(event).decode()} for case, event in EVENTS]
    return good + [{"case": case, "bytes": line, "refused": True} for case, line in REFUSED]


def trace() -> dict[str, Any]:
    """All good events under one root."""
    lines = [TraceEvent.from_json(event, case).to_bytes() for case, event in EVENTS]
    root = digest_from(tree_root([leaf_hash(line) for line in lines]))
    statement = TraceStatement(
        cluster=CLUSTER.identity,
        graph=digest("graph", b"example"),
        claim=digest("claim", b"example"),
        clock="torch.profiler",
        began=1790000000000000,
        source="torch.profiler",
        events=Log(root=root, size=len(lines)),
    )
    return {
        "bytes": statement.to_bytes().decode(),
        "digest": statement.identity,
        "lines": [each.decode() for each in lines],
    }


def write(path: Path, value: object) -> None:
    """Write JSON for people."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
