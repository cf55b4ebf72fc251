"""Operators: each one defined once, and read as types, batches, values or error bounds."""

from tallystick.operators.algebra import Algebra
from tallystick.operators.batches import Batched, Batches, Mixes
from tallystick.operators.operator import Attribute, Exactness, Family, Operator, Parameter
from tallystick.operators.registry import OPERATORS, operator
from tallystick.operators.separation import Separated, alone, separated
from tallystick.operators.types import Types

__all__ = [
    "OPERATORS",
    "Algebra",
    "Attribute",
    "Batched",
    "Batches",
    "Exactness",
    "Family",
    "Mixes",
    "Operator",
    "Parameter",
    "Separated",
    "Types",
    "alone",
    "operator",
    "separated",
]
