"""The errors with which libraries refuse a file from somebody else."""

from __future__ import annotations

from typing import Final

REFUSALS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors that classes of transformers raise for a configuration, in addition to their own error."""
