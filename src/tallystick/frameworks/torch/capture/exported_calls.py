"""The calls of a model inside a loss: each call is exported first, and replayed during tracing.

A loss may call the model several times, or with computed values. So it is run twice with a stand-in for the model. The
first stand-in exports the model for the arguments of each call. The second runs the exported programs on traced
tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.func import functional_call

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.export import exported_program
from tallystick.frameworks.torch.capture.mask_decisions import MaskDecisions
from tallystick.frameworks.torch.capture.step import Batch, TrainingStep
from tallystick.frameworks.torch.capture.trail import LOSS, Trail

OTHER_MASK: Final = (
    "the model leaves its attention mask out where every token counts, and this mask is not in the batch; give it in "
    "batch=, or take attn_implementation='eager'"
)


@dataclass(frozen=True)
class ExportedCalls:
    """The calls of a model, and whether masks of the batch decided how one of them computes."""

    calls: Sequence[nn.Module]
    reads_masks: bool


def exported_calls(step: TrainingStep, examples: Batch, trail: Trail) -> ExportedCalls:
    """The model, exported once for each call that the objective makes; running one tells `trail` its modules.

    Raises `UnavailableError` if a mask that is none of the batch decides what is computed.
    """
    exporting = _Exporting(step.model, trail)
    given = {name: value.clone() for name, value in examples.items()}
    with torch.random.fork_rng(devices=[]), torch.no_grad(), step.precision():
        step.objective(exporting, given)
    for asked in exporting.asked:
        if not any(torch.equal(asked.to(value.dtype), value) for value in given.values()):
            raise UnavailableError(OTHER_MASK)
    return ExportedCalls(exporting.calls, bool(exporting.asked))


def tensors_of(model: Any) -> Mapping[str, torch.Tensor]:
    """The parameters and buffers of a model by name; of a stand-in for one, those that it runs on."""
    return model.tensors if isinstance(model, _Called) else live_of(model)


def enter_module(model: Any, path: str) -> None:
    """Tell the trail of a stand-in that `path` runs from now on; a model itself has none."""
    if isinstance(model, _Called):
        model.trail.enter(path or LOSS)


def live_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a model by name; a tied one appears once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


class _Called:
    """A stand-in for the model; attributes are those of the model, and `tensors` what it runs on."""

    def __init__(self, model: nn.Module, tensors: Mapping[str, torch.Tensor], trail: Trail) -> None:
        self._model, self.tensors, self.trail = model, tensors, trail

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the model, because losses of libraries ask what kind of model they have."""
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Exporting(_Called):
    """Exports the model for the arguments of each call, and runs it on copies of its buffers."""

    def __init__(self, model: nn.Module, trail: Trail) -> None:
        copies = {name: value.clone() for name, value in model.named_buffers()}
        super().__init__(model, live_of(model) | copies, trail)
        self.calls: list[nn.Module] = []
        self.asked: list[torch.Tensor] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        held = {name: value.clone() for name, value in self._model.named_buffers()}
        decisions = MaskDecisions(kwargs)
        with decisions.noted():
            result = functional_call(self._model, held, args, kwargs)
        self.asked += decisions.asked
        with decisions.repeated():
            call = exported_program(self._model, args, kwargs).module()
        self.trail.mark_call(call)
        self.calls.append(call)
        return result


class Replaying(_Called):
    """Runs the exported programs on `tensors`, given by their names in the model."""

    def __init__(
        self, model: nn.Module, calls: Iterator[nn.Module], tensors: Mapping[str, torch.Tensor], trail: Trail
    ) -> None:
        super().__init__(model, tensors, trail)
        self._calls = calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the next exported program on these arguments."""
        module = next(self._calls)
        held = dict(_all_names(module, self._model, self.tensors))
        result = functional_call(module, held, args, kwargs, tie_weights=False)
        self.trail.enter(LOSS)
        return result


def _all_names(
    module: nn.Module, model: nn.Module, tensors: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of the exported module under each of its names: tied weights have several."""
    first = {id(value): name for name, value in (*model.named_parameters(), *model.named_buffers())}
    live = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, value in live:
        canonical = first.get(id(value), name)
        if canonical in tensors:
            yield name, tensors[canonical]
