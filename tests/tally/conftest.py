"""The command beside the function, and what answers are judged with."""

from __future__ import annotations

from tests.audits.answers.conftest import answered, honest_answer, provider_key, short_policy
from tests.tally.cli.conftest import tally

__all__ = ["answered", "honest_answer", "provider_key", "short_policy", "tally"]
