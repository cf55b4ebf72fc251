"""Why a step graph does not reproduce the loop, and what the author of the loop can change.

Each cause has its mark. Gradients that differ by one factor are clipped or scaled. A loss that equals the one under
autocast comes from autocast. If gradients are equal and weights are not, the difference arises in or after the
optimizer step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.state import restore_tensors
from tallystick.frameworks.torch.wrappers import is_compiled
from tallystick.recorders.boundary import sheltered, unsaid
from tallystick.recorders.self_check import SelfCheck, TakenStep, inputs_of
from tallystick.recorders.step_graph import StepGraph, parts_of
from tallystick.tolerances.loss import LossBand, quantise

PARALLEL: Final = 1e-4
"""The largest distance, relative to the norm, at which gradients count as equal up to one factor."""
HALVES: Final = (torch.bfloat16, torch.float16)
UNKNOWN: Final = "something in the loop differs between steps, and nothing that is known here explains it"
CLIPPED_OTHERWISE: Final = (
    "gradients are scaled by another factor than in the captured step; clip in every step, to the same norm"
)
OF_BUFFER: Final = (
    "a forward pass outside of the step writes into it (call model.eval() before a validation), or it is assigned "
    "anew, or changed after the forward pass (write into it in place, as with `copy_`, in every step before that pass)"
)
READ_BACK: Final = (
    "gradients or weights are changed by a number that is read back (`float()`, `.item()`, or a branch); keep it a "
    "tensor, as with torch.clamp or torch.where"
)
GIVE_BATCH: Final = "give batch=(inputs, targets), all that the loss reads, and what changes as a tensor"


@dataclass(frozen=True)
class GraphMismatch:
    """A graph, a step that it does not reproduce, and `where`: the first of loss, norm or state that differs."""

    graph: StepGraph
    device: str
    step: TakenStep
    where: str
    loss_decimals: int
    model: torch.nn.Module

    def cause(self, check: SelfCheck, replayed: Mapping[str, torch.Tensor]) -> str:
        """One line that names the likely cause and its remedy."""
        symptom = f"step {self.step.index}: the captured step gives another {self.where} than the loop"
        causes: list[str] = []
        with sheltered(unsaid):  # if the search for a cause fails, the general one is given
            causes.extend(self._causes(check, replayed))
        return f"{symptom}: {causes[0] if causes else UNKNOWN}"

    def _causes(self, check: SelfCheck, replayed: Mapping[str, torch.Tensor]) -> Iterator[str]:
        if self.where == "gradient_norm":
            yield "the norm that was given is not that of the gradient before clipping; leave `gradient_norm=` out"
        again = check.replay(self.graph, self.step)
        if any(not torch.equal(replayed[name], value) for name, value in again.items() if not value.isnan().any()):
            yield "kernels here give other bits each time; use torch.use_deterministic_algorithms(True)"
        if (count := _processes()) > 1:
            yield f"{count} processes average their gradients, and a graph holds the step of one; train in one"
        if is_compiled(self.model):
            yield "torch.compile rounds otherwise; record the loop uncompiled"
        if self.where == "loss" and self.graph.fixed is not None:
            yield self._other_than_watched(self.graph.fixed)
        elif self.where == "loss":
            yield from self._autocast()
        else:
            yield from self._gradients()

    def _other_than_watched(self, fixed: tuple[str, ...]) -> str:
        if self.step.index == 1:
            return (
                "the loss that was recorded is not the one of backward(); give that, or the mean of its micro-batches"
            )
        what = f"{fixed[0]} that is not in batch=" if fixed else "a number in the loss that changes, or a branch"
        return f"its first step was watched, and this one differs by {what}; {GIVE_BATCH}"

    def _autocast(self) -> Iterator[str]:
        if self._has_loss_of(torch.float32):
            yield "a number in `loss=` has changed since the graph was captured; give such numbers as tensors in batch="
        for dtype in HALVES:
            if self._has_loss_of(dtype):
                name = str(dtype).removeprefix("torch.")
                yield f"the loop runs under autocast in {name}; put `with torch.autocast(...)` inside `loss=`"

    def _has_loss_of(self, dtype: torch.dtype) -> bool:
        band = LossBand(self.loss_decimals)
        return band.compare(quantise(self.step.loss, band.decimals), self._eager_loss(dtype)).agrees

    def _eager_loss(self, dtype: torch.dtype) -> float:
        model, losses = copy.deepcopy(self.graph.model), []
        live: dict[str, torch.Tensor] = {f"weights.{name}": value for name, value in model.named_parameters()}
        live |= {f"buffers.{name}": value for name, value in model.named_buffers()}
        restore_tensors(live, self.step.before)
        devices = [torch.cuda.current_device()] if self.device == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.autocast(self.device, dtype, enabled=dtype in HALVES):
            for part in parts_of(self.step.given, self.graph.accumulation):
                losses.append(self.graph.loss(model, part).detach().float())
        stacked = torch.stack(losses)
        return float(stacked.mean() if self.graph.reduction == "mean" else stacked.sum())

    def _gradients(self) -> Iterator[str]:
        if self.graph.edits.reads_back:
            yield READ_BACK
        ours, theirs = self._graph_gradients(), self.step.gradients
        if ours.keys() != theirs.keys():
            return
        if all(torch.equal(ours[name], theirs[name]) for name in ours):
            yield (
                OF_BUFFER
                if self.where.startswith("buffers.")
                else (
                    "its gradients are the same: the optimizer's kernel rounds otherwise, or weights are changed "
                    "after it and not in place (`weight.data = …`, NumPy); write into them in place, as with `copy_`"
                )
            )
            return
        ratio = _ratio(ours, theirs)
        if ratio is None:
            yield (
                "gradients are changed between backward() and optimizer.step(), or left from before "
                "(optimizer.zero_grad()), or a loss of several parts is summed"
            )
        elif abs(ratio - 1) <= PARALLEL:
            yield "the loop's kernels round otherwise (compiled, or another memory format)"
        elif ratio < 1 or self.graph.clip_norm is not None:
            yield CLIPPED_OTHERWISE
        else:
            yield (
                f"the loop's gradients are {ratio:.4g} times those of the recorded loss; multiply the loss by a tensor "
                "of batch=, and record the product"
            )

    def _graph_gradients(self) -> dict[str, torch.Tensor]:
        program = TorchEngine(self.device).compile(self.graph.captured.graph)
        results = program(inputs_of(self.graph, self.device, self.step))
        return {name: results[f"gradients.{name}"] for name in self.graph.trained}


def _processes() -> int:
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_distributed else 1


def _ratio(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float | None:
    """The factor r with theirs ≈ r · ours over all gradients, by least squares; None if no factor fits."""
    a = torch.cat([ours[name].double().flatten() for name in sorted(ours)])
    b = torch.cat([theirs[name].double().flatten() for name in sorted(ours)])
    ratio = float(a @ b / (a @ a))
    return ratio if ratio > 0 and float((b - ratio * a).norm()) <= PARALLEL * float(b.norm()) else None
