"""Watches a model of vLLM while it runs, for the rows from which the tokens of each pass are chosen.

vLLM computes the positions of all requests in one tensor [positions, width], and logits from the last position of each
request. Blocks return their output in two parts that must be added. The layer behind the final norm is the logits, at
the entries of the vocabulary that the seed of the fingerprints draws.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from tallystick.frameworks.torch.generation.fingerprints import logit_rows
from tallystick.serving.vllm.batches import LogitsRow
from tallystick.serving.vllm.hidden_rows import HiddenRows, Rows
from tallystick.serving.vllm.runners import Runner, blocks_of


class ModelWatch:
    """Puts the rows of every pass into `rows`, for the requests that ask for canonical sampling.

    `rows` is None in workers that compute the same rows as the first, and keep none.

    A pass computes blocks, final norm and logits; then the logits processor says whose rows they are. Logits that are
    computed for other reasons (probabilities of a prompt's tokens) come later, and are forgotten with the next pass.
    """

    def __init__(self, runner: Runner, layers: Collection[int], seed: str, rows: HiddenRows | None) -> None:
        self.layers, self.rows, self._seed = tuple(sorted(set(layers))), rows, seed
        self._runner, self._seen, model = runner, dict[int, torch.Tensor](), runner.model
        blocks = blocks_of(model)
        self._final = len(blocks)
        inner = [layer for layer in self.layers if layer < self._final]
        self._handles = [blocks[layer].register_forward_hook(self._hook(layer)) for layer in inner]
        self._model, self._compute_logits = model, model.compute_logits
        model.compute_logits = self._watched
        runner.processor.on_pass = self._end_of_pass

    def close(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._model.compute_logits = self._compute_logits
        self._runner.processor.on_pass = None

    def _hook(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            parts = (output,) if isinstance(output, torch.Tensor) else output[:2]
            places = self._runner.last_positions().clamp(max=len(parts[0]) - 1)
            self._seen[layer] = torch.stack([part[places] for part in parts]).sum(0)

        return keep

    def _watched(self, hidden_states: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        self._seen[self._final] = hidden_states
        logits = self._compute_logits(hidden_states, *arguments, **named)
        if self._final + 1 in self.layers:
            self._seen[self._final + 1] = logit_rows(logits, self._seed)  # a copy: vLLM goes on to change the logits
        return logits

    def _end_of_pass(self, asking: Sequence[LogitsRow]) -> None:
        self._runner.drop_generators([row.row for row in asking])
        if self.rows is not None:
            requests = [self._runner.request_in(row.slot) for row in asking]
            batch = len(self._seen[self._final])
            self.rows.add(requests, [row.position for row in asking], self._rows_of(asking), batch)
        self._seen.clear()

    def _rows_of(self, asking: Sequence[LogitsRow]) -> Rows:
        count, chosen = len(self._seen[self._final]), [row.row for row in asking]
        of_all = {layer: self._seen[layer][:count] for layer in self.layers}
        return of_all if len(chosen) == count else {layer: each[chosen] for layer, each in of_all.items()}
