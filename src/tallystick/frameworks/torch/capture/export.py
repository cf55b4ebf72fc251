"""Exports models with `torch.export`, and turns its failures into one-line errors."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from tallystick.errors import TallyError, UnavailableError

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


def exported_program(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    """The program of `model` for these arguments, not decomposed.

    Raises `UnavailableError` that names the operator or the control flow that depends on data.
    """
    with tracing_errors(), torch.no_grad():
        return torch.export.export(model, args, dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False)


@contextmanager
def tracing_errors() -> Iterator[None]:
    """Turn errors of tracing into an `UnavailableError` of one line, and hide its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except TallyError:
        raise
    except REFUSALS as error:
        raise UnavailableError(f"the program cannot be captured: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
