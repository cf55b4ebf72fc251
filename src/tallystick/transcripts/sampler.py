"""How the next token is chosen from logits: settings and seed, everything that a choice depends on besides the logits.

The choice itself is defined in `operators/tally/`, and specified in `spec/sampler.md`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tallystick.documents.document import Count, Document

Temperature = Annotated[float, Field(ge=0.0, le=1e3, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=1e-2, le=1e2, allow_inf_nan=False)]


class Sampler(Document):
    """Repetition penalty, then temperature, then top-k, top-p and min-p, then one draw keyed by (seed, position).

    Temperature 0 takes the largest logit and draws nothing; `top_k` 0 keeps every token; `top_p` 1 and `min_p` 0 keep
    all that is left, `top_p` 0 the most probable token alone. The position is the token's place in the answer, from 0.
    The form is `unknown` where somebody else drew, such as a server behind a proxy: the settings were passed on, and
    how the seed was used is not stated.
    """

    form: Literal["gumbel", "cdf", "unknown"] = "gumbel"
    temperature: Temperature = 1.0
    top_k: Count = 0
    top_p: Share = 1.0
    min_p: Share = 0.0
    repetition_penalty: Penalty = 1.0
    seed: Count = 0

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0.0

    @property
    def is_canonical(self) -> bool:
        """Whether the logits determine the token."""
        return self.is_greedy or self.form != "unknown"
