"""What the door lets in, what it refuses and why, and what a refusal costs."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tallystick.core.canonical_json import decode, encode
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.programs.admission import Deriver, check_constants, check_graph, read_graph
from tallystick.programs.encoding import canonical, graph_bytes, graph_root
from tallystick.programs.graph import Graph, GraphForm, GraphLimits, Input, Node, Output, Role

Document = dict[str, Any]
Change = Callable[[Document], Any]


def document(small: Any) -> Document:
    found: Document = json.loads(graph_bytes(small.graph()))
    return found


def bytes_of(found: Any) -> bytes:
    return canonical(found).encode()


def node(found: Document, number: int) -> Document:
    return next(each for each in found["nodes"] if each["number"] == number)


def with_node(graph: Graph, changed: Node) -> Graph:
    return replace(graph, nodes=tuple(changed if each.number == changed.number else each for each in graph.nodes))


def test_what_is_written_is_read(small: Any) -> None:
    graph = small.graph()
    data = graph_bytes(graph)
    assert read_graph(data, find=small.find) == graph
    assert encode(decode(data, "graph")) == data


def test_parameters_come_back_in_the_operators_order(small: Any) -> None:
    read = read_graph(graph_bytes(small.graph()), find=small.find)
    assert [list(each.operands) for each in read.nodes[:2]] == [["self", "mat2"], ["self", "other"]]
    assert list(read.nodes[5].attributes) == ["split_size", "dim"]


@pytest.mark.parametrize("value", [0.1, 1e-05, 1e22, -0.0, 5e-324, float("inf"), float("-inf"), 1.0])
def test_floats_keep_every_bit(small: Any, value: float) -> None:
    graph = small.graph()
    scaled = with_node(graph, replace(graph.nodes[6], attributes={"factor": value, "how": "all"}))
    (found,) = (each for each in read_graph(graph_bytes(scaled), find=small.find).nodes if each.number == 7)
    assert repr(found.attributes["factor"]) == repr(value)


def test_nan_is_an_attribute(small: Any) -> None:
    found = document(small)
    node(found, 7)["attributes"]["factor"] = "nan"
    assert graph_bytes(read_graph(bytes_of(found), find=small.find)) == bytes_of(found)


def test_a_scalar_is_integer_or_float_as_it_was_written(small: Any) -> None:
    read = read_graph(graph_bytes(small.graph()), find=small.find)
    assert [type(each.attributes["alpha"]) for each in read.nodes if "alpha" in each.attributes] == [int, float]


def set_at(*path: Any, to: Any) -> Change:
    def change(found: Document) -> None:
        place: Any = found
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


def at_node(number: int, *path: Any, to: Any) -> Change:
    return lambda found: set_at(*path, to=to)(node(found, number))


def add_node(record: Document) -> Change:
    return lambda found: found["nodes"].append(record)


def relu(number: Any = 13, operand: Any = "n10", **changes: Any) -> Document:
    record = {
        "attributes": {},
        "number": number,
        "operands": {"self": operand},
        "operator": "aten.relu.default",
        "results": [["F32", 4, 2]],
    }
    return record | changes


REFUSALS: dict[str, tuple[Change, str]] = {
    "another format": (set_at("graph", to=2), "graph: format 2 is unknown"),
    "a format that only equals 1": (set_at("graph", to=True), "format True is unknown"),
    "an unknown dialect": (set_at("dialect", to="onnx"), "dialect: 'onnx' is unknown"),
    "an unknown form": (set_at("form", to="magic"), "form: 'magic' is unknown"),
    "a form without content": (set_at("form", to="distributed"), "no content yet"),
    "an unknown field": (set_at("comment", to="hi"), "unknown field 'comment'"),
    "a missing field": (lambda found: found.pop("outputs"), "lacks 'outputs'"),
    "nodes that are no list": (set_at("nodes", to={}), "nodes: dict of 0 is no list"),
    "an unknown role": (set_at("inputs", 0, "role", to="cheese"), "role: 'cheese' is unknown"),
    "a digest that is none": (set_at("constants", 0, "digest", to="sha256:00"), "not a digest"),
    "an operator beyond the allow-list": (
        at_node(3, "operator", to="aten.bernoulli.default"),
        "not on the allow-list",
    ),
    "a custom operator": (at_node(3, "operator", to="mylib.evil.default"), "'mylib.evil.default' is not on the"),
    "a custom call": (at_node(3, "operator", to="stablehlo.custom_call"), "'stablehlo.custom_call' is not on the"),
    "an operator that is no text": (at_node(3, "operator", to=7), "operator: 7 is no string"),
    "an unknown attribute": (at_node(3, "attributes", to={"x": 1}), "unknown field 'x'"),
    "a missing attribute": (at_node(6, "attributes", to={"dim": 1}), "lacks 'split_size'"),
    "an attribute of the wrong type": (at_node(6, "attributes", "dim", to="one"), "dim is 'one', no int"),
    "a bool for an int": (at_node(6, "attributes", "dim", to=True), "dim is True, no int"),
    "an int for a float": (at_node(7, "attributes", "factor", to=1), "factor is 1, no float"),
    "a float in other words": (at_node(7, "attributes", "factor", to="0.10"), "no float as this format writes it"),
    "a float with an underscore": (at_node(7, "attributes", "factor", to="1_0.0"), "no float as this format"),
    "an infinity in other words": (at_node(7, "attributes", "factor", to="Infinity"), "no float as this format"),
    "an attribute that is an object": (at_node(7, "attributes", "how", to={"a": {}}), "dict of 1 is no attribute"),
    "text that is not printable": (at_node(7, "attributes", "how", to="a\u0007"), "no printable ASCII"),
    "a list of lists": (at_node(9, "attributes", "size", to=[[4, 2, 2]]), "list of 3 is no attribute"),
    "a huge attribute list": (at_node(9, "attributes", "size", to=[1] * 5000), "5000 items, more than 4096"),
    "an integer beyond 2^53": (at_node(9, "attributes", "size", to=[2**53, 2, 2]), "size"),
    "a negative side in an attribute": (at_node(9, "attributes", "size", to=[-4, -2, 2]), "does not fit"),
    "a negative side in a result": (at_node(9, "results", to=[["F32", -4, 2, 2]]), "-4 is no natural number"),
    "a shape bomb": (at_node(9, "results", to=[["F32", 2**50, 2**50]]), "larger than any array"),
    "a shape of 65 sides": (at_node(9, "results", to=[["F32", *[1] * 65]]), "65 dimensions"),
    "a wrong shape": (at_node(9, "results", to=[["F32", 2, 4, 2]]), "n9 is F32[4,2,2], stated is F32[2,4,2]"),
    "a wrong dtype": (at_node(9, "results", to=[["F16", 4, 2, 2]]), "n9 is F32[4,2,2], stated is F16[4,2,2]"),
    "an unknown dtype": (at_node(9, "results", to=[["F33", 4, 2, 2]]), "dtype 'F33' is unknown"),
    "a result too many": (at_node(3, "results", to=[["F32", 4, 4], None]), "gives 1 results, 2 are stated"),
    "a result that is not computed": (at_node(12, "results", to=[["F32", 4, 2]] * 2), "n12.1 is absent"),
    "a result that is left out": (at_node(3, "results", to=[None]), "n3 is F32[4,4], stated is absent"),
    "a dangling reference": (at_node(3, "operands", "self", to="n99"), "reads n99, which does not stand before it"),
    "a reference to a number that is not there": (at_node(3, "operands", "self", to="n2"), "which nothing gives"),
    "a result that a node does not have": (at_node(3, "operands", "self", to="n1.1"), "that node does not give"),
    "an unknown input": (at_node(3, "operands", "self", to="inputs.z"), "reads 'inputs.z', which nothing gives"),
    "a cycle": (at_node(0, "operands", "self", to="n5"), "reads n5, which does not stand before it"),
    "a node that reads itself": (at_node(3, "operands", "self", to="n3"), "reads n3, which does not stand before it"),
    "a result 0 by a second name": (at_node(3, "operands", "self", to="n1.0"), "reads 'n1.0', which nothing gives"),
    "an operand that is a graph": (at_node(3, "operands", "self", to={"nodes": []}), "dict of 1 is no string"),
    "no operand where one is needed": (at_node(3, "operands", "self", to=None), "self is None, no Tensor"),
    "a list where one is needed": (at_node(3, "operands", "self", to=["n1"]), "no Tensor"),
    "one where a list is needed": (at_node(8, "operands", "tensors", to="n7"), "tensors is 'n7', no Tensor[]"),
    "a hole in a list": (at_node(8, "operands", "tensors", to=["n7", None]), "no Tensor[]"),
    "numbers that do not rise": (add_node(relu(12)), "node 12: stands behind node 12"),
    "a number twice": (at_node(4, "number", to=3), "stands behind node 3"),
    "a negative number": (at_node(0, "number", to=-1), "-1 is no natural number"),
    "an enormous number": (add_node(relu(10**10)), "lies outside"),
    "two inputs of one name": (set_at("inputs", 1, "name", to="weights.first"), "the name is taken"),
    "an input named like a constant": (set_at("inputs", 1, "name", to="shift"), "the name is taken"),
    "an input named like a node": (set_at("inputs", 2, "name", to="n77"), "looks like a reference"),
    "an input named almost like a node": (set_at("inputs", 2, "name", to="n77.0"), "looks like a reference"),
    "a constant named like a node": (set_at("constants", 0, "name", to="n77"), "looks like a reference"),
    "a cut value without a reference": (set_at("inputs", 2, "role", to="cut"), "a cut value has the reference"),
    "a name with a slash": (set_at("inputs", 2, "name", to="a/b"), "a name is"),
    "an empty name": (set_at("inputs", 2, "name", to=""), "a name is"),
    "an output twice": (set_at("outputs", 1, "name", to="outputs.y"), "the name is taken"),
    "an output that nothing gives": (set_at("outputs", 0, "value", to="n11"), "is 'n11', which nothing gives"),
    "an output under another node's name": (set_at("outputs", 0, "name", to="n3"), "looks like a reference"),
    "state that goes on in another shape": (set_at("outputs", 0, "name", to="inputs.x"), "goes on as F32[4,3]"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_refused(small: Any, what: str) -> None:
    found = document(small)
    change, reason = REFUSALS[what]
    change(found)
    with pytest.raises(MalformedError) as caught:
        read_graph(bytes_of(found), find=small.find)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


ACCEPTANCES: dict[str, Change] = {
    "nothing changed": lambda found: None,
    "no nodes": lambda found: found.update(nodes=[], outputs=[]),
    "one node more": add_node(relu()),
    "a verification graph": set_at("form", to="verification"),
    "an infinity": at_node(7, "attributes", "factor", to="-inf"),
    "an output that is an input": set_at("outputs", 0, to={"name": "inputs.x", "value": "inputs.x"}),
    "an output under its reference": set_at("outputs", 0, to={"name": "n12", "value": "n12"}),
    "an absent operand": at_node(12, "operands", "other", to=None),
    "a given operand that may be absent": at_node(12, "operands", "other", to="n10"),
}


@pytest.mark.parametrize("what", ACCEPTANCES)
def test_what_is_accepted(small: Any, what: str) -> None:
    found = document(small)
    ACCEPTANCES[what](found)
    assert graph_bytes(read_graph(bytes_of(found), find=small.find)) == bytes_of(found)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda data: b" " + data, "not canonical"),
        (lambda data: data + b"\n", "not canonical"),
        (lambda data: data.replace(b'"graph":1', b'"graph":1.0'), "is a JSON float"),
        (lambda data: data.replace(b'"graph":1', b'"graph":NaN'), "NaN is a JSON float"),
        (lambda data: data.replace(b'"dialect":"aten",', b'"dialect":"aten","dialect":"aten",'), "not canonical"),
        (lambda data: data.replace(b'"number":3', b'"number":3,"number":3'), "not canonical"),
        (lambda data: data.replace(b'"how":"all"', b'"how":"\\u0061ll"'), "not canonical"),
        (lambda data: data.replace(b'"how":"all"', b'"how":"\\ud800"'), "not canonical"),
        (lambda data: data.replace(b"all", "äll".encode()), "is not ASCII"),
        (lambda data: b"\xef\xbb\xbf" + data, "is not ASCII"),
        (lambda data: data[:-1], "no valid JSON"),
        (lambda data: b"", "no valid JSON"),
        (lambda data: b"null", "is no object"),
        (lambda data: b"[" * 100_000, "nested deeper than 64"),
        (lambda data: b'{"a":' * 100_000, "nested deeper than 64"),
        (lambda data: b'[{"a":[' * 30_000, "nested deeper than 64"),
        (lambda data: data.replace(b'"how":"all"', b'"how":' + b"9" * 5000), "no valid JSON"),
    ],
)
def test_bytes_that_are_no_canonical_document(small: Any, spoil: Callable[[bytes], bytes], reason: str) -> None:
    data = graph_bytes(small.graph())
    assert spoil(data) != data
    with pytest.raises(MalformedError, match=reason):
        read_graph(spoil(data), find=small.find)


@pytest.mark.parametrize(
    ("limit", "enough", "reason"),
    [
        ("document_bytes", 4000, "bytes, more than the 3 allowed"),
        ("parsed_bytes", 100_000, "once parsed, more than 3"),
        ("nodes", 11, "11 nodes, more than the 3 allowed"),
        ("depth", 11, "longest chain of nodes: 11, more than the 3 allowed"),
        ("memory_bytes", 1000, "bytes in memory at one time: "),
        ("flops", 1000, "floating-point operations so far: 96, more than the 3 allowed"),
    ],
)
def test_limits(small: Any, limit: str, enough: int, reason: str) -> None:
    data = graph_bytes(small.graph())
    assert read_graph(data, GraphLimits(**{limit: enough}), small.find)
    with pytest.raises(MalformedError, match=reason):
        read_graph(data, GraphLimits(**{limit: 3}), small.find)


def test_a_split_into_single_elements_is_not_carried_out(small: Any) -> None:
    wide = TensorSpec("F32", (10**8,))
    split = small.node(0, "aten.split.Tensor", "F32[1]", ("inputs.x",), split_size=1, dim=0)
    graph = Graph("aten", GraphForm.LOGICAL, (Input("inputs.x", Role.INPUT, wide),), (), (split,), ())
    with pytest.raises(MalformedError, match="more primitives than the 20000 allowed"):
        check_graph(graph, GraphLimits(), small.find)
    few = replace(split, attributes={"split_size": 10**8, "dim": 0}, results=(wide,))
    check_graph(replace(graph, nodes=(few,)), GraphLimits(), small.find)


def test_the_primitives_of_all_nodes_are_counted_together(small: Any) -> None:
    def derived(count: int, primitives: int) -> None:
        derive = Deriver(small.find, primitives)
        for i in range(count):
            derive(small.node(i, "aten.split.Tensor", "F32[1]", ("x",), split_size=1, dim=0), {"x": sides[i]})

    sides = [TensorSpec("F32", (100 + i,)) for i in range(5)]
    derived(5, 510)
    with pytest.raises(MalformedError, match=r"node 4: .* more primitives"):
        derived(5, 509)
    sides = [TensorSpec("F32", (100,))] * 5
    derived(5, 100)


@pytest.mark.parametrize("size", [0, -1])
def test_a_definition_that_trips_over_an_attribute_refuses_it(small: Any, size: int) -> None:
    split = small.node(0, "aten.split.Tensor", "F32[4]", ("inputs.x",), split_size=size, dim=0)
    graph = Graph("aten", GraphForm.LOGICAL, (Input("inputs.x", Role.INPUT, small.spec("F32[4]")),), (), (split,), ())
    with pytest.raises(MalformedError, match=r"node 0: aten\.split\.Tensor"):
        check_graph(graph, GraphLimits(), small.find)


def test_a_graph_in_memory_is_checked_like_one_that_was_read(small: Any) -> None:
    graph = small.graph()
    check_graph(graph, GraphLimits(), small.find)
    for changed in (
        with_node(graph, replace(graph.nodes[6], attributes={"factor": 1, "how": "all"})),
        with_node(graph, replace(graph.nodes[6], attributes={"factor": 0.1})),
        with_node(graph, replace(graph.nodes[2], results=(small.spec("F32[4,5]"),))),
        with_node(graph, replace(graph.nodes[2], operands={"self": "n8"})),
        replace(graph, outputs=(Output("outputs.y", "n13"),)),
        replace(graph, nodes=graph.nodes[::-1]),
    ):
        with pytest.raises(MalformedError):
            check_graph(changed, GraphLimits(), small.find)


def test_constants_are_checked_by_their_digests(small: Any) -> None:
    graph, tensors = small.graph(), small.tensors()
    check_constants(graph.constants, tensors)
    other = Tensor("F32", (4,), bytes(16))
    for wrong, reason in (({}, "not there"), ({"shift": other}, "digest"), ({"shift": tensors["inputs.x"]}, "is F32")):
        with pytest.raises(MalformedError, match=reason):
            check_constants(graph.constants, wrong)


SCRAPS = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        -1,
        3,
        2**53,
        "",
        "n0",
        "n1",
        "n3.1",
        "x",
        "nan",
        "inf",
        "F32",
        [],
        {},
        [["F32", 4]],
        ["n0", "n1"],
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_field_replaced_is_refused_or_means_what_it_says(small: Any, data: st.DataObject) -> None:
    found = document(small)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(found)[1:]))
        set_at(*path, to=copy.deepcopy(data.draw(SCRAPS)))(found)
        if not all(isinstance(found.get(key), list) for key in ("nodes", "inputs", "outputs", "constants")):
            break
    text = bytes_of(found)
    try:
        graph = read_graph(text, find=small.find)
    except MalformedError:
        return
    assert graph_bytes(graph) == text
    assert graph_root(graph) == graph_root(read_graph(text, find=small.find))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_byte_replaced_is_refused_or_another_graph(small: Any, data: st.DataObject) -> None:
    text = bytearray(graph_bytes(small.graph()))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] = data.draw(st.integers(0, 255) | st.sampled_from(b'{}[]",:0123456789na.'))
    try:
        graph = read_graph(bytes(text), find=small.find)
    except MalformedError:
        return
    assert graph_bytes(graph) == bytes(text)
    assert (graph_root(graph) == graph_root(small.graph())) == (bytes(text) == graph_bytes(small.graph()))


BOMBS = {
    "ten million empty nodes": "b'{\"nodes\":[' + b'{},' * 10_000_000 + b'{}]}'",
    "nodes up to the largest document": "b'{\"nodes\":[' + b'{},' * 5_500_000 + b'{}]}'",
    "small nodes without an operator": "b'{\"nodes\":[' + b'{\"a\":{}},' * 210_000 + b'{}]}'",
    "empty lists": "b'{\"nodes\":[' + b'[],' * 900_000 + b'[]]}'",
    "nesting": "b'[' * 1_400_000",
    "numbers": "b'{\"nodes\":[' + b'4000,' * 2_000_000 + b'4000]}'",
    "short texts": "b'{\"nodes\":[' + b'\"aa\",' * 1_000_000 + b'1]}'",
    "one long text": "b'\"' + b'a' * ((16 << 20) - 2) + b'\"'",
    "a wide object": "b'{' + b','.join(b'\"%05d\":1' % i for i in range(500_000)) + b'}'",
    "a long attribute list": "canonical(bomb([1] * 1_000_000, ['F32', 1]))",
    "a shape bomb": "canonical(bomb([2**40, 2**40], ['F32', 2**40, 2**40]))",
    "a hundred thousand digits": "b'{\"nodes\":[' + b'9' * 100_000 + b']}'",
}

BOMB_SCRIPT = """
from pathlib import Path
from tallystick.core.errors import MalformedError
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import canonical as text

def canonical(value):
    return text(value).encode()

def bomb(size, result):
    node = {{"attributes": {{"dim": size, "half_to_float": False}}, "number": 0, "operands": {{"self": "x"}},
            "operator": "aten._softmax.default", "results": [result]}}
    inputs = [{{"name": "x", "role": "input", "spec": ["F32", 1]}}]
    return {{"constants": [], "dialect": "aten", "form": "logical", "graph": 1, "inputs": inputs, "nodes": [node],
            "outputs": []}}

def peak_megabytes():
    # The kernel's own mark: `ru_maxrss` would count what the process was forked from.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) // 1024

data = {data}
try:
    read_graph(data)
except MalformedError as error:
    print(peak_megabytes(), str(error)[:100])
"""


@pytest.mark.parametrize("what", BOMBS)
def test_a_bomb_is_refused_at_once_and_in_200_megabytes(what: str) -> None:
    code = BOMB_SCRIPT.format(data=BOMBS[what])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    megabytes, reason = run.stdout.split(maxsplit=1)
    assert reason.strip()
    assert int(megabytes) < 200, reason
