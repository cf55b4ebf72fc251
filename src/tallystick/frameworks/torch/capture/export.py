"""Exports models with `torch.export`, and turns its failures into one-line errors."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from typing import Any, Final

import torch
from torch import nn
from torch.fx import config
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tallystick.errors import TallyError, UnavailableError

DYNAMIC_ROPE: Final = (
    "the program cannot be captured: with rope_type='dynamic' the frequencies of positions follow from the length of a "
    "call, by a branch on values"
)
CACHE: Final = "the model returns a cache of keys and values; call it with use_cache=False"
REFUSALS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors that tracing raises; its own errors are `RuntimeError`s."""
NO_STACK_TRACES: Final = "do_not_emit_stack_traces"
"""A setting of `torch.fx.config`; versions of PyTorch that do not know it go on as before."""


def exported_program(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    """The program of `model` for these arguments, not decomposed.

    Raises `UnavailableError` that names the operator or the control flow that depends on data.
    """
    try:
        with tracing_errors(), torch.no_grad(), redirect_stderr(io.StringIO()):
            return torch.export.export(model, args, dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False)
    except UnavailableError as error:
        if isinstance(error.__cause__, GuardOnDataDependentSymNode):
            from tallystick.frameworks.torch.capture.grouped_experts import check_no_loop

            check_no_loop(model)
            _check_rope(model)
        raise


@contextmanager
def tracing_errors() -> Iterator[None]:
    """Turn errors of tracing into an `UnavailableError` of one line, and hide its warnings.

    No node keeps the lines of source that it comes from: nothing reads them, and finding them takes time.
    """
    try:
        with warnings.catch_warnings(), _no_stack_traces():
            warnings.simplefilter("ignore")
            yield
    except TallyError:
        raise
    except REFUSALS as error:
        raise UnavailableError(f"the program cannot be captured: {_reason(error)}") from error


@contextmanager
def _no_stack_traces() -> Iterator[None]:
    held = getattr(config, NO_STACK_TRACES, False)
    setattr(config, NO_STACK_TRACES, True)
    try:
        yield
    finally:
        setattr(config, NO_STACK_TRACES, held)


def _check_rope(model: nn.Module) -> None:
    """Raise `UnavailableError` if a model computes the frequencies of its positions from the length of a call."""
    if any(getattr(module, "rope_type", None) == "dynamic" for module in model.modules()):
        raise UnavailableError(DYNAMIC_ROPE)


def _reason(error: BaseException) -> str:
    if "Cache'>" in str(error) and "in output" in str(error):
        return CACHE
    if isinstance(error, GuardOnDataDependentSymNode):
        return "its control flow is data-dependent: a branch or a size in it follows from values"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
