"""A decode graph with named lengths: decoding binds length 1, verification the whole sequence with an empty cache.

PyTorch captures other graphs for sizes 0 and 1, so the template is fitted to larger sizes. Its results for one token
and for an empty cache are then compared with those of the model itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tallystick.errors import TallyError, UnavailableError, UsageError
from tallystick.frameworks.torch.capture.named_dimensions import Sizes, capture_template
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.generation.decoding import (
    DecodeModule,
    decode_example,
    interface_name,
    model_state,
    renamed,
)
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.graphs.execution import execute
from tallystick.graphs.graph import Graph
from tallystick.graphs.template import Template
from tallystick.tensors.tensor import Tensor

AXES: Final = {"input_ids": {1: "length"}, "position_ids": {1: "length"}}
CACHE_AXES: Final = {2: "past"}
SAMPLES: Final = 4
"""The number of positions and tokens in comparisons with the model, if the ranges allow that many."""
NEAR: Final = {torch.float32: 2.0**-12, torch.float64: 2.0**-30}
ROUGH: Final = 2.0**-4
"""Allowed differences relative to the largest element: other shapes use other kernels; more is another program."""


def capture_decode_template(
    model: nn.Module, ranges: Mapping[str, tuple[int, int]], batch: int = 1, layers: Collection[int] = ()
) -> Template:
    """The decode graphs of `model` for all sizes of `length`, the tokens fed, and `past`, the tokens in the cache.

    Raises:
        UsageError: a range is missing, or too small.
        UnavailableError: the model cannot be captured, or is another program at other sizes; the line names them.
    """
    if ranges.keys() != {"length", "past"}:
        raise UsageError("a decode template has ranges for length and past")
    example = _flat(decode_example(model, 2, batch, 2))
    dynamic = {name: AXES.get(name, CACHE_AXES) for name in example}
    found = capture_template(_FlatStep(model, layers), example, dynamic, ranges)
    template = Template(found.dimensions, renamed(found.document))
    for sizes in _edges(ranges):
        _check_edge(template, model, batch, layers, sizes)
    return template


def verification_binding(template: Template, length: int) -> Graph:
    """The pass over a whole sequence with an empty cache; raises `UsageError` for a length outside the range."""
    return template.bind(length=length, past=0)


class _FlatStep(DecodeModule):
    """A step whose cache comes as arguments `cache_<layer>_key` and `cache_<layer>_value`."""

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, **cache: torch.Tensor) -> dict[str, Any]:  # type: ignore[override]
        layers = range(len(cache) // 2)
        nested = {str(i): {part: cache[f"cache_{i}_{part}"] for part in ("key", "value")} for i in layers}
        return super().forward(input_ids, position_ids, nested)


def _flat(example: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    held = {f"cache_{i}_{part}": tensor for i, both in example["cache"].items() for part, tensor in both.items()}
    return {name: tensor for name, tensor in example.items() if name != "cache"} | held


def _edges(ranges: Mapping[str, tuple[int, int]]) -> Iterator[Sizes]:
    """Sizes to check: each special size (0 or 1) that is in range, with ordinary sizes for the other dimension."""
    sizes = {name: min(SAMPLES, largest) for name, (_, largest) in ranges.items()}
    exceptions = [("length", 1), ("past", 0), ("past", 1)]
    allowed = [(name, size) for name, size in exceptions if ranges[name][0] <= size]
    yield from (sizes | {name: size} for name, size in allowed)
    if len(allowed) == len(exceptions):
        yield {"length": 1, "past": 0}


def _check_edge(template: Template, model: nn.Module, batch: int, layers: Collection[int], sizes: Sizes) -> None:
    try:
        graph = template.bind(**sizes)
    except TallyError as error:
        raise UnavailableError(f"the model is another program at {dict(sizes)}: {error}") from None
    example = _drawn(decode_example(model, sizes["past"], batch, sizes["length"]), model)
    given = {interface_name(f"inputs.{name}"): to_tensor(value) for name, value in _flat(example).items()}
    found = execute(graph, {**model_state(model), **given}, TorchEngine())
    with torch.inference_mode():
        native = DecodeModule(model, layers)(**example)
    expected = {".".join(["outputs", *path]): value for path, value in _leaves(native)}
    for name, value in expected.items():
        _check_near(name, value, found[name], sizes)


def _drawn(example: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The example with random tokens and a random cache."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, example["input_ids"].shape, generator=draw)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=draw).to(tensor)

    return {**example, "input_ids": tokens.to(example["input_ids"]), "cache": pytree.tree_map(noise, example["cache"])}


def _leaves(value: Any) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield (), value
    else:
        yield from (((key, *path), leaf) for key, part in value.items() for path, leaf in _leaves(part))


def _check_near(name: str, native: torch.Tensor, found: Tensor, sizes: Sizes) -> None:
    expected, values = to_tensor(native).values(), found.values()
    same_shape = expected.shape == values.shape
    scale = float(abs(expected).max(initial=0.0))
    if not same_shape or float(abs(expected - values).max(initial=0.0)) > NEAR.get(native.dtype, ROUGH) * scale:
        raise UnavailableError(f"the model is another program at {dict(sizes)}: {name} is another")
