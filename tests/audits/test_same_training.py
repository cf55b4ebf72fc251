from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tallystick.core.tensors import TensorSpec

torch = pytest.importorskip("torch")


@cache  # a graph never changes
def step_of(rows: int, eps: float = 1e-8, hidden: int = 4, clip: float | None = 1.0) -> Any:
    from tallystick.engines.torch.capture.training_step import capture_training_step

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=eps)

    def loss(called: Any, batch: Any) -> Any:
        return (called(batch["x"]) - batch["y"]).square().mean()

    batch = {"x": torch.randn(rows, 3), "y": torch.randn(rows, 1)}
    return capture_training_step(model, loss, optimizer, batch, clip_norm=clip).graph


@pytest.fixture(scope="module")
def first() -> Any:
    return step_of(4)


def test_steps_of_one_training_on_batches_of_other_shapes_are_alike(first: Any) -> None:
    from tallystick.audits.same_training import UNCHANGED, departure, difference

    assert difference(first, step_of(7)) == ""
    assert departure(first, step_of(7), UNCHANGED) == ""
    assert difference(first, step_of(4, clip=None)) == ""  # what makes a gradient is a program of its own
    assert "computed otherwise" in departure(first, step_of(4, clip=None), UNCHANGED)


def shifted(rows: int) -> Any:
    """A loss over all places but the last, as language models have it: of one row, that part is no copy."""
    from tallystick.engines.torch.capture.training_step import capture_training_step

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 3)

    def loss(called: Any, batch: Any) -> Any:
        return called(batch["x"])[:, :-1, :].contiguous().view(-1, 3).square().mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return capture_training_step(model, loss, optimizer, {"x": torch.randn(rows, 5, 3)}).graph


def test_a_batch_of_one_row_needs_no_copy() -> None:
    from tallystick.audits.same_training import UNCHANGED, departure

    several, one = shifted(4), shifted(1)
    copies = [sum(node.operator == "aten.clone.default" for node in graph.nodes) for graph in (several, one)]
    assert copies[0] > copies[1]
    assert departure(several, one, UNCHANGED) == departure(several, shifted(7), UNCHANGED) == ""
    negated = next(node for node in several.nodes if node.operator == "aten.clone.default")
    liar = replace(
        several,
        nodes=tuple(
            replace(n, operator="aten.neg.default", attributes={}) if n == negated else n for n in several.nodes
        ),
    )
    assert "computed otherwise" in departure(liar, one, UNCHANGED)
    assert "computed otherwise" in departure(several, liar, UNCHANGED)


def broadcast(rows: int) -> Any:
    """A model that adds the same positions to every row: their gradient is a sum over rows, and of one row no sum."""
    from tallystick.engines.torch.capture.training_step import capture_training_step

    class Positioned(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.places, self.last = torch.nn.Parameter(torch.ones(1, 5, 3)), torch.nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.last(x + self.places)

    torch.manual_seed(0)
    model = Positioned()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = {"x": torch.randn(rows, 5, 3)}
    return capture_training_step(model, lambda m, b: m(b["x"]).square().mean(), optimizer, batch).graph


def test_a_batch_of_one_row_needs_no_sum_over_rows() -> None:
    from tallystick.audits.same_training import UNCHANGED, departure

    several, one = broadcast(4), broadcast(1)
    (summed,), none = (
        [n for n in graph.nodes if n.operator == "aten.sum.dim_IntList" and len(n.results[0].shape) == 3]
        for graph in (several, one)
    )
    assert none == []
    assert departure(several, one, UNCHANGED) == departure(one, several, UNCHANGED) == ""
    other = replace(several, nodes=tuple(n for n in several.nodes if n != summed))
    source = summed.operands["self"]
    passed_on = tuple(
        replace(n, operands={name: source if ref == summed.outputs[0] else ref for name, ref in n.operands.items()})
        for n in other.nodes
    )
    outputs = tuple(
        replace(each, value=source) if each.value == summed.outputs[0] else each for each in several.outputs
    )
    vector = replace(
        one,
        nodes=tuple(
            replace(n, operator="aten.view.default", attributes={"size": (15,)}, results=(TensorSpec("F32", (15,)),))
            if n.outputs[0] == {o.name: o.value for o in one.outputs}["gradients.places"]
            else n
            for n in one.nodes
        ),
    )
    assert "computed otherwise" in departure(several, vector, UNCHANGED)  # a gradient of another rank is none of it
    liar = replace(several, nodes=passed_on, outputs=outputs)  # of four rows, the sum is left out
    assert "computed otherwise" in departure(several, liar, UNCHANGED)


def test_another_optimizer_or_another_state_is_named(first: Any) -> None:
    from tallystick.audits.same_training import difference

    assert difference(first, step_of(4, eps=1e-6)).startswith("weights.0.bias is updated otherwise")
    assert difference(first, step_of(4, eps=1e-6), is_updated_alike=False) == ""
    assert "is another input" in difference(first, step_of(4, hidden=5), is_updated_alike=False)


@pytest.fixture(scope="module")
def rules() -> Any:
    from tallystick.formats.optimizers import AdamRule

    return lambda **settings: (AdamRule(kind="adamw", **settings),)


def test_a_changed_setting_explains_its_own_numbers_and_nothing_else(first: Any, rules: Any) -> None:
    from tallystick.audits.same_training import SettingChanges, departure

    changed = SettingChanges.between(rules(), rules(eps=1e-6))
    assert departure(first, step_of(4, eps=1e-6), changed) == ""
    assert "has other 1e-06, and 1e-08" in departure(first, step_of(4, eps=1e-6), SettingChanges())
    assert "still has other 1e-08, a setting that the record says was changed" in departure(first, first, changed)
    decayed = SettingChanges.between(rules(weight_decay=0.01), rules(weight_decay=0.02))
    assert departure(first, first, decayed) == ""  # the decay is fed to the graph
    assert "updated otherwise" in departure(first, step_of(4, eps=1e-6), decayed)


def grouped(*settings: dict[str, Any]) -> Any:
    from tallystick.engines.torch.capture.training_step import capture_training_step

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    groups = [{"params": [*model[layer].parameters()], **own} for layer, own in zip((0, 2), settings, strict=True)]
    batch = {"x": torch.ones(4, 3)}
    optimizer = torch.optim.AdamW(groups)
    return capture_training_step(model, lambda called, given: called(given["x"]).sum(), optimizer, batch).graph


def between(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> Any:
    from tallystick.audits.same_training import SettingChanges
    from tallystick.formats.optimizers import AdamRule

    return SettingChanges.between(
        [AdamRule(kind="adamw", **each) for each in before], [AdamRule(kind="adamw", **each) for each in now]
    )


SLOW, FAST = {"betas": (0.9, 0.999)}, {"betas": (0.8, 0.999)}
ALIKE, ONE, BOTH = ({"betas": betas} for betas in ((0.9, 0.9), (0.8, 0.9), (0.8, 0.8)))
PLAIN, DECAYS = {"weight_decay": 0.0}, {"weight_decay": 0.1}


@pytest.mark.parametrize(
    ("before", "stated", "done", "named"),
    [
        ([SLOW, SLOW], [FAST, SLOW], [FAST, SLOW], ""),
        ([SLOW, SLOW], [FAST, SLOW], [SLOW, FAST], "still has weight"),
        ([SLOW, SLOW], [FAST, SLOW], [FAST, FAST], "optimizer.2.bias.exp_avg is updated otherwise"),
        ([ALIKE, SLOW], [BOTH, SLOW], [BOTH, SLOW], ""),
        ([ALIKE, SLOW], [ONE, SLOW], [BOTH, SLOW], "betas of parameter group 0 had the number of another setting"),
        ([PLAIN, DECAYS], [DECAYS, DECAYS], [DECAYS, DECAYS], ""),
    ],
    ids=["honest", "liar: the other group", "liar: both groups", "honest: alike", "liar: alike", "honest: decay"],
)
def test_a_changed_number_is_that_of_its_group_and_its_setting(
    before: list[dict[str, Any]], stated: list[dict[str, Any]], done: list[dict[str, Any]], named: str
) -> None:
    from tallystick.audits.same_training import departure

    found = departure(grouped(*before), grouped(*done), between(before, stated))
    assert named in found if named else not found, found


def test_a_decay_that_is_turned_on_is_that_of_its_own_group() -> None:
    """The liar multiplies the weights of one group with the decay of another, whose rate is larger."""
    from tallystick.audits.same_training import departure

    graph = grouped(DECAYS, DECAYS)
    names = {"schedule.decay.0": "schedule.decay.1"}
    nodes = [
        replace(each, operands={k: names.get(v, v) if isinstance(v, str) else v for k, v in each.operands.items()})
        for each in graph.nodes
    ]
    changes, plain = between([PLAIN, DECAYS], [DECAYS, DECAYS]), grouped(PLAIN, DECAYS)
    assert departure(plain, graph, changes) == ""
    assert "weights.0.bias is updated otherwise" in departure(plain, replace(graph, nodes=tuple(nodes)), changes)


def test_a_setting_that_another_one_happens_to_equal_is_looked_for_all_the_same(first: Any, rules: Any) -> None:
    from tallystick.audits.same_training import SettingChanges, departure

    before, now = (rules(betas=(beta, 0.999), weight_decay=1 - 0.9) for beta in (0.9, 0.99))
    assert "had the number of another setting" in departure(first, first, SettingChanges.between(before, now))


def test_a_decay_that_is_turned_on_explains_its_own_number_alone(rules: Any) -> None:
    from tallystick.audits.same_training import SettingChanges, departure

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)

    def step(decay: float) -> Any:
        from tallystick.engines.torch.capture.training_step import capture_training_step

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=decay)
        batch = {"x": torch.ones(4, 3)}
        return capture_training_step(model, lambda called, given: called(given["x"]).sum(), optimizer, batch).graph

    turned_on = SettingChanges.between(rules(), rules(weight_decay=0.01))
    assert departure(step(0.0), step(0.01), turned_on) == ""
    assert "updated otherwise" in departure(step(0.0), step(10.0), turned_on)


def test_a_setting_that_is_turned_on_changes_the_program(first: Any, rules: Any) -> None:
    from tallystick.audits.same_training import SettingChanges, departure

    turned_on = SettingChanges.between(rules(), rules(amsgrad=True))
    assert "amsgrad of parameter group 0 is True, and False before" in departure(first, first, turned_on)
    assert "others" in SettingChanges.between(rules(), (*rules(), *rules())).of_structure


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("mean.default", "sum.default", "aten.sum.default in the place of aten.mean.default"),
        ("tanh.default", "sigmoid.default", "aten.sigmoid.default in the place of aten.tanh.default"),
    ],
)
def test_another_operator_in_loss_or_gradients_is_named(first: Any, old: str, new: str, named: str) -> None:
    from tallystick.audits.same_training import UNCHANGED, departure, difference

    nodes = [replace(each, operator=each.operator.replace(old, new)) for each in first.nodes]
    forged = replace(first, nodes=tuple(nodes))
    assert difference(first, forged) == ""  # it updates the weights alike
    assert named in departure(first, forged, UNCHANGED)


def test_an_integer_that_no_size_of_the_batch_explains_is_named(first: Any) -> None:
    from tallystick.audits.same_training import UNCHANGED, departure

    other = step_of(7)
    assert any(each.attributes.get("other") == 7 for each in other.nodes)
    for wrong, named in ((6, "no size of the batch"), (-7, "no size of the batch")):
        nodes = [
            replace(each, attributes={**each.attributes, "other": wrong}) if each.attributes.get("other") == 7 else each
            for each in other.nodes
        ]
        assert named in departure(first, replace(other, nodes=tuple(nodes)), UNCHANGED)
    turned = [
        replace(each, attributes={**each.attributes, "dim": (1,)}) if each.attributes.get("dim") == (0,) else each
        for each in other.nodes
    ]
    assert "no size of the batch" in departure(first, replace(other, nodes=tuple(turned)), UNCHANGED)


def test_a_weight_that_is_passed_on_or_an_output_that_is_left_out_is_named(first: Any) -> None:
    from tallystick.audits.same_training import difference

    kept = [replace(each, value=each.name) if each.name == "weights.2.weight" else each for each in first.outputs]
    unlike = difference(first, replace(first, outputs=tuple(kept)))
    assert unlike.startswith("weights.2.weight is updated otherwise")
    fewer = tuple(each for each in first.outputs if each.name != "gradients.0.bias")
    changed = "optimizer.0.bias.exp_avg has no gradient, and is changed"
    assert difference(first, replace(first, outputs=fewer)) == changed


def test_a_parameter_without_a_gradient_stays_as_it_is(first: Any) -> None:
    from tallystick.audits.same_training import UNCHANGED, departure, difference
    from tallystick.programs.step_names import parameter_of

    frozen = [each for each in first.outputs if each.name != "gradients.0.bias"]
    frozen = [replace(each, value=each.name) if parameter_of(each.name) == "0.bias" else each for each in frozen]
    without = replace(first, outputs=tuple(frozen))
    assert difference(first, without) == ""
    assert difference(without, first, is_updated_alike=False) == ""
    assert departure(first, without, UNCHANGED) == ""
    assert departure(without, first, UNCHANGED).startswith("0.bias trains")


def test_a_frozen_parameter_leaves_its_own_norm_out_of_the_clip_and_no_other(first: Any) -> None:
    from tallystick.audits.same_training import UNCHANGED, departure
    from tallystick.core.tensors import TensorSpec
    from tallystick.programs.step_names import parameter_of

    (stack,) = (each for each in first.nodes if each.operator == "aten.stack.default")
    outputs = [each for each in first.outputs if each.name != "gradients.0.bias"]
    outputs = [replace(each, value=each.name) if parameter_of(each.name) == "0.bias" else each for each in outputs]
    norms = stack.operands["tensors"]
    for place in range(4):
        fewer = {"tensors": norms[:place] + norms[place + 1 :]}
        cut = replace(stack, operands=fewer, results=(TensorSpec("F32", (3,)),))
        other = replace(
            first, nodes=tuple(cut if each is stack else each for each in first.nodes), outputs=tuple(outputs)
        )
        assert (departure(first, other, UNCHANGED) == "") is (place == 1)  # the norms of 0.weight, 0.bias, …


@cache
def of_micro_batches(count: int, rows: int = 4) -> Any:
    from tallystick.engines.torch.capture.training_step import capture_training_step

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)

    def loss(called: Any, batch: Any) -> Any:
        return (called(batch["x"]) - batch["y"]).square().mean()

    part = {"x": torch.ones(rows, 3), "y": torch.ones(rows, 1)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = [part] * count if count > 1 else part
    return capture_training_step(model, loss, optimizer, batch, accumulation=count, clip_norm=1.0).graph


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (1, 3), (2, 3), (3, 2)])
def test_a_mean_over_another_number_of_micro_batches_is_the_same_program(before: int, now: int) -> None:
    from tallystick.audits.same_training import UNCHANGED, departure

    assert departure(of_micro_batches(before), of_micro_batches(now), UNCHANGED) == ""
    assert departure(of_micro_batches(before), of_micro_batches(now, rows=8 // now), UNCHANGED) == ""


def with_divisor(graph: Any, old: int, new: int) -> Any:
    nodes = [
        replace(each, attributes={**each.attributes, "other": new})
        if each.operator == "aten.div.Scalar" and each.attributes["other"] == old
        else each
        for each in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def with_summed_losses(graph: Any) -> Any:
    """The losses of all micro-batches summed, and gradients as before."""
    stacks = {each.outputs[0] for each in graph.nodes if each.operator == "aten.stack.default"}
    nodes = [
        replace(each, operator="aten.sum.default")
        if each.operator == "aten.mean.default" and each.operands["self"] in stacks
        else each
        for each in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def test_gradients_of_micro_batches_are_shared_as_their_losses_are() -> None:
    """Liars: a mean whose gradients are summed, one divided by the old number, and a loss that alone is summed."""
    from tallystick.audits.same_training import UNCHANGED, departure

    one, two, three = (of_micro_batches(count, rows=5) for count in (1, 2, 3))
    assert "gradient" in departure(one, with_divisor(two, 2, 1), UNCHANGED)
    assert "gradient" in departure(two, with_divisor(three, 3, 2), UNCHANGED)
    assert "gradient" in departure(one, with_summed_losses(two), UNCHANGED)
    assert "a sum in the other" in departure(two, with_summed_losses(three), UNCHANGED)


def test_a_mean_over_other_rows_is_divided_by_their_number(first: Any) -> None:
    """The liar divides by the 4 rows of the first batch where there are 7: the gradient counts 7 / 4 times."""
    from tallystick.audits.same_training import UNCHANGED, departure

    assert departure(first, step_of(7), UNCHANGED) == ""
    assert "still has other 4, a size of the first batch" in departure(first, with_divisor(step_of(7), 7, 4), UNCHANGED)


def test_micro_batches_that_are_mixed_or_left_out_are_named() -> None:
    from tallystick.audits.same_training import UNCHANGED, departure
    from tallystick.engines.torch.capture.training_step import capture_training_step

    model = torch.nn.Linear(3, 1)

    def step(count: int) -> Any:
        def loss(called: Any, batch: Any) -> Any:
            return (called(batch["x"]) - batch["y"]).square().mean()

        batch = [{"x": torch.ones(4, 3), "y": torch.ones(4, 1)}] * count
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return capture_training_step(model, loss, optimizer, batch, accumulation=count).graph

    def reading(graph: Any, names: dict[str, str]) -> Any:
        unread = [replace(each, name=each.name.replace(".0.", ".2.")) for each in graph.inputs if ".0." in each.name]
        unread = [each for each in unread if each.name.startswith("inputs.")]
        nodes = [
            replace(each, operands={k: names.get(v, v) if isinstance(v, str) else v for k, v in each.operands.items()})
            for each in graph.nodes
        ]
        return replace(graph, inputs=(*graph.inputs, *unread), nodes=tuple(nodes))

    two = step(2)
    assert departure(two, step(3), UNCHANGED) == ""
    crossed = reading(two, {"inputs.0.y": "inputs.1.y", "inputs.1.y": "inputs.0.y"})
    assert "of several micro-batches" in departure(two, crossed, UNCHANGED)
    repeated = reading(two, {"inputs.1.x": "inputs.0.x", "inputs.1.y": "inputs.0.y"})
    assert "some micro-batches are left out" in departure(two, repeated, UNCHANGED)


def test_a_decay_that_is_turned_on_is_that_of_the_gradient_s_own_weight(rules: Any) -> None:
    from tallystick.audits.same_training import SettingChanges, departure
    from tallystick.programs.graph import Node

    plain = step_of(4)
    turned_on = SettingChanges.between(rules(weight_decay=0.0), rules(weight_decay=5.0))
    name = "weights.0.weight"
    value = next(each.value for each in plain.outputs if each.name == name)
    number = plain.nodes[-1].number + 1
    operands = {"self": value, "other": name}
    added = Node(number, "aten.add.Tensor", operands, {"alpha": -5.0}, (plain.specs()[value],))
    outputs = [replace(each, value=f"n{number}") if each.name == name else each for each in plain.outputs]
    forged = replace(plain, nodes=(*plain.nodes, added), outputs=tuple(outputs))
    assert "updated otherwise" in departure(plain, forged, turned_on)


def selecting(rows: int, end: int) -> Any:
    """A loss over one row of a batch."""
    from tallystick.engines.torch.capture.training_step import capture_training_step

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batch = {"x": torch.ones(rows, 3)}
    return capture_training_step(model, lambda called, given: called(given["x"])[end].sum(), optimizer, batch).graph


@pytest.mark.parametrize(
    ("ends", "named"),
    [([7, 7, 7], ""), ([7, 11, 15], ""), ([7, 11, 7], "unlike in another further graph")],
    ids=["honest: a number", "honest: the last", "liar: as it suits"],
)
def test_a_place_follows_the_end_of_a_side_in_all_further_graphs_or_in_none(ends: list[int], named: str) -> None:
    from tallystick.audits.same_training import UNCHANGED, Followed, departure

    first, followed = selecting(8, ends[0]), Followed()
    found = [
        departure(first, selecting(rows, end), UNCHANGED, followed=followed)
        for rows, end in zip((12, 16), ends[1:], strict=True)
    ]
    assert found[0] == ""
    assert named in found[1] if named else not found[1]


def test_a_place_in_the_stream_of_a_seed_follows_from_the_draws_before_it() -> None:
    """A draw that is taken from another place gives masks that a prover chose."""
    from tallystick.audits.same_training import UNCHANGED, departure
    from tallystick.engines.torch.capture.training_step import capture_training_step

    model = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 4), torch.nn.Dropout(0.5)
    )

    def graph_of(rows: int) -> Any:
        batch = {"x": torch.zeros(rows, 3)}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return capture_training_step(model, lambda m, b: m(b["x"]).sum(), optimizer, batch, draws="seed").graph

    first, other = graph_of(8), graph_of(5)
    assert departure(first, other, UNCHANGED) == ""
    for offset in (0, 24, 32):
        nodes = tuple(
            replace(node, attributes=dict(node.attributes) | {"offset": offset})
            if node.attributes.get("offset")
            else node
            for node in other.nodes
        )
        assert "has offset" in departure(first, replace(other, nodes=nodes), UNCHANGED), offset
