"""One decode step as a graph: it reads tokens and a KV cache, and returns logits and the extended cache.

With an empty cache and a whole sequence, the same step is the verifier's pass over an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from tallystick.commitments.digests import Digest
from tallystick.commitments.encoding import Json, decode
from tallystick.errors import UnavailableError, UsageError
from tallystick.frameworks.torch.capture.export import tracing_errors
from tallystick.frameworks.torch.capture.model import CapturedModel, capture
from tallystick.frameworks.torch.generation.hidden_states import watching_layers
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.graphs.admission import read_graph
from tallystick.graphs.document import canonical
from tallystick.graphs.encoding import graph_bytes
from tallystick.graphs.files import save_program
from tallystick.graphs.root import graph_root
from tallystick.tensors.tensor import Tensor

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

    Inputs and outputs are those of `graphs.decode_interface`, and `outputs.hidden.<layer>` [B, length, width] for
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
    return [(_sides(layer.keys), _sides(layer.values)) for layer in held.layers]


def _sides(states: torch.Tensor) -> tuple[int, int]:
    _, heads, _, width = states.shape
    return heads, width
