"""What the transform refuses, beside what it shows to be right though no model is built like that."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.graphs.transforms.steps import PAST, VOCABULARY, Attention, captured_attention
from torch.nn import functional

from tallystick import graphs
from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture import Captured
from tallystick.graphs.decode_interface import LOGITS, PLACES, TOKENS
from tallystick.graphs.graph import Graph, Output
from tallystick.graphs.transforms.teacher_forcing import to_teacher_forcing
from tallystick.tensors import Tensor

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


def assert_right(module: Attention, step: Captured, batch: int = 1) -> Graph:
    """The pass is right for every token, on tokens that no step was captured with."""
    whole = to_teacher_forcing(step.graph, PAST + 1, step.constants)
    tokens = np.random.default_rng(batch).integers(VOCABULARY, size=(batch, PAST + 1))
    places = np.ascontiguousarray(np.broadcast_to(np.arange(PAST + 1), tokens.shape))
    fed = {TOKENS: Tensor.of(tokens), PLACES: Tensor.of(places)}
    found = graphs.execute(whole, {**step.bindings, **fed}, graphs.Reference())
    logits, keys = token_by_token(module, tokens)
    np.testing.assert_allclose(found[LOGITS].array(), logits, atol=1e-5)
    np.testing.assert_allclose(found["outputs.cache.0.key"].array(), keys, atol=1e-5)
    return whole


def masked(scores: torch.Tensor, window: int) -> torch.Tensor:
    count = scores.shape[-1]
    return scores.masked_fill(torch.arange(count) < count - window, -math.inf)


SHOWN = {
    "as it is": {},
    "fused": {"attended": lambda self, q, k, v: functional.scaled_dot_product_attention(q, k, v)},
    "grouped": {"attended": lambda self, q, k, v: functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)},
    "safe softmax": {"weights": lambda self, scores: torch.ops.aten._safe_softmax(scores, -1)},
    "softmax by hand": {"weights": lambda self, scores: scores.exp() / scores.exp().sum(-1, keepdim=True)},
    "no softmax": {"weights": lambda self, scores: torch.sigmoid(scores)},
    "squares": {"weights": lambda self, scores: scores.square() / (scores.square().sum(-1, keepdim=True) + 1)},
    "capped scores": {"weights": lambda self, scores: (torch.tanh(scores / 3) * 3).softmax(-1)},
    "sharpened": {"weights": lambda self, scores: scores.softmax(-1).sqrt()},
    "a mask of zeros": {"weights": lambda self, scores: (scores + torch.zeros(1, scores.shape[-1])).softmax(-1)},
    "a mask of ones": {"weights": lambda self, s: s.masked_fill(~torch.ones(s.shape[-1]).bool(), -1e9).softmax(-1)},
    "a window that has not closed": {"weights": lambda self, scores: masked(scores, 20).softmax(-1)},
    "the largest score": {"weights": lambda self, scores: scores - scores.amax(-1, keepdim=True)},
    "keys that are turned late": {"attended": lambda self, q, k, v: q @ k.flip(-1).transpose(-1, -2).softmax(-2) @ v},
    "a sink": {"weights": lambda self, s: torch.exp(s) / (1 + torch.exp(s).sum(-1, keepdim=True))},
    "a place that decides": {"embedded": lambda self, i, p, past: self.tokens(i) * torch.where(p > 3, 2.0, 1.0)[..., None]},
    "places of its own": {"embedded": lambda self, i, p, past: self.tokens(i) + self.places(torch.full_like(p, 0) + p)},
    "a part of the width": {"heads": lambda self, x: Attention.heads(self, x) * torch.tensor([1.0, 0, 0, 1, 1, 1])},
    "a count within the step": {"finished": lambda self, x, keys: x + torch.arange(x.shape[1])[None, :, None]},
    "merged heads": {"heads": lambda self, x: x.view(x.shape[0], 1, 2, 6).permute(0, 2, 1, 3)},
}

REFUSED = {
    "a window": ({"weights": lambda self, scores: masked(scores, 4).softmax(-1)}, "more than a mask that lets all"),
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
    "all of the cache": ({"finished": lambda self, x, keys: x, "joined": lambda self, old, new: torch.cat([old, new + old.sum()], 2)}, "over tokens"),
    "a cache that is changed": ({"joined": lambda self, old, new: torch.cat([old * 0.5, new], 2)}, "reads a cache"),
    "attention to the mean": (
        {"weights": lambda self, scores: scores.mean(-1, keepdim=True).expand_as(scores)},
        "no mask shuts them out",
    ),
    "the number of keys": ({"weights": lambda self, s: s.softmax(-1) * s.shape[-1]}, "other is 11, which may be"),
    "the number of places": ({"finished": lambda self, x, keys: x / (keys.shape[2] - 1)}, "other is 10, which may be"),
    "the largest key": ({"weights": lambda self, s: (s == s.argmax(-1, keepdim=True)).float()}, "chooses among tokens"),
    "sorted keys": ({"weights": lambda self, s: s.sort(-1).values.softmax(-1)}, "sorts tokens or keys"),
    "running sums of keys": ({"weights": lambda self, s: s.cumsum(-1).softmax(-1)}, "adds up tokens or keys"),
    "distances": (
        {"weights": lambda self, s: (s - (s.shape[-1] - 1 - torch.arange(s.shape[-1]))).softmax(-1)},
        "more than a mask that lets all",
    ),
    "a mean over tokens": ({"finished": lambda self, x, keys: x - x.mean(1, keepdim=True)}, "sum over tokens"),
    "running sums of tokens": ({"finished": lambda self, x, keys: x.cumsum(1)}, "adds up tokens"),
    "tokens in reverse": ({"finished": lambda self, x, keys: x.flip(1)}, "reverses tokens"),
    "a softmax over tokens": ({"finished": lambda self, x, keys: x.softmax(1)}, "max over tokens"),
    "attention among keys": (
        {"attended": lambda self, q, k, v: q @ (k.transpose(-1, -2) @ v)},
        "sums over keys that no token asks for",
    ),
    "keys beside keys": (
        {"attended": lambda self, q, k, v: q @ k.transpose(-1, -2) @ (k @ k.transpose(-1, -2)) @ v},
        "pairs tokens with tokens, or keys with keys",
    ),
    "a place that is not read": (
        {"embedded": lambda self, i, p, past: self.tokens(i) + self.places(torch.full((1, 1), past))},
        "computed from the number of keys",
    ),
    "places full of a number": (
        {"embedded": lambda self, i, p, past: self.tokens(i) + self.places(torch.full_like(i, past))},
        "fill_value is 10, which may be",
    ),
    "a row of a table": (
        {"embedded": lambda self, i, p, past: self.tokens(i) + self.places(p) * self.places.weight[past : past + 1]},
        "start is 10, which may be",
    ),
    "a condition on the length": (
        {"finished": lambda self, x, keys: torch.where(torch.tensor(keys.shape[2]) > 4, x, x * 2)},
        "computed from the number of keys",
    ),
    "rows in front": ({"joined": lambda self, old, new: torch.cat([new, old], 2)}, "one new row behind it"),
    "two rows": ({"joined": lambda self, old, new: torch.cat([old, new, new], 2)}, "does not grow by one row"),
    "another row goes on": ({"kept": lambda self, k, v: {"key": k * 2, "value": v}}, "with the row of the token"),
    "keys go on as values": ({"kept": lambda self, k, v: {"key": v, "value": k}}, "with the row of the token"),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", SHOWN)
def test_an_unusual_step_that_is_shown_to_be_right_is_right(name: str, batch: int) -> None:
    module = changed(**SHOWN[name])
    assert_right(module, captured_attention(module, batch=batch), batch)


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_is_no_attention_is_refused(name: str) -> None:
    methods, reason = REFUSED[name]
    step = captured_attention(changed(**methods))
    with pytest.raises(UnavailableError, match=reason):
        to_teacher_forcing(step.graph, 4, step.constants)


# ---- graphs that somebody tampered with


def rewritten(graph: Graph, number: int, **attributes: Any) -> Graph:
    nodes = [
        replace(node, attributes={**node.attributes, **attributes}) if node.number == number else node
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(nodes))


def counted_places() -> Captured:
    """A step whose graph counts the place of the token from the cache, as transformers does."""
    return captured_attention(changed(embedded=lambda self, i, p, past: self.tokens(i) + self.places(i * 0 + past)))
