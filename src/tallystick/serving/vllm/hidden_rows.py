"""Hidden rows of requests in vLLM: what the tokens of each request were chosen from, layer by layer.

vLLM passes the positions of all requests in one tensor [positions, width], and computes logits from the last position
of each. Blocks return their output in two parts, to be added. Forward hooks see nothing inside a compiled or captured
graph: layers but the last need `enforce_eager`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import torch
from torch import nn

from tallystick.errors import MalformedError, UnavailableError
from tallystick.serving.vllm.interface import query_starts

HELD_MAX: Final = 4096
"""How many requests' rows are held; the oldest go first."""


class HiddenRows:
    """Watches a model of vLLM (`model_runner.model`), and keeps the rows of each request until they are taken.

    Every pass gives each request in it one row, from its last position. A prompt that is fed in several passes gives
    rows that nothing is chosen from, before those of the answer: the last n rows are those of an answer of n tokens.
    `UnavailableError` if the model is not built of `model.layers` and `model.norm`, `MalformedError` for another layer.
    """

    def __init__(self, model: Any, layers: Collection[int]) -> None:
        self.layers = tuple(sorted(set(layers)))
        self._inner: dict[int, torch.Tensor] = {}
        self._rows: dict[str, dict[int, list[torch.Tensor]]] = {}
        blocks, self._final = _blocks(model)
        if any(not 0 <= layer <= self._final for layer in self.layers):
            raise MalformedError(f"layers: not from 0 to {self._final}")
        for layer in self.layers:
            if layer < self._final:
                blocks[layer].register_forward_hook(self._hook(layer))

    def end_of_pass(self, requests: Iterable[str], final: torch.Tensor) -> None:
        """Take in the rows of a pass: `final` is what `compute_logits` is given, one row for each of `requests`."""
        found = self._inner | ({self._final: final} if self._final in self.layers else {})
        for place, request in enumerate(requests):
            held = self._rows.setdefault(request, {layer: [] for layer in self.layers})
            for layer, rows in found.items():
                held[layer].append(rows[place].clone())
        self._inner = {}
        while len(self._rows) > HELD_MAX:
            del self._rows[next(iter(self._rows))]

    def take(self, request: str, tokens: int) -> Mapping[int, torch.Tensor]:
        """The rows [tokens, width] by layer of a finished request; raises `UnavailableError` if they were not all seen.

        vLLM may append to the name under which a request was submitted.
        """
        names = [name for name in self._rows if name == request or name.startswith(f"{request}-")]
        if len(names) != 1:
            raise UnavailableError(f"{len(names)} requests named {request} were seen")
        held = self._rows.pop(names[0])
        if any(len(rows) < tokens for rows in held.values()):
            raise UnavailableError(f"request {request}: fewer than {tokens} rows were seen (enforce_eager?)")
        return {layer: torch.stack(rows[len(rows) - tokens :]) for layer, rows in held.items()}

    def _hook(self, layer: int) -> Any:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            states = output if isinstance(output, torch.Tensor) else output[0] + output[1]
            self._inner[layer] = states[query_starts()[1:].long() - 1]

        return keep


class TallyWorkerExtension:
    """Methods for `LLM.collective_rpc` (`worker_extension_cls`); `model_runner` is the worker's."""

    model_runner: Any

    def tally_watch(self, layers: Collection[int]) -> None:
        """Keep hidden rows of `layers` from now on."""
        model = self.model_runner.model
        rows = self._tally_rows = HiddenRows(model, layers)
        compute_logits = model.compute_logits

        def watched(hidden_states: torch.Tensor, *arguments: Any, **named: Any) -> Any:
            requests = self.model_runner.input_batch.req_ids
            if len(requests) == len(hidden_states):
                rows.end_of_pass(requests, hidden_states)
            return compute_logits(hidden_states, *arguments, **named)

        model.compute_logits = watched

    def tally_take(self, request: str, tokens: int) -> dict[int, torch.Tensor]:
        """The rows [tokens, width] by layer of a finished request, in host memory."""
        return {layer: rows.cpu() for layer, rows in self._tally_rows.take(request, tokens).items()}


def _blocks(model: Any) -> tuple[nn.ModuleList, int]:
    backbone = getattr(model, "model", None)
    blocks = getattr(backbone, "layers", None)
    if not isinstance(blocks, nn.ModuleList) or not hasattr(backbone, "norm"):
        raise UnavailableError(f"{type(model).__name__}: not built of model.layers and model.norm")
    return blocks, len(blocks)
