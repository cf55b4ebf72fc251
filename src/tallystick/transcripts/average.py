"""How a training averages its weights beside the steps: what a spec states as `average` (`spec/average.md`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tallystick.documents.document import Document

Form = Literal["lerp", "sum", "difference"]


class AverageRule(Document):
    """An exponential moving average a of the weights w after each step, with `decay` d.

    `form` is the order of its arithmetic: "lerp" is `lerp(a, w, 1 − d)`, "sum" is `a · d + (1 − d) · w`, "difference"
    is `a − (1 − d) · (a − w)`. With `counts` the first average is w itself, and `position.averaged` counts them.
    """

    average: Literal["exponential"] = "exponential"
    decay: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    form: Form = "lerp"
    counts: bool = False
