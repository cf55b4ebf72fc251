"""What the plugin reads from vLLM's two model runners, under one interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from tallystick.errors import UnavailableError
from tallystick.serving.vllm.logits_processor import CanonicalLogitsProcessor


@dataclass(frozen=True)
class Runner:
    """A worker's `model_runner` after its start: V2 has slots for requests (`req_states`), V1 has rows of a batch."""

    runner: Any

    @property
    def name(self) -> Literal["V1", "V2"]:
        """Which of the two it is."""
        return "V2" if hasattr(self.runner, "req_states") else "V1"

    @property
    def model(self) -> Any:
        """The model itself, without a wrapper for graphs of kernels."""
        return self.runner.get_model()

    @property
    def processor(self) -> CanonicalLogitsProcessor:
        """The canonical logits processor; raises `UnavailableError` if vLLM was started without it."""
        is_v2 = self.name == "V2"
        for each in self.runner.sampler.logits_processors if is_v2 else self.runner.input_batch.logitsprocs.all:
            if isinstance(each, CanonicalLogitsProcessor):
                return each
        raise UnavailableError(
            "start vLLM with --logits-processors tallystick.serving.vllm.logits_processor:CanonicalLogitsProcessor"
        )

    @property
    def attention(self) -> str:
        """The names of the attention backends, in the order of their groups."""
        names = [group.backend.get_name() for groups in self.runner.attn_groups for group in groups]
        return ", ".join(dict.fromkeys(names)) or "none"

    def request_in(self, slot: int) -> str:
        """The id of the request in a row of the V1 runner's batch, or in a slot of the V2 runner."""
        if self.name == "V2":
            return str(self.runner.req_states.index_to_req_id[slot])
        return str(self.runner.input_batch.req_ids[slot])

    def drop_generators(self, rows: Sequence[int]) -> None:
        """Free the V1 runner's generators of `rows`, in which one token is left to be drawn.

        They cost time, and on a CPU vLLM fails to turn them back after a part of a prompt. Tensor-parallel workers all
        do the same, so that they still draw the same tokens for other requests.
        """
        for row in rows if self.name == "V1" else ():
            self.runner.input_batch.generators.pop(row, None)

    def last_positions(self) -> torch.Tensor:
        """The last position of each request in the pass that runs: I64[rows], with more rows behind those in use."""
        is_v2 = self.name == "V2"
        starts = self.runner.input_buffers.query_start_loc if is_v2 else self.runner.query_start_loc.gpu
        ends: torch.Tensor = starts[1:].long() - 1
        return ends.clamp(min=0)


def blocks_of(model: Any) -> nn.ModuleList:
    """The blocks of a model of vLLM; raises `UnavailableError` unless it has `model.layers` and `model.norm`."""
    backbone = getattr(model, "model", None)
    blocks = getattr(backbone, "layers", None)
    if not isinstance(blocks, nn.ModuleList) or not hasattr(backbone, "norm"):
        raise UnavailableError(f"{type(model).__name__}: not built of model.layers and model.norm")
    return blocks


def visible_layers(model: Any, config: Any) -> tuple[int, ...]:
    """The layers whose rows can be kept under `config`, a `VllmConfig`: final norm and logits, and in eager mode all.

    Hooks on blocks are not called inside a compiled or captured graph. Final norm and logits are argument and result of
    `compute_logits`, which vLLM calls outside of it.
    """
    final = len(blocks_of(model))
    compilation = config.compilation_config
    is_eager = all(getattr(each, "name", "NONE") == "NONE" for each in (compilation.mode, compilation.cudagraph_mode))
    return (*(range(final) if is_eager else ()), final, final + 1)
