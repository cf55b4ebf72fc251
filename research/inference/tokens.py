"""How many tokens the test of the sampler takes to see each cheat, and how it treats honest answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from research.inference.models import Cast
from research.inference.observe import Observed, Work, observe
from tallystick.audits.answers.limits import SamplerRule
from tallystick.audits.answers.sampler import judge_sampler
from tallystick.verdicts.evidence import clopper_pearson
from tests.support.attacks.serving.catalogue import CHEATS, HONEST, Cheat

COUNTS: Final = (8, 16, 32, 64, 128, 256)
TEMPERATURE: Final = 0.8
SETTINGS: Final = {
    "seed known": (TEMPERATURE, SamplerRule(seed="customer")),
    "seed unknown": (TEMPERATURE, SamplerRule(seed="unknown")),
    "greedy": (0.0, SamplerRule(seed="customer")),
}


def decide_all(cast: Cast, work: Work) -> Iterator[dict[str, Any]]:
    """One entry for every way of serving, rule and number of tokens: how many answers were decided how."""
    for way in (*HONEST, *CHEATS):
        for setting, (temperature, rule) in SETTINGS.items():
            yield from _decided(cast, way, setting, temperature, rule, work)


def _decided(
    cast: Cast, way: Cheat, setting: str, temperature: float, rule: SamplerRule, work: Work
) -> Iterator[dict[str, Any]]:
    asked = rule.for_model(cast.promised.card)
    seen = {count: Counter[str]() for count in COUNTS if count <= work.tokens}
    for answer in observe(cast, way, temperature, work):
        for count, outcomes in seen.items():
            outcomes[_decision(answer, count, asked)] += 1
    for count, outcomes in seen.items():
        total = outcomes.total()
        low, high = clopper_pearson(outcomes["rejected"], total)
        yield {
            "way": way.name,
            "setting": setting,
            "tokens": count,
            "answers": total,
            "rejected": outcomes["rejected"],
            "accepted": outcomes["accepted"],
            "interval": [low, high],
        }


def _decision(seen: Observed, count: int, rule: SamplerRule) -> str:
    return judge_sampler(seen.logits[:count], seen.prompt, seen.answer[:count], seen.sampler, rule).decision
