"""One decode step as a graph over tokens and a KV cache, at one length or as a template."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tallystick.core.canonical_json import Json, decode
from tallystick.core.digests import Digest
from tallystick.core.errors import TallyError, UnavailableError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.capture.export import tracing_errors
from tallystick.engines.torch.capture.model import CapturedModel, Sizes, capture, capture_template
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.generation.layer_tap import watching_layers
from tallystick.engines.torch.tensors import to_tensor
from tallystick.programs.admission import read_graph
from tallystick.programs.encoding import canonical, graph_bytes, graph_root
from tallystick.programs.execution import execute
from tallystick.programs.files import save_program
from tallystick.programs.graph import Graph
from tallystick.programs.templates import Template

# One decode step as a graph: it reads tokens and a KV cache, and returns logits and the extended cache.
#
# With an empty cache and a whole sequence, the same step is the verifier's pass over an answer.

Cache: TypeAlias = Mapping[str, Mapping[str, torch.Tensor]]
Document: TypeAlias = Mapping[str, Any]
WRAPPER: Final = "model."
"""The prefix of every weight's name, because `DecodeModule` holds the model as an attribute."""


class DecodeModule(nn.Module):
    """A causal language model of transformers as a pure function of tokens, positions and cache.

    The cache holds, by the number of the layer, a `key` and a `value` [B, heads, past, head width].
    """

    def __init__(self, model: nn.Module, layers: Collection[int] = ()) -> None:
        super().__init__()
        self.model: Any = model
        self.layers = tuple(layers)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, cache: Cache) -> dict[str, Any]:
        """Returns `logits` [B, length, V], the `cache` of past + length positions, and `hidden` states by layer."""
        held = _dynamic_cache(cache, self.model.config.num_hidden_layers)
        hidden: dict[str, torch.Tensor] = {}
        with watching_layers(self.model, self.layers, lambda layer, states: hidden.update({str(layer): states})):
            found = self.model(input_ids=input_ids, position_ids=position_ids, past_key_values=held, use_cache=True)
        longer = {str(i): {"key": layer.keys, "value": layer.values} for i, layer in enumerate(held.layers)}
        return {"logits": found.logits, "cache": longer, "hidden": hidden}


def capture_decode(
    model: nn.Module, cache: int, batch: int = 1, length: int = 1, layers: Collection[int] = ()
) -> CapturedModel:
    """The step that feeds `length` tokens to each of `batch` sequences with `cache` tokens in the cache.

    Inputs and outputs are those of `programs.decoding`, and `outputs.hidden.<layer>` [B, length, width] for
    `layers`, counted as in `hidden_states`. Weights have their names in the model.

    Raises:
        UsageError: an impossible size.
        UnavailableError: something cannot be captured; the line names the operator or the control flow.
    """
    if cache < 0 or batch < 1 or length < 1:
        raise UsageError("a step needs a sequence, a token and a cache of no places or more")
    return _named(capture(DecodeModule(model, layers), (), decode_example(model, cache, batch, length)))


def commit_decoding(model: nn.Module, path: Path) -> Digest:
    """Save the graph of one decode step at `path` and return its root; raises as `capture_decode`.

    The length of the cache differs from every other size of the model, so that it can be recognised in the graph.
    """
    captured = capture_decode(model, distinct_cache(model))
    save_program(path, captured.graph, captured.constants, captured.modules)
    return graph_root(captured.graph)


def distinct_cache(model: Any) -> int:
    """The first prime from 11 on such that neither it nor its successor is a size in the model's configuration."""
    config = model.config.to_dict()
    sizes = {value for value in config.values() if isinstance(value, int)}
    sizes |= {model.config.hidden_size // model.config.num_attention_heads}
    primes = (number for number in count(11, 2) if all(number % each for each in range(3, number, 2)))
    return next(prime for prime in primes if not sizes & {prime, prime + 1})


def capture_prefill(model: nn.Module, length: int, batch: int = 1, layers: Collection[int] = ()) -> CapturedModel:
    """The pass over `batch` whole sequences of `length` tokens: a step without cache inputs.

    Raises what `capture_decode` raises.
    """
    if batch < 1 or length < 1:
        raise UsageError("a pass needs a sequence and a token")
    given = decode_example(model, 0, batch, length)
    return _named(capture(DecodeModule(model, layers), (), {**given, "cache": {}}))


def decode_example(model: nn.Module, cache: int, batch: int, length: int) -> dict[str, Any]:
    """Example arguments of a step with these sizes; tokens and cache are zero."""
    weight = next(model.parameters())

    def empty(heads: int, width: int) -> torch.Tensor:
        return torch.zeros(batch, heads, cache, width, dtype=weight.dtype, device=weight.device)

    places = torch.arange(cache, cache + length, device=weight.device).expand(batch, length).contiguous()
    held = {str(i): {"key": empty(*key), "value": empty(*value)} for i, (key, value) in enumerate(_cache_sides(model))}
    return {"input_ids": torch.zeros_like(places), "position_ids": places, "cache": held}


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Weights and buffers by their names in a graph; they share memory with a model on the CPU."""
    weights = {f"weights.{name}": value for name, value in model.named_parameters()}
    buffers = {f"buffers.{name}": value for name, value in model.named_buffers()}
    return {name: to_tensor(value) for name, value in (weights | buffers).items()}


def renamed(document: Document) -> dict[str, Json]:
    """The document of a captured step's graph, with the names of the decode graph's interface."""
    names = {each["name"]: interface_name(each["name"]) for each in document["inputs"]}
    inputs = [{**each, "name": names[each["name"]]} for each in document["inputs"]]
    return {
        **document,
        "inputs": sorted(inputs, key=lambda each: each["name"]),
        "nodes": [{**node, "operands": _translated(node["operands"], names)} for node in document["nodes"]],
        "outputs": [{**each, "value": names.get(each["value"], each["value"])} for each in document["outputs"]],
    }


def interface_name(name: str) -> str:
    """The interface's name: `inputs.cache_0_key` becomes `inputs.cache.0.key`; weights lose the prefix `WRAPPER`."""
    stem, _, rest = name.partition(".")
    if stem == "inputs" and rest.startswith("cache_"):
        return f"{stem}.{rest.replace('_', '.')}"
    return f"{stem}.{rest.removeprefix(WRAPPER)}" if stem in {"weights", "buffers"} else name


def _named(captured: CapturedModel) -> CapturedModel:
    document = decode(graph_bytes(captured.graph), "graph")
    assert isinstance(document, dict)  # every graph is an object
    graph = read_graph(canonical(renamed(document)).encode())
    weights = {interface_name(name): tensor for name, tensor in captured.weights.items()}
    modules = {number: path.removeprefix(WRAPPER) for number, path in captured.modules.items()}
    return replace(captured, graph=graph, weights=dict(sorted(weights.items())), modules=modules)


def _translated(operands: Any, names: Mapping[str, str]) -> Any:
    if isinstance(operands, dict):
        return {name: _translated(operand, names) for name, operand in operands.items()}
    if isinstance(operands, list):
        return [_translated(each, names) for each in operands]
    return names.get(operands, operands)


def _dynamic_cache(cache: Cache, layers: int) -> Any:
    """A cache of transformers that holds these tensors without a copy; layers without tensors start empty."""
    from transformers.cache_utils import DynamicCache

    found = DynamicCache()
    found.layers = [_layer(cache.get(str(number))) for number in range(layers)]
    return found


def _layer(held: Mapping[str, torch.Tensor] | None) -> Any:
    from transformers.cache_utils import DynamicLayer

    class Layer(DynamicLayer):  # type: ignore[misc]
        """Stores the first keys and values directly; transformers would append them to an empty tensor."""

        is_initialized: bool

        def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.is_initialized:
                return super().update(key_states, value_states, *args, **kwargs)
            self.keys, self.values = key_states, value_states
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            return self.keys, self.values

    layer = Layer()
    if held is not None:
        layer.update(held["key"], held["value"])
    return layer


def _cache_sides(model: Any) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Heads and head width of keys and of values for every layer, from a pass over one token.

    Raises `UnavailableError` if a layer does not keep keys and values of the whole sequence.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    held = DynamicCache(config=model.config)
    strange = next((type(layer).__name__ for layer in held.layers if type(layer) is not DynamicLayer), None)
    if strange is not None:
        raise UnavailableError(f"a cache of {strange} cannot be captured: only keys and values of all places can")
    with tracing_errors(), torch.inference_mode():
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), past_key_values=held, use_cache=True)
    return [(tuple(layer.keys.shape[1::2]), tuple(layer.values.shape[1::2])) for layer in held.layers]


# A decode graph with named lengths: decoding binds length 1, verification the whole sequence with an empty cache.
#
# PyTorch captures other graphs for sizes 0 and 1, so the template is fitted to larger sizes. Its results for one token
# and for an empty cache are then compared with those of the model itself.

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
