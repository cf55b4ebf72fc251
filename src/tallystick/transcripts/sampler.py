"""The settings and the seed that determine how the next token is chosen from logits.

The choice itself is implemented in `operators/tally/` and specified in `spec/sampler.md`.
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

    Temperature 0 takes the largest logit and draws nothing. `top_k` 0 keeps every token. `top_p` 1 and `min_p` 0 keep
    all remaining tokens, `top_p` 0 only the most probable one. The position is the index of the token in the answer,
    from 0. The form is `unknown` if another server drew the tokens, as behind a proxy: the settings were passed to it,
    but it does not state how it uses the seed.
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
        """Whether the token is the largest logit, without a draw."""
        return self.temperature == 0.0

    @property
    def is_canonical(self) -> bool:
        """Whether logits and settings determine the token."""
        return self.is_greedy or self.form != "unknown"
