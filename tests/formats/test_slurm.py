"""Clusters out of SLURM's files."""

from __future__ import annotations

import pytest

from tallystick.core.errors import MalformedError, TallyError, UnavailableError
from tallystick.formats.cluster import Cluster
from tallystick.formats.slurm import NAMES_MAX, NameLists, read_slurm

SLURM_CONF = b"""\
# a small cluster
ClusterName=small
Include /etc/slurm/more.conf
NodeName=DEFAULT RealMemory=1024 Gres=gpu:h100:2(S:0-1),nic:1
NodeName=node[1-2] CPUs=64 State=UNKNOWN
NodeName=login \\
   Gres= RealMemory=512  # in MiB
PartitionName=all Nodes=node[1-2] Default=YES MaxTime="1-00:00:00"
"""
GRES_CONF = b"""\
AutoDetect=nvml
NodeName=node2 Name=gpu Type=nvidia_h200 File=/dev/nvidia[0-3]
NodeName=node2 name=nic Count=1K
"""
TREE = b"""\
- topology: blocks
  block:
    block_sizes: [2]
    blocks:
      - block: b1
        nodes: node[1-2]
- topology: tree
  cluster_default: true
  tree:
    switches:
      - switch: core
        children: leaf[1-2]
      - switch: leaf1
        nodes: node1,login
      - switch: leaf2
        nodes: node2
- topology: flat
  flat: true
- topology: round
  ring: {rings: []}
"""
TREE_CONF = b"""\
SwitchName=core Switches=leaf[1-2]
SwitchName=leaf1 Nodes=node1,login LinkSpeed=100
SwitchName=leaf2 Nodes=node2
"""


def ends(cluster: Cluster) -> set[tuple[str, str]]:
    return {link.ends for link in cluster.links if "/" not in link.ends[1]}


@pytest.mark.parametrize("file", ["topology.yaml", "topology.conf"])
def test_nodes_gpus_and_switches(file: str) -> None:
    data = TREE if file.endswith("yaml") else TREE_CONF
    cluster = read_slurm({"slurm.conf": SLURM_CONF, "gres.conf": GRES_CONF, file: data})
    gpus = [device.name for device in cluster.devices if device.kind == "gpu"]
    assert gpus == ["node1/gpu0", "node1/gpu1", *(f"node2/gpu{number}" for number in range(4))]
    assert cluster.by_name["node1"].memory == 1 << 30
    assert cluster.by_name["login/cpu"].memory == 1 << 29
    assert (cluster.by_name["node2/gpu3"].model, cluster.by_name["node2/gpu3"].host) == ("nvidia_h200", "node2")
    assert cluster.by_name["node2/gpu0"].bandwidth == 4_800_000_000_000
    assert ends(cluster) == {
        ("core", "leaf1"),
        ("core", "leaf2"),
        ("leaf1", "login"),
        ("leaf1", "node1"),
        ("leaf2", "node2"),
    }


def test_a_topology_is_chosen_by_name() -> None:
    cluster = read_slurm({"topology.yaml": TREE}, "blocks")
    assert ends(cluster) == {("b1", "node1"), ("b1", "node2")}
    assert ends(read_slurm({"topology.yaml": TREE, "slurm.conf": b"NodeName=a"}, "flat")) == set()


def test_blocks_of_topology_conf() -> None:
    cluster = read_slurm({"topology.conf": b"BlockName=b1 Nodes=n[01-02]\nBlockSizes=2\n"})
    assert ends(cluster) == {("b1", "n01"), ("b1", "n02")}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1-2]n[0-1]x, s", ["r1n0x", "r1n1x", "r2n0x", "r2n1x", "s"]),
        ("", []),
    ],
)
def test_lists_of_names(text: str, names: list[str]) -> None:
    assert NameLists("x.conf").names_in(text) == names


@pytest.mark.parametrize(
    "text", ["n[1-", "n]1[", "n[[1]]", "n[a]", "n[3-1]", f"n[0-{NAMES_MAX}]", "n[0-999][0-999]", "a b"]
)
def test_lists_that_are_none_or_endless_are_refused(text: str) -> None:
    with pytest.raises(MalformedError, match=r"x\.conf"):
        NameLists("x.conf").names_in(text)


BAD: dict[str, dict[str, bytes]] = {
    "no pair": {"slurm.conf": b"NodeName=a hello"},
    "a line that goes on forever": {"slurm.conf": b"NodeName=a \\"},
    "no text": {"slurm.conf": b"\xff"},
    "no number": {"slurm.conf": b"NodeName=a RealMemory=much"},
    "nobody": {"slurm.conf": b"ClusterName=a"},
    "a node that is a switch": {"slurm.conf": b"NodeName=a", "topology.conf": b"SwitchName=a Nodes=b"},
    "a switch that is not there": {"topology.conf": b"SwitchName=a Switches=b Nodes=n"},
    "a name that is none": {"slurm.conf": b"NodeName=../a"},
    "too many GPUs": {"gres.conf": b"NodeName=a Name=gpu Count=1G"},
    "no YAML": {"topology.yaml": b"- a: [\n"},
    "no list": {"topology.yaml": b"a: 1"},
    "a tree of nothing": {"topology.yaml": b"- topology: a\n  tree: {}"},
    "a switch without a name": {"topology.yaml": b"- topology: a\n  tree: {switches: [{nodes: a}]}"},
    "aliases": {"topology.yaml": b"- &a {b: 1}\n- *a\n"},
    "deep": {"topology.yaml": b"[" * 20_000},
    "code": {"topology.yaml": b"- !!python/object/apply:os.system [true]\n"},
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_configuration_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(TallyError) as refusal:
        read_slurm(BAD[name])
    assert (refusal.value.exit_code, "\n" in str(refusal.value)) == (4, False)


def test_a_topology_that_is_not_read_says_which_are() -> None:
    with pytest.raises(UnavailableError, match="tree, block and flat"):
        read_slurm({"topology.yaml": TREE}, "round")
    with pytest.raises(MalformedError, match="named 'star'"):
        read_slurm({"topology.yaml": TREE}, "star")


MANY = b"\n".join(b"NodeName=n%d-[1-100000]" % number for number in range(30))
BOMBS: dict[str, dict[str, bytes]] = {
    "nodes without end": {"slurm.conf": MANY},
    "one node named again and again": {"slurm.conf": b"NodeName=n[1-100000]\n" * 5000},
    "a million GPUs": {"slurm.conf": b"NodeName=n[1-125000] Gres=gpu:h100:8"},
    "GPUs of gres.conf": {"slurm.conf": b"NodeName=n[1-1000]", "gres.conf": b"Name=gpu Count=1000\n" * 1000},
    "files of GPUs": {"slurm.conf": b"NodeName=n", "gres.conf": b"Name=gpu File=/dev/n[1-100000] Count=1\n" * 1000},
    "switches of everybody": {"topology.conf": b"".join(b"SwitchName=s%d Nodes=n[1-100000]\n" % n for n in range(900))},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_few_lines_that_name_millions_of_devices_are_refused_before_they_are_made(name: str) -> None:
    with pytest.raises(MalformedError, match="more than") as refusal:
        read_slurm(BOMBS[name])
    assert "\n" not in str(refusal.value)


def test_a_large_cluster_is_read() -> None:
    cluster = read_slurm(
        {"slurm.conf": b"NodeName=n[1-1000] Gres=gpu:h100:8", "topology.conf": b"SwitchName=s Nodes=n[1-1000]"}
    )
    assert len(cluster.devices) == 10_001
