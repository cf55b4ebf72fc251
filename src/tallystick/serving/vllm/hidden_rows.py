"""Hidden rows of requests in vLLM: the rows from which each token was chosen, layer by layer.

vLLM computes the positions of all requests in one tensor [positions, width], and logits from the last position of each
request. Blocks return their output in two parts that must be added. Forward hooks see nothing inside a compiled or
captured graph, so all layers except the last need `enforce_eager`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import torch
from torch import nn

from tallystick.errors import MalformedError, UnavailableError
from tallystick.serving.vllm.interface import query_starts

HELD_MAX: Final = 4096
"""The most requests whose rows are held; the oldest are dropped first."""


class HiddenRows:
    """Watches a model of vLLM (`model_runner.model`), and keeps the rows of each request until they are taken.

    Every pass gives one row per request, from its last position. A prompt that is fed in several passes gives extra
    rows first, from which no token is chosen. So an answer of n tokens has the last n rows. Raises `UnavailableError`
    if the model has no `model.layers` and `model.norm`, `MalformedError` for a layer that does not exist.
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
        """Add the rows of a pass: `final` is the argument of `compute_logits`, one row for each of `requests`."""
        rows_of_pass = self._inner | ({self._final: final} if self._final in self.layers else {})
        for place, request in enumerate(requests):
            held = self._rows.setdefault(request, {layer: [] for layer in self.layers})
            for layer, rows in rows_of_pass.items():
                held[layer].append(rows[place].clone())
        self._inner = {}
        while len(self._rows) > HELD_MAX:
            del self._rows[next(iter(self._rows))]

    def take(self, request: str, tokens: int) -> Mapping[int, torch.Tensor]:
        """The rows [tokens, width] by layer of a finished request; raises `UnavailableError` if some are missing.

        vLLM may append a suffix to the id under which a request was submitted.
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
    """Methods for `LLM.collective_rpc` (`worker_extension_cls`); the worker provides `model_runner`."""

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
