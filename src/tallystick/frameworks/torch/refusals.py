"""How libraries refuse what a stranger's file asks of them."""

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
"""How the classes of transformers refuse a configuration, besides their own error."""
