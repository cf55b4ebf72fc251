"""A trainer rebuilt from a recipe: the same code runs for the prover who trains and the verifier who replays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from tallystick.errors import MalformedError, UnavailableError
from tallystick.frameworks.torch.models import PARAMETERS_MAX, build_model, labels_of, logits_of
from tallystick.frameworks.torch.state import (
    check_names,
    generator_state,
    live_tensors,
    restore_generators,
    restore_tensors,
)
from tallystick.frameworks.torch.tensors import to_tensor
from tallystick.frameworks.torch.training.optimizers import build_optimizer
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.recipe import Recipe
from tallystick.workloads.names import POSITION
from tallystick.workloads.schedule import learning_rate

CRASHES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors of a model whose configuration can be built but does not run."""


@dataclass(frozen=True)
class Observation:
    """Values of one step: mean loss in nats, gradient norm before clipping, mean and RMS of the last logits."""

    loss: float
    gradient_norm: float
    learning_rate: float
    activation: tuple[float, float] | None


class Trainer:
    """Holds one model, its optimizer and its generators, and takes steps.

    Raises `UnavailableError` if the recipe asks for a device that is missing.
    """

    def __init__(
        self, recipe: Recipe, vocabulary: int, device: str | None = None, parameters_max: int = PARAMETERS_MAX
    ) -> None:
        self.recipe = recipe
        self.device = device or recipe.training.device
        if self.device == "cuda" and not torch.cuda.is_available():
            raise UnavailableError("the recipe trains on cuda, and there is no CUDA device here")
        torch.manual_seed(recipe.training.seed % 2**63)
        self.model = build_model(recipe, vocabulary, parameters_max).to(self.device).train()
        self.optimizer = build_optimizer(recipe, self.model)
        self.index = 0

    def weights(self) -> dict[str, torch.Tensor]:
        """The trainable tensors, live."""
        return {name: value for name, value in self._live().items() if name.startswith("weights.")}

    def state(self) -> dict[str, Tensor]:
        """The full state: weights, buffers, optimizer, generators, position. Shares memory with the live tensors."""
        state = {name: to_tensor(value) for name, value in self._live().items()}
        state |= generator_state(self.device)
        state[POSITION] = Tensor.of(np.asarray(self.index, np.int64))
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`; raises `MalformedError` if it is not a state of this recipe."""
        check_names(expected=self.state().keys(), found=state.keys())
        index = _position(state)
        restore_tensors(self._live(), state)
        restore_generators(state, self.device)
        self.index = index

    def step(self, micro_batches: Iterable[Mapping[str, np.ndarray]]) -> Observation:
        """One optimizer step over the mean gradient of the micro-batches."""
        rate = learning_rate(self.recipe, self.index + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        losses, activation = [], None
        for batch in micro_batches:
            loss, activation = self._accumulate(batch)
            losses.append(loss)
        norm = self._clip()
        self.optimizer.step()
        self.index += 1
        return Observation(float(torch.stack(losses).mean()), float(norm), rate, activation)

    def _accumulate(self, batch: Mapping[str, np.ndarray]) -> tuple[torch.Tensor, tuple[float, float] | None]:
        inputs = {name: torch.from_numpy(np.ascontiguousarray(value)).to(self.device) for name, value in batch.items()}
        with self._precision():
            logits = logits_of(self.model, inputs)
            loss = functional.cross_entropy(logits.float(), labels_of(inputs))
        (loss / self.recipe.training.accumulation).backward()  # type: ignore[no-untyped-call]
        activation = _moments(logits) if self.recipe.record.activation_checksum else None
        return loss.detach(), activation

    def _clip(self) -> torch.Tensor:
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        limit = self.recipe.optimizer.clip_norm
        if limit is not None:
            return torch.nn.utils.clip_grad_norm_(parameters, limit)
        return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

    def _precision(self) -> AbstractContextManager[object]:
        half = self.recipe.training.dtype == "bf16"
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=half)

    def _live(self) -> dict[str, torch.Tensor]:
        return live_tensors(self.model, self.optimizer)


def _position(state: Mapping[str, Tensor]) -> int:
    held = state[POSITION]
    if (held.dtype, held.shape) != ("I64", ()) or held.array() < 0:
        raise MalformedError(f"anchor: {POSITION} is no number of steps")
    return int(held.array())


@torch.no_grad()
def _moments(logits: torch.Tensor) -> tuple[float, float]:
    values = logits.double()
    return float(values.mean()), float(values.square().mean().sqrt())


def first_line(error: BaseException) -> str:
    """The type of an error and the first line of its message, at most 200 characters."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
