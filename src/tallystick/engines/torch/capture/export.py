"""Exports models with `torch.export`: attention masks, grouped experts, and the calls inside a loss."""

from __future__ import annotations

import io
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any, Final

import torch
from torch import nn
from torch.func import functional_call
from torch.fx import config

from tallystick.core.errors import TallyError, UnavailableError
from tallystick.engines.torch.capture.module_trail import LOSS, ModuleTrail
from tallystick.engines.torch.capture.step import Batch, TrainingStep

# Experts of transformers whose rows are multiplied in groups: the operator that stands in for the kernel in a trace.
#
# In an eager step, the kernel is `aten._grouped_mm`, and autograd calls it twice more. PyTorch traces it for BF16
# alone, so transformers puts an operator of its own in its place. Here that operator becomes `tally.grouped_mm`, which
# graphs hold under the name of the kernel.

EXPERTS_LOOP: Final = (
    "the program cannot be captured: which experts run, and on how many rows, depends on data; load the model with "
    "experts_implementation='grouped_mm' (or call model.set_experts_implementation('grouped_mm'))"
)


@torch.library.custom_op(
    "tally::grouped_mm", mutates_args=(), schema="(Tensor self, Tensor mat2, Tensor offs) -> Tensor"
)
def grouped_mm(self: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """The kernel of eager steps."""
    product: torch.Tensor = torch.ops.aten._grouped_mm.default(self, mat2, offs)
    return product


@grouped_mm.register_fake
def _fake(self: torch.Tensor, mat2: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    if mat2.dim() == 3:
        return self.new_empty((self.shape[0], mat2.shape[2]))
    return self.new_empty((offs.shape[0], self.shape[0], mat2.shape[1]))


def grouped_decompositions() -> dict[Any, Callable[..., Any]]:
    """The stand-ins of transformers by what an eager step runs; none where its experts are not loaded."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        return {}
    library = torch.ops.transformers
    return {library.grouped_mm_fallback.default: _forward, library.grouped_mm_fallback_backward.default: _backward}


def _forward(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return torch.ops.tally.grouped_mm(input, weight, offs)  # type: ignore[no-any-return]


def _backward(
    input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor, grad_output: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As autograd differentiates the kernel: the gradient of a transposed weight is a transposed product."""
    kernel = torch.ops.tally.grouped_mm
    of_input = kernel(grad_output, weight.transpose(-2, -1), offs)
    if weight.stride(-1) == 1:
        return of_input, kernel(input.transpose(-2, -1), grad_output, offs)
    return of_input, kernel(grad_output.transpose(-2, -1), input, offs).transpose(-2, -1)


# Exports models with `torch.export`, and turns its failures into one-line errors.

DYNAMIC_ROPE: Final = (
    "the program cannot be captured: with rope_type='dynamic' the frequencies of positions follow from the length of a "
    "call, by a branch on values"
)
CACHE: Final = "the model returns a cache of keys and values; call it with use_cache=False"
REFUSALS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""The errors that tracing raises; its own errors are `RuntimeError`s."""
NO_STACK_TRACES: Final = "do_not_emit_stack_traces"
"""A setting of `torch.fx.config`; versions of PyTorch that do not know it go on as before."""


def exported_program(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> torch.export.ExportedProgram:
    """The program of `model` for these arguments, not decomposed.

    Raises `UnavailableError` that names the operator or the control flow that depends on data.
    """
    try:
        with tracing_errors(), torch.no_grad(), redirect_stderr(io.StringIO()):
            return torch.export.export(model, args, dict(kwargs), strict=False)
    except UnavailableError as error:
        if _depends_on_data(error.__cause__):
            modules = [*model.modules()]
            configs = (getattr(module, "config", None) for module in modules)
            has_experts = any(type(module).__name__.endswith("Experts") for module in modules)
            if has_experts and any(getattr(each, "_experts_implementation", None) == "eager" for each in configs):
                raise UnavailableError(EXPERTS_LOOP) from None
            if any(getattr(module, "rope_type", None) == "dynamic" for module in modules):
                raise UnavailableError(DYNAMIC_ROPE) from None
        raise


@contextmanager
def tracing_errors() -> Iterator[None]:
    """Turn errors of tracing into an `UnavailableError` of one line, and hide its warnings.

    No node keeps the lines of source that it comes from: nothing reads them, and finding them takes time.
    """
    before = getattr(config, NO_STACK_TRACES, False)
    setattr(config, NO_STACK_TRACES, True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except TallyError:
        raise
    except REFUSALS as error:
        raise UnavailableError(f"the program cannot be captured: {_reason(error)}") from error
    finally:
        setattr(config, NO_STACK_TRACES, before)


def _depends_on_data(error: BaseException | None) -> bool:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # with sympy, for failures alone

    return isinstance(error, GuardOnDataDependentSymNode)


def _reason(error: BaseException) -> str:
    if "Cache'>" in str(error) and "in output" in str(error):
        return CACHE
    if _depends_on_data(error):
        return "its control flow is data-dependent: a branch or a size in it follows from values"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


# Whether a model of transformers leaves its attention mask out: decided in an eager call, repeated in the export.
#
# Where nothing is padded or packed, such a model asks attention to be causal and makes no mask, and fused attention
# then rounds otherwise. While a model is exported it cannot read values, and always makes the mask. The step of a batch
# whose mask or positions are decided otherwise is another program (`programs.step_names`). A decision about positions
# that are made of those of the batch is not repeated, because another batch may be decided otherwise.

MODULE: Final = "transformers.masking_utils"
PACKED: Final = "find_packed_sequence_indices"
LEFT_OUT: Final = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
"""Functions whose first argument says which tokens are padding; `None` where the batch does not say it."""

NOT_REPEATED: Final = False
"""Stands for a decision that is made anew: no function replaced here has it as a reason to make no mask."""


class MaskDecisions:
    """The decisions of one call of a model, in their order; `batch` are its arguments by name."""

    def __init__(self, batch: Mapping[str, Any]) -> None:
        self._positions: torch.Tensor | None = batch.get("position_ids")
        self._found: dict[str, deque[Any]] = {}
        self.masks: list[torch.Tensor] = []
        """The masks and positions about which something was decided."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is decided inside this context, in an eager call."""
        with _replaced(self._noting):
            yield

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Decide inside this context as before."""
        with _replaced(self._repeating):
            yield

    def _noting(self, name: str, decide: Callable[..., Any]) -> Callable[..., Any]:
        kept = self._found.setdefault(name, deque())

        def noting(*args: Any, **kwargs: Any) -> Any:
            decision = decide(*args, **kwargs)
            given = args[0] if args else kwargs.get("padding_mask")
            own = self._positions
            is_own = own is not None and isinstance(given, torch.Tensor) and torch.equal(given, own)
            kept.append(decision if name in LEFT_OUT or is_own or own is None else NOT_REPEATED)
            if isinstance(given, torch.Tensor) and (name in LEFT_OUT or is_own):
                self.masks.append(given)
            return decision

        return noting

    def _repeating(self, name: str, decide: Callable[..., Any]) -> Callable[..., Any]:
        kept = self._found.get(name, deque())

        def repeating(*args: Any, **kwargs: Any) -> Any:
            decision = kept.popleft() if kept else NOT_REPEATED
            holds = decision is None if name == PACKED else decision is True
            return decision if holds else decide(*args, **kwargs)

        return repeating


@contextmanager
def _replaced(by: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Put other functions in the place of those that decide; nothing where transformers is not loaded."""
    module = sys.modules.get(MODULE)
    before = {name: found for name in (PACKED, *LEFT_OUT) if (found := getattr(module, name, None)) is not None}
    for name, decide in before.items():
        setattr(module, name, by(name, decide))
    try:
        yield
    finally:
        for name, decide in before.items():
            setattr(module, name, decide)


# The calls of a model inside a loss: each call is exported first, and replayed during tracing.
#
# A loss may call the model several times, or with computed values. So it is run twice with a stand-in for the model.
# The first stand-in exports the model for the arguments of each call. The second runs the exported programs on traced
# tensors.

OTHER_MASK: Final = (
    "the model leaves its attention mask out where every token counts, and this mask is not in the batch; give it in "
    "batch=, or take attn_implementation='eager'"
)


def exported_calls(step: TrainingStep, examples: Batch, trail: ModuleTrail) -> tuple[Sequence[nn.Module], bool]:
    """The model, exported once for each call of the objective, and whether masks of the batch decided what it computes.

    Running an exported call tells `trail` its modules. Raises `UnavailableError` if a mask that is none of the batch
    decides what is computed.
    """
    exporting = _Exporting(step.model, trail)
    given = {name: value.clone() for name, value in examples.items()}
    with torch.random.fork_rng(devices=[]), torch.no_grad(), step.precision():
        step.objective(exporting, given)
    for mask in exporting.masks:
        if not any(torch.equal(mask.to(value.dtype), value) for value in given.values()):
            raise UnavailableError(OTHER_MASK)
    return exporting.calls, bool(exporting.masks)


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

    def __init__(self, model: nn.Module, tensors: Mapping[str, torch.Tensor], trail: ModuleTrail) -> None:
        self._model, self.tensors, self.trail = model, tensors, trail

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the model, because losses of libraries ask what kind of model they have."""
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Exporting(_Called):
    """Exports the model for the arguments of each call, and runs it on copies of its buffers."""

    def __init__(self, model: nn.Module, trail: ModuleTrail) -> None:
        copies = {name: value.clone() for name, value in model.named_buffers()}
        super().__init__(model, live_of(model) | copies, trail)
        self.calls: list[nn.Module] = []
        self.masks: list[torch.Tensor] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        buffers = {name: value.clone() for name, value in self._model.named_buffers()}
        decisions = MaskDecisions(kwargs)
        with decisions.noted():
            result = functional_call(self._model, buffers, args, kwargs)
        self.masks += decisions.masks
        with decisions.repeated():
            call = exported_program(self._model, args, kwargs).module()
        self.trail.mark_call(call)
        self.calls.append(call)
        return result


class Replaying(_Called):
    """Runs the exported programs on `tensors`, given by their names in the model."""

    def __init__(
        self, model: nn.Module, calls: Iterator[nn.Module], tensors: Mapping[str, torch.Tensor], trail: ModuleTrail
    ) -> None:
        super().__init__(model, tensors, trail)
        self._calls = calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the next exported program on these arguments."""
        module = next(self._calls)
        first = {id(value): name for name, value in (*self._model.named_parameters(), *self._model.named_buffers())}
        live = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
        # a tied weight has several names in the exported module, and one in the model
        named = {name: first.get(id(value), name) for name, value in live}
        tensors = {name: self.tensors[other] for name, other in named.items() if other in self.tensors}
        result = functional_call(module, tensors, args, kwargs, tie_weights=False)
        self.trail.enter(LOSS)
        return result
