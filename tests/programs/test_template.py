"""Named dimensions: polynomials, ranges, and the graph that comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tallystick.core.errors import MalformedError, TallyError, UsageError
from tallystick.programs.encoding import canonical, graph_bytes
from tallystick.programs.graph import GraphLimits
from tallystick.programs.templates import Template, evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("0", 0),
        ("b", 5),
        ("4*b*length+1", 141),
        ("b-length", -2),
        ("-b+10", 5),
        ("b*b-2*b*length+length*length", 4),
        ("b_2", 3),
    ],
)
def test_polynomials(text: str, value: int) -> None:
    assert evaluate(text, {"b": 5, "length": 7, "b_2": 3}) == value


@pytest.mark.parametrize(
    "text",
    ["", "+", "b+", "b**2", "b^2", "b b", " b", "2b", "(b)", "b//2", "b/2", "b.real", "c", "B", "01", "1e3", "--b",
     "b*-1", "9" * 17, "b*" * 200 + "b", "9007199254740991*b", "b\n", "\ufb01", "\u0661", "__import__"],
)  # fmt: skip
def test_what_is_no_polynomial(text: str) -> None:
    with pytest.raises(MalformedError):
        evaluate(text, {"b": 5})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.lists(st.sampled_from("abc"), max_size=3)), min_size=1, max_size=5))
def test_a_polynomial_is_the_sum_of_its_products(terms: list[tuple[int, list[str]]]) -> None:
    sizes = {"a": 2, "b": 3, "c": 7}
    expected = 0
    for number, names in terms:
        product = number
        for name in names:
            product *= sizes[name]
        expected += product
    assert evaluate("+".join("*".join([str(number), *names]) for number, names in terms), sizes) == expected


def template(small: Any) -> Any:
    """The model with any batch."""
    document = json.loads(graph_bytes(small.graph()))

    def named(value: Any, specs: bool) -> Any:
        return ["batch" if i == 1 and side == 4 else side for i, side in enumerate(value)] if specs else value

    for each in document["inputs"]:
        if each["name"] == "inputs.x":
            each["spec"] = ["F32", "batch", 3]
    for node in document["nodes"]:
        node["results"] = [result and named(result, True) for result in node["results"]]
        if "size" in node["attributes"]:
            node["attributes"]["size"] = ["batch", 2, 2]
    return {"dimensions": {"batch": [1, 64]}, "graph": document, "template": 1}


def read(value: Any) -> Template:
    return Template.from_bytes(canonical(value).encode())


@pytest.mark.parametrize("batch", [1, 2, 4, 64])
def test_a_bound_template_is_the_ordinary_graph(small: Any, batch: int) -> None:
    found = read(template(small))
    assert found.bind(GraphLimits(), small.find, batch=batch) == small.graph(batch)
    assert Template.from_bytes(found.to_bytes()) == found


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({}, "batch has no size"),
        ({"batch": 0}, "goes from 1 to 64"),
        ({"batch": 65}, "goes from 1 to 64"),
        ({"batch": 4, "length": 2}, "no dimension length"),
    ],
)
def test_sizes_that_do_not_fit(small: Any, sizes: dict[str, int], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read(template(small)).bind(GraphLimits(), small.find, **sizes)


def test_the_limits_hold_for_what_comes_out(small: Any) -> None:
    found = read(template(small))
    limits = GraphLimits(flops=2000)
    assert found.bind(limits, small.find, batch=2)
    with pytest.raises(MalformedError, match="floating-point operations"):
        found.bind(limits, small.find, batch=64)


def test_a_template_that_is_wrong_for_one_size_is_refused_there(small: Any) -> None:
    document = template(small)
    document["graph"]["nodes"][8]["attributes"]["size"] = ["2*batch-4", 2, 2]
    found = read(document)
    assert found.bind(GraphLimits(), small.find, batch=4) == small.graph(4)
    with pytest.raises(MalformedError, match="node 9"):
        found.bind(GraphLimits(), small.find, batch=5)
    with pytest.raises(MalformedError, match="node 9"):
        found.bind(GraphLimits(), small.find, batch=1)


def test_a_scalar_may_be_a_polynomial_and_stays_a_float_where_it_is_one(small: Any) -> None:
    node = {"attributes": {"dtype": "I64", "end": "2*batch"}, "number": 0, "operands": {},
            "operator": "aten.arange.default", "results": [["I64", "2*batch"]]}  # fmt: skip
    shift = {"attributes": {"alpha": "0.5"}, "number": 1, "operands": {"self": "x", "other": "x"},
             "operator": "aten.add.Tensor", "results": [["F32"]]}  # fmt: skip
    inputs = [{"name": "x", "role": "input", "spec": ["F32"]}]
    graph = {"constants": [], "dialect": "aten", "form": "logical", "graph": 1, "inputs": inputs,
             "nodes": [node, shift], "outputs": []}  # fmt: skip
    found = read({"dimensions": {"batch": [1, 9]}, "graph": graph, "template": 1})
    bound = found.bind(GraphLimits(), small.find, batch=3)
    assert bound.nodes[0].attributes == {"end": 6, "dtype": "I64"}
    assert bound.nodes[1].attributes == {"alpha": 0.5}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("template", 2),
        ("template", True),
        ("dimensions", []),
        ("dimensions", {"Batch": [1, 2]}),
        ("dimensions", {"nan": [1, 2]}),
        ("dimensions", {"batch": [2, 1]}),
        ("dimensions", {"batch": [1]}),
        ("dimensions", {"batch": [-1, 2]}),
        ("dimensions", {f"d{i}": [1, 2] for i in range(65)}),
        ("graph", {}),
        ("graph", []),
    ],
)
def test_documents_that_are_no_template(small: Any, field: str, value: Any) -> None:
    assert read(template(small))
    with pytest.raises(MalformedError):
        read(template(small) | {field: value})


def test_a_template_has_one_spelling(small: Any) -> None:
    data = canonical(template(small)).encode()
    assert Template.from_bytes(data)
    with pytest.raises(MalformedError, match="not canonical"):
        Template.from_bytes(data + b"\n")


SCRAPS = st.sampled_from(
    [None, True, 0, -1, 2**53, "", "batch", "batch*batch", "batch-9", "n0", "nan", [], {}, ["batch"]]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_field_replaced_gives_a_graph_or_a_refusal(small: Any, data: st.DataObject) -> None:
    document = template(small)
    path = data.draw(st.sampled_from(places(document)[1:]))
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = data.draw(SCRAPS)
    try:
        graph = read(document).bind(GraphLimits(), small.find, batch=data.draw(st.integers(1, 5)))
    except TallyError:
        return
    assert graph_bytes(graph)
