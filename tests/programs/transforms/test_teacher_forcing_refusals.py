"""What the transform refuses, beside what it shows to be right though no model is built like that."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.capture.model import CapturedModel, capture
from tallystick.programs.decoding import LOGITS, PLACES, TOKENS
from tallystick.programs.execution import Reference, execute
from tallystick.programs.graph import Graph
from tallystick.programs.transforms.teacher_forcing import to_teacher_forcing
from tests.programs.transforms.steps import PAST, VOCABULARY, Attention, captured_attention, example, named

pytestmark = pytest.mark.usefixtures("one_thread")


def changed(**methods: Any) -> Attention:
    """Attention with some of its methods replaced; each is given the module first."""
    return type("Changed", (Attention,), methods)()


def token_by_token(module: Attention, tokens: Any) -> Any:
    empty = torch.zeros(tokens.shape[0], 2, 0, 6)
    held, rows = {"0": {"key": empty, "value": empty}}, []
    with torch.inference_mode():
        for place in range(tokens.shape[1]):
            fed = torch.from_numpy(tokens[:, place : place + 1])
            found = module(fed, torch.full_like(fed, place), held)
            held = found["cache"]
            rows.append(found["logits"])
    return torch.cat(rows, 1).numpy(), held["0"]["key"].numpy()


def assert_right(module: Attention, step: CapturedModel, batch: int = 1) -> Graph:
    """The pass is right for every token, on tokens that no step was captured with."""
    whole = to_teacher_forcing(step.graph, PAST + 1, step.constants)
    tokens = np.random.default_rng(batch).integers(VOCABULARY, size=(batch, PAST + 1))
    places = np.ascontiguousarray(np.broadcast_to(np.arange(PAST + 1), tokens.shape))
    fed = {TOKENS: Tensor.of(tokens), PLACES: Tensor.of(places)}
    found = execute(whole, {**step.bindings, **fed}, Reference())
    logits, keys = token_by_token(module, tokens)
    np.testing.assert_allclose(found[LOGITS].array(), logits, atol=1e-5)
    np.testing.assert_allclose(found["outputs.cache.0.key"].array(), keys, atol=1e-5)
    return whole


def masked(scores: torch.Tensor, window: int) -> torch.Tensor:
    count = scores.shape[-1]
    return scores.masked_fill(torch.arange(count) < count - window, -math.inf)


def first(self: Attention, i: torch.Tensor, p: torch.Tensor, past: int) -> torch.Tensor:
    """Tokens count twice from place 4 on."""
    return self.tokens(i) * torch.where(p > 3, 2.0, 1.0)[..., None]


def table(self: Attention, i: torch.Tensor, p: torch.Tensor, past: int) -> torch.Tensor:
    return self.tokens(i) + self.places(p) * self.places.weight[past : past + 1]


def beside(self: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-1, -2) @ (k @ k.transpose(-1, -2)) @ v


def distances(self: Attention, scores: torch.Tensor) -> torch.Tensor:
    return (scores - (scores.shape[-1] - 1 - torch.arange(scores.shape[-1]))).softmax(-1)


def by_hand(self: Attention, scores: torch.Tensor) -> torch.Tensor:
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def unforbidden(self: Attention, scores: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~torch.ones(scores.shape[-1]).bool(), -1e9).softmax(-1)


SHOWN: dict[str, dict[str, Any]] = {
    "as it is": {},
    "fused": {"attended": lambda self, q, k, v: functional.scaled_dot_product_attention(q, k, v)},
    "grouped": {"attended": lambda self, q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)},
    "safe softmax": {"weights": lambda self, scores: torch.ops.aten._safe_softmax(scores, -1)},
    "softmax by hand": {"weights": by_hand},
    "no softmax": {"weights": lambda self, scores: torch.sigmoid(scores)},
    "squares": {"weights": lambda self, scores: scores.square() / (scores.square().sum(-1, keepdim=True) + 1)},
    "capped scores": {"weights": lambda self, scores: (torch.tanh(scores / 3) * 3).softmax(-1)},
    "sharpened": {"weights": lambda self, scores: scores.softmax(-1).sqrt()},
    "a mask of zeros": {"weights": lambda self, scores: (scores + torch.zeros(1, scores.shape[-1])).softmax(-1)},
    "a mask of ones": {"weights": unforbidden},
    "a window that has not closed": {"weights": lambda self, scores: masked(scores, 20).softmax(-1)},
    "less than the largest": {"weights": lambda self, scores: scores - scores.amax(-1, keepdim=True)},
    "keys that are turned": {"attended": lambda self, q, k, v: q @ k.flip(-1).transpose(-1, -2).softmax(-2) @ v},
    "a sink": {"weights": lambda self, scores: torch.exp(scores) / (1 + torch.exp(scores).sum(-1, keepdim=True))},
    "a place that decides": {"embedded": first},
    "places of its own": {"embedded": lambda self, i, p, past: self.tokens(i) + self.places(p * 0 + p)},
    "a part of the width": {"heads": lambda self, x: Attention.heads(self, x) * torch.tensor([1.0, 0, 0, 1, 1, 1])},
    "a count within the step": {"finished": lambda self, x, keys: x + torch.arange(x.shape[1])[None, :, None]},
    "heads by another way": {"heads": lambda self, x: x.view(x.shape[0], 1, 2, 6).permute(0, 2, 1, 3)},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a window": ({"weights": lambda self, scores: masked(scores, 4).softmax(-1)}, "no causal mask"),
    "a window that is cut": (
        {"attended": lambda self, q, k, v: Attention.attended(self, q, k[:, :, -4:], v[:, :, -4:])},
        "cuts a part out of tokens or keys",
    ),
    "a mean over the cache": (
        {"finished": lambda self, x, keys: x + keys.mean(2).reshape(x.shape[0], 1, -1)},
        "sum over keys that no token asks for",
    ),
    "a sum over the cache": (
        {"finished": lambda self, x, keys: x + keys.sum(2).reshape(x.shape[0], 1, -1)},
        "sum over keys that no token asks for",
    ),
    "the first key": ({"finished": lambda self, x, keys: x + keys[:, 0, :1].repeat(1, 1, 2)}, "cuts a part out of"),
    "the last of the cache": ({"joined": lambda self, old, new: torch.cat([old, new + old[:, :, -1:]], 2)}, "cuts a"),
    "all of the cache": ({"joined": lambda self, old, new: torch.cat([old, new + old.sum()], 2)}, "over tokens"),
    "a cache that is changed": ({"joined": lambda self, old, new: torch.cat([old * 0.5, new], 2)}, "reads a cache"),
    "attention to the mean": (
        {"weights": lambda self, scores: scores.mean(-1, keepdim=True).expand_as(scores)},
        "no mask shuts them out",
    ),
    "the number of keys": ({"weights": lambda self, s: s.softmax(-1) * s.shape[-1]}, "other is 11, which may be"),
    "the number of places": ({"finished": lambda self, x, keys: x / (keys.shape[2] - 1)}, "other is 10, which may be"),
    "the best key alone": ({"weights": lambda self, s: (s == s.argmax(-1, keepdim=True)).float()}, "chooses among"),
    "sorted keys": ({"weights": lambda self, s: s.sort(-1).values.softmax(-1)}, "sorts tokens or keys"),
    "running sums of keys": ({"weights": lambda self, s: s.cumsum(-1).softmax(-1)}, "adds up tokens or keys"),
    "distances": ({"weights": distances}, "no causal mask"),
    "a mean over tokens": ({"finished": lambda self, x, keys: x - x.mean(1, keepdim=True)}, "sum over tokens"),
    "running sums of tokens": ({"finished": lambda self, x, keys: x.cumsum(1)}, "adds up tokens"),
    "tokens in reverse": ({"finished": lambda self, x, keys: x.flip(1)}, "reverses tokens"),
    "a softmax over tokens": ({"finished": lambda self, x, keys: x.softmax(1)}, "max over tokens"),
    "attention among keys": (
        {"attended": lambda self, q, k, v: q @ (k.transpose(-1, -2) @ v)},
        "sums over keys that no token asks for",
    ),
    "keys beside keys": ({"attended": beside}, "pairs tokens with tokens, or keys with keys"),
    "a place that is not read": (
        {"embedded": lambda self, i, p, past: self.tokens(i) + self.places(torch.full((1, 1), past))},
        "computed from the number of keys",
    ),
    "places full of a number": (
        {"embedded": lambda self, i, p, past: self.tokens(i) + self.places(torch.full_like(i, past))},
        "fill_value is 10, which may be",
    ),
    "a row of a table": ({"embedded": table}, "start is 10, which may be"),
    "a condition on the length": (
        {"finished": lambda self, x, keys: torch.where(torch.tensor(keys.shape[2]) > 4, x, x * 2)},
        "computed from the number of keys",
    ),
    "rows in front": ({"joined": lambda self, old, new: torch.cat([new, old], 2)}, "one new row behind it"),
    "two rows": ({"joined": lambda self, old, new: torch.cat([old, new, new], 2)}, "does not grow by one row"),
    "another row goes on": ({"kept": lambda self, k, v: {"key": k * 2, "value": v}}, "with the row of the token"),
    "keys go on as values": ({"kept": lambda self, k, v: {"key": v, "value": k}}, "with the row of the token"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_unusual_step_that_is_shown_to_be_right_is_right(name: str) -> None:
    module = changed(**SHOWN[name])
    assert_right(module, captured_attention(module))


@pytest.mark.parametrize("name", ["as it is", "grouped", "a mask of ones"])
def test_so_it_is_for_several_texts(name: str) -> None:
    module = changed(**SHOWN[name])
    assert_right(module, captured_attention(module, batch=3), batch=3)


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_is_no_attention_is_refused(name: str) -> None:
    methods, reason = REFUSED[name]
    step = captured_attention(changed(**methods))
    with pytest.raises(UnavailableError, match=reason):
        to_teacher_forcing(step.graph, 4, step.constants)


# ---- graphs that somebody tampered with


def edited(graph: Graph, operator: str, **attributes: Any) -> Graph:
    """The graph with attributes of its first node of this operator replaced."""
    number = next(node.number for node in graph.nodes if node.operator == operator)
    nodes = [
        replace(node, attributes={**node.attributes, **attributes}) if node.number == number else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def without_places(graph: Graph) -> Graph:
    return replace(graph, inputs=tuple(each for each in graph.inputs if each.name != PLACES))


def test_a_place_that_was_counted_from_the_cache_is_taken_for_the_place_and_no_other_number_is() -> None:
    """Tokens are embedded beside the number of places in the cache, as transformers counts it."""
    methods, _ = REFUSED["a place that is not read"]
    graph = without_places(captured_attention(changed(**methods)).graph)
    whole = to_teacher_forcing(graph, 5)
    assert [node.attributes["end"] for node in whole.nodes if node.operator == "aten.arange.default"] == [5]
    for number in (PAST + 1, PAST - 1, 0):
        with pytest.raises(UnavailableError, match=r"computed from the number of keys|no place in the text enters"):
            to_teacher_forcing(edited(graph, "aten.full.default", fill_value=number), 5)


def test_constants_have_to_be_given_and_to_be_those_of_the_graph() -> None:
    step = captured_attention(changed(**SHOWN["a part of the width"]))
    name = step.graph.constants[0].name
    assert to_teacher_forcing(step.graph, 5, step.constants)
    with pytest.raises(UnavailableError, match=f"reads {name}, a constant that is not given"):
        to_teacher_forcing(step.graph, 5)
    with pytest.raises(MalformedError, match="do not have the digest"):
        to_teacher_forcing(step.graph, 5, {name: Tensor.of(np.ones(6, np.float32))})


def test_a_place_that_has_become_a_constant_is_refused() -> None:
    """Embedded ahead, the place is a number like any other; that no place is read shows it."""

    def ahead(self: Attention, i: torch.Tensor, p: torch.Tensor, past: int) -> torch.Tensor:
        return self.tokens(i) + torch.sin(torch.arange(1, 13) * 0.1)[None, None] * torch.tensor([0.3, -0.3] * 6)

    step = captured_attention(changed(embedded=ahead))
    with pytest.raises(UnavailableError, match="no place in the text enters the graph"):
        to_teacher_forcing(step.graph, 5, step.constants)


def test_two_caches_that_are_swapped_are_refused() -> None:
    graph = captured_attention(Attention()).graph
    given = {each.name: each.value for each in graph.outputs}
    names = {"outputs.cache.0.key": "outputs.cache.0.value", "outputs.cache.0.value": "outputs.cache.0.key"}
    outputs = tuple(replace(each, value=given[names.get(each.name, each.name)]) for each in graph.outputs)
    with pytest.raises(UnavailableError, match=r"is not inputs\.cache\.0\.key with the row of the token behind it"):
        to_teacher_forcing(replace(graph, outputs=outputs), 5)


@pytest.mark.parametrize(
    ("name", "reason"),
    [(TOKENS, "a step reads one token"), ("inputs.cache.0.key", "neither token|does not go on|reads a cache")],
)
def test_a_graph_with_other_inputs_is_no_step(name: str, reason: str) -> None:
    graph = captured_attention(Attention()).graph
    inputs = tuple(replace(each, name="inputs.other") if each.name == name else each for each in graph.inputs)
    with pytest.raises(UnavailableError, match=reason):
        to_teacher_forcing(replace(graph, inputs=inputs), 5)


def test_a_mask_of_the_whole_text_is_taken_to_be_ones() -> None:
    """`inputs.attention_mask` of a step shows no padding; the pass needs none."""

    class Told(Attention):
        def forward(self, input_ids: Any, position_ids: Any, cache: Any, attention_mask: Any = None) -> Any:
            self.allowed = attention_mask
            return super().forward(input_ids, position_ids, cache)

        def weights(self, scores: torch.Tensor) -> torch.Tensor:
            return scores.masked_fill(self.allowed[:, None, None, :] == 0, -math.inf).softmax(-1)

    given = {**example(), "attention_mask": torch.ones(1, PAST + 1, dtype=torch.int64)}
    step = named(capture(Told().eval(), (), given))
    assert "inputs.attention_mask" in {each.name for each in step.graph.inputs}
    whole = assert_right(Attention(), step)
    assert "inputs.attention_mask" not in {each.name for each in whole.inputs}
