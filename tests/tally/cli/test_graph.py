"""`tally graph show`, `stats`, `slice`, `diff`, `draw` and `bind`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from tallystick.core.digests import parse_digest
from tallystick.core.tensor_digests import tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.encoding import NodeProof, check_node, graph_bytes, graph_root
from tallystick.programs.files import load_program, save_program
from tallystick.programs.graph import Constant, Graph, GraphForm, Input, Node, Output, Role
from tallystick.programs.slicing import subgraph

Tally = Callable[..., Any]
SHIFT = Tensor.of(np.array([0.5, -0.5, 0.25], np.float32))
WIDE = TensorSpec("F32", (4, 3))


def program(batch: int = 4) -> Graph:
    spec = TensorSpec("F32", (batch, 3))
    softmax = {"dim": 1, "half_to_float": False}
    nodes = (
        Node(0, "aten.add.Tensor", {"self": "inputs.x", "other": "shift"}, {"alpha": 1}, (spec,)),
        Node(1, "aten._softmax.default", {"self": "n0"}, softmax, (spec,)),
        Node(4, "aten.mul.Tensor", {"self": "n1", "other": "n0"}, {}, (spec,)),
        Node(5, "aten._softmax.default", {"self": "n4"}, softmax, (spec,)),
    )
    return Graph(
        "aten",
        GraphForm.LOGICAL,
        (Input("inputs.x", Role.INPUT, spec),),
        (Constant("shift", TensorSpec("F32", (3,)), tensor_digest(SHIFT)),),
        nodes,
        (Output("outputs.y", "n5"),),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return save_program(tmp_path / "model.json", program(), {"shift": SHIFT})


def test_show_lists_everything(tally: Tally, file: Path) -> None:
    told = tally("graph", "show", file)
    assert told.code == 0
    assert told.out.splitlines() == [
        "input     inputs.x: F32[4,3]",
        "constant  shift: F32[3]",
        "n0        aten.add.Tensor(inputs.x, shift): F32[4,3]",
        "n1        aten._softmax.default(n0): F32[4,3]",
        "n4        aten.mul.Tensor(n1, n0): F32[4,3]",
        "n5        aten._softmax.default(n4): F32[4,3]",
        "output    outputs.y: n5",
    ]
    shown = json.loads(tally("graph", "show", file, "--json").out)
    assert shown["root"] == graph_root(program())
    assert shown["graph"]["nodes"][2]["operator"] == "aten.mul.Tensor"


def test_show_one_node(tally: Tally, file: Path) -> None:
    told = tally("graph", "show", file, "--node", 4)
    assert "operator: aten.mul.Tensor" in told.out
    shown = json.loads(tally("graph", "show", file, "--node", 4, "--json").out)
    assert (shown["reads"], shown["read_by"], shown["depth"], shown["flops"]) == ([1, 0], [5], 3, 12)
    assert tally("graph", "show", file, "--node", 2).complaint == "tally: the graph has no node 2"


def test_the_proof_of_a_node_is_checked_against_the_root(tally: Tally, file: Path) -> None:
    shown = json.loads(tally("graph", "show", file, "--node", 4, "--proof").out)
    root = parse_digest(shown["graph"], "graph")
    assert root == graph_root(program())
    assert check_node(NodeProof.from_json(shown["node"]), root) == program().nodes[2]
    assert tally("graph", "show", file, "--proof").code == 2


def test_stats(tally: Tally, file: Path) -> None:
    counts = json.loads(tally("graph", "stats", file, "--json").out)
    assert (counts["nodes"], counts["depth"], counts["constants"]) == (4, 4, 1)
    assert counts["operators"]["aten._softmax.default"]["nodes"] == 2
    told = tally("graph", "stats", file)
    assert told.code == 0
    assert "4 of 3 operators, 4 deep" in told.out
    assert "aten._softmax.default" in told.out


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--nodes", "0,4-5"), [0, 4, 5]),
        (("--nodes", "0-1"), [0, 1]),
        (("--between", "1:4"), [1, 4]),
        (("--given", "n0", "--wanted", "n4"), [1, 4]),
    ],
)
def test_slices(tally: Tally, file: Path, tmp_path: Path, options: tuple[str, ...], numbers: list[int]) -> None:
    if options[1] == "0,4-5":
        assert tally("graph", "slice", file, "--out", tmp_path / "part.json", *options).code == 0
    else:
        assert tally("graph", "slice", file, "--out", tmp_path / "part", *options).code == 0
    part, constants = load_program(tmp_path / "part.json")
    assert [node.number for node in part.nodes] == numbers
    assert constants.keys() == {each.name for each in part.constants}
    assert (tmp_path / "part.safetensors").exists() == (0 in numbers)


def test_one_example_of_a_batch(tally: Tally, file: Path, tmp_path: Path) -> None:
    told = tally("graph", "slice", file, "--out", tmp_path / "one.json", "--element", "inputs.x")
    assert told.code == 0
    assert load_program(tmp_path / "one.json")[0] == program(1)
    three = ("--element", "inputs.x", "--rows", "3")
    assert tally("graph", "slice", file, "--out", tmp_path / "three.json", *three).code == 0
    assert load_program(tmp_path / "three.json")[0] == program(3)
    five = ("--element", "inputs.x", "--rows", "5")
    assert tally("graph", "slice", file, "--out", tmp_path / "five.json", *five).code == 2


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--nodes", "0", "--between", "0:1"),
        ("--nodes", "x"),
        ("--nodes", "1-x"),
        ("--nodes", "3"),
        ("--between", "0,1"),
        ("--between", "5:0"),
        ("--wanted", "n9"),
    ],
)
def test_slices_that_make_no_sense(tally: Tally, file: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    told = tally("graph", "slice", file, "--out", tmp_path / "part.json", *options)
    assert told.code == 2
    assert told.complaint.startswith("tally: ")
    assert not (tmp_path / "part.json").exists()


def test_diff(tally: Tally, file: Path, tmp_path: Path) -> None:
    graph = program()
    changed = replace(graph.nodes[1], attributes={"dim": 0, "half_to_float": False})
    other = replace(graph, nodes=(graph.nodes[0], changed, *graph.nodes[2:]))
    second = save_program(tmp_path / "other.json", other, {"shift": SHIFT})
    assert tally("graph", "diff", file, file).out == "4 nodes are the same\n"
    assert tally("graph", "diff", file, second).out.splitlines() == [
        "~ n1 -> n1 aten._softmax.default: dim 1 -> 0",
        "3 nodes are the same",
    ]
    assert json.loads(tally("graph", "diff", file, second, "--json").out)["changed"] == [
        {"fields": ["dim"], "node": 1, "other": 1, "values": {"dim": [1, 0]}}
    ]


def test_nodes_are_shown_with_the_modules_they_came_from(tally: Tally, tmp_path: Path) -> None:
    graph = program()
    changed = replace(graph.nodes[3], attributes={"dim": 0, "half_to_float": False})
    other = replace(graph, nodes=(*graph.nodes[:3], changed))
    first = save_program(tmp_path / "first.json", graph, {"shift": SHIFT}, {4: "model.head", 5: "model.head.norm"})
    second = save_program(tmp_path / "second.json", other, {"shift": SHIFT}, {5: "model.head.norm"})
    assert "n4        aten.mul.Tensor(n1, n0): F32[4,3] in model.head" in tally("graph", "show", first).out
    assert "module: model.head.norm\n" in tally("graph", "show", first, "--node", 5).out
    assert json.loads(tally("graph", "show", first, "--json").out)["modules"] == {
        "4": "model.head",
        "5": "model.head.norm",
    }
    assert tally("graph", "diff", first, second).out.splitlines()[0] == (
        "~ n5 -> n5 aten._softmax.default in model.head.norm: dim 1 -> 0"
    )
    named = {"5": "model.head.norm"}
    assert json.loads(tally("graph", "diff", first, second, "--json").out)["modules"] == [named, named]
    part = tmp_path / "part.json"
    assert tally("graph", "slice", first, "--out", part, "--nodes", "4-5").code == 0
    assert "n4        aten.mul.Tensor(n1, n0): F32[4,3] in model.head" in tally("graph", "show", part).out


def test_module_paths_that_do_not_fit_are_ignored_with_a_line(tally: Tally, file: Path) -> None:
    before = tally("graph", "show", file)
    file.with_suffix(".modules.json").write_text('{"names":["\\u001b[2J"]}')
    told = tally("graph", "show", file)
    assert told.out == before.out
    assert told.err.startswith("model.modules.json is ignored: ")


def test_draw(tally: Tally, file: Path, tmp_path: Path) -> None:
    assert tally("graph", "draw", file).out.startswith("digraph {")
    assert tally("graph", "draw", file, "--out", tmp_path / "model.svg").code == 0
    ElementTree.parse(tmp_path / "model.svg")
    assert tally("graph", "draw", file, "--out", tmp_path / "model.dot").code == 0
    assert tally("graph", "draw", file, "--out", tmp_path / "model.png").code == 2
    assert tally("graph", "draw", file, "--depth", 1).complaint.startswith("tally: --depth: the graph names no modules")
    named = save_program(tmp_path / "named.json", program(), {"shift": SHIFT}, {4: "model.head", 5: "model.head.norm"})
    assert "model.head.norm" in tally("graph", "draw", named, "--depth", 3).out
    assert "model.head.norm" not in tally("graph", "draw", named, "--depth", 2).out


def test_bind(tally: Tally, file: Path, tmp_path: Path) -> None:
    document = json.loads(graph_bytes(program()).replace(b'["F32",4,3]', b'["F32","batch",3]'))
    whole = {"dimensions": {"batch": [1, 8]}, "graph": document, "template": 1}
    template = tmp_path / "any.json"
    template.write_text(json.dumps(whole, separators=(",", ":"), sort_keys=True))
    file.with_suffix(".safetensors").rename(tmp_path / "any.safetensors")
    out = tmp_path / "six.json"
    assert tally("graph", "bind", template, "--out", out, "--size", "batch=6").code == 0
    assert load_program(out)[0] == program(6)
    for wrong in (("batch=9",), ("batch=x",), ("b=1",), ()):
        sizes = [part for each in wrong for part in ("--size", each)]
        assert tally("graph", "bind", template, "--out", tmp_path / "no.json", *sizes).code == 2
    assert not (tmp_path / "no.json").exists()


@pytest.mark.parametrize("command", [("show",), ("stats",), ("draw",), ("slice", "--out", "x.json", "--nodes", "0")])
@pytest.mark.parametrize("data", [b"", b"[]", b"{" * 3000, b'{"nodes":[]}', b"\xff", None])
def test_what_is_no_graph_exits_with_4(
    tally: Tally, tmp_path: Path, command: tuple[str, ...], data: bytes | None
) -> None:
    path = tmp_path / "bad.json"
    if data is not None:
        path.write_bytes(data)
    told = tally("graph", command[0], path, *command[1:])
    assert (told.code, told.out) == (4, "")
    assert told.complaint.startswith("tally: ")


def test_constants_that_lack_or_were_changed_are_refused(tally: Tally, file: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "part.json", "--nodes", "0")
    held = file.with_suffix(".safetensors")
    data = held.read_bytes()
    held.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "do not have the digest" in tally("graph", "slice", file, *out).complaint
    held.unlink()
    assert tally("graph", "slice", file, *out).code == 4
    held.write_bytes(data)
    assert tally("graph", "slice", file, *out).code == 0


def test_the_help_names_every_command(tally: Tally) -> None:
    told = tally("graph", "--help")
    assert told.code == 0
    assert all(name in told.out for name in ("show", "stats", "slice", "diff", "draw", "bind"))


def test_saving_without_constants_takes_away_an_old_file(file: Path) -> None:
    part = subgraph(program(), [1])
    save_program(file, part, {})
    assert not file.with_suffix(".safetensors").exists()
    assert load_program(file) == (part, {})


def test_a_graph_cut_short_is_refused_with_the_name_of_its_file(tally: Any, tmp_path: Path) -> None:
    (tmp_path / "short.json").write_text('{"constants":')
    for command in (("show",), ("stats",)):
        told = tally("graph", *command, tmp_path / "short.json")
        assert told.code == 4
        assert "short.json: graph: no valid JSON" in told.err
