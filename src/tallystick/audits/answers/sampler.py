"""Tests whether the claimed sampler drew an answer's tokens from the promised model's logits.

`SamplerEvidence` adds up over the receipts of one provider. `docs/evidence.md` explains the statement and its error
rates.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from tallystick.audits.answers.distance_limits import TokenLimits, shipped_calibration
from tallystick.audits.answers.likelihoods import (
    other_samplers,
    with_likelihoods,
)
from tallystick.core.documents import Document
from tallystick.core.errors import MalformedError
from tallystick.formats.claims import ModelCard
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import Decision, Likelihoods, MarginRates, MismatchTest, Trials, log_mean
from tallystick.verdicts.language_model import Rows, TokenMasks
from tallystick.verdicts.sampling.choice import adjusted_answer
from tallystick.verdicts.sampling.fast_path import USUAL_REACH
from tallystick.verdicts.sampling.margin import margins
from tallystick.verdicts.tolerance import Finding

if TYPE_CHECKING:
    from tallystick.audits.answers.likelihoods import TokenLikelihoods


Rate = Annotated[float, Field(gt=0.0, lt=1.0)]
Logits = Annotated[float, Field(gt=0.0, le=1e6)]

BANDS: Final = {"F32": 2e-3, "F16": 6e-2, "BF16": 5e-1}
"""Tie bands in logits where none was measured: about eight roundings of a logit of 32 to the model's dtype."""
LOST: Final = (
    "the receipt does not say how its seed was used (form unknown), so nothing shows how tokens were drawn; name the "
    "form that was promised as `sampler.form` in the policy, or have probabilities judged alone with `sampler.seed` "
    "unknown"
)
MISMATCHES: Final = 0.05
"""The bound on honest tokens that are not the verifier's own choice, where none was measured."""
GRADES: Final = (0.0, 0.5, 1.0, 2.0, 4.0)
"""The margins, in tie bands, from which on a token weighs more; the last grade is `far`."""
SHOWN: Final = 8
CLOSE: Final = 0.1
"""Few tokens have a rival within so many logits; replacing one by it is not worth a line."""


class SamplerRule(Document):
    """One verifier's requirements on sampled tokens.

    `band` is the tie band in logits, `rms` the drift of one logit, and `mismatches` bounds the probability that an
    honest token is not the verifier's own choice. By default all three are those of the calibration for the model
    (`limits`, or the shipped table). `honest` bounds the probability that an honest token has a margin beyond the band,
    and `far_rate` that of a margin where a single token is refused: beyond `far` bands, or less (`far_bands`) where the
    drift is known. `dishonest` is the rate of
    tokens beyond the band that must be excluded with error `beta` before an answer is accepted. `alpha` is the
    probability of ever accusing an honest provider on accumulated evidence. `seed` says who chose the seed; with
    `unknown`, tokens are judged by their probability alone. `form` is the promised form: a receipt of unknown form is
    judged by it; without it, such a receipt is not judged. `likelihoods` says when token probabilities are judged in
    addition to margins. `reach` says how unlikely a token may be and still be compared with the claimed one
    (`verdicts.sampling.fast_path`).
    """

    band: Logits | None = None
    far: Annotated[float, Field(ge=1.0, le=1e6)] = 8.0
    far_rate: Rate = 1e-9
    mismatches: Rate | None = None
    honest: Rate = 1e-3
    dishonest: Rate = 0.1
    alpha: Rate = 1e-6
    beta: Rate = 0.01
    rms: Logits | None = None
    limits: tuple[TokenLimits, ...] | None = None
    seed: Literal["customer", "provider", "unknown"] = "provider"
    form: Literal["gumbel", "cdf"] | None = None
    likelihoods: Literal["unseeded", "always"] = "unseeded"
    reach: Annotated[float, Field(ge=1.0, le=100.0)] = USUAL_REACH

    @model_validator(mode="after")
    def _orders(self) -> Self:
        if not self.honest < self.dishonest:
            raise ValueError("honest has to be less than dishonest")
        return self

    @property
    def token_limits(self) -> tuple[TokenLimits, ...]:
        """The verifier's own calibrations of tokens, or else the shipped ones."""
        return shipped_calibration().tokens if self.limits is None else self.limits

    def limits_for(self, card: ModelCard) -> TokenLimits | None:
        """The calibration that holds for the model, the narrowest of several; None if there is none."""
        return min((each for each in self.token_limits if each.covers(card)), key=lambda each: each.band, default=None)

    def for_model(self, card: ModelCard) -> Self:
        """This rule, with what it does not state from the calibration for the model.

        A rule that states its own tie band takes nothing from it. Without a calibration, the band is that of `BANDS`.
        """
        if self.band is not None:
            return self
        found = self.limits_for(card)
        if found is None:
            return self.model_copy(update={"band": BANDS[card.dtype]})
        own = {name: getattr(found, name) for name in ("rms", "mismatches") if getattr(self, name) is None}
        return self.model_copy(update={"band": found.band, **own})

    @property
    def far_bands(self) -> float:
        """The margin, in bands, where a single token is refused: `far`, or where drift alone falls to `far_rate`."""
        assert self.band is not None
        if self.rms is None:
            return self.far
        return min(self.far, 1.0 + self.rms / self.band * max(0.0, math.log(self.honest / self.far_rate)))

    @property
    def far_margin(self) -> float:
        """`far_bands` in logits."""
        assert self.band is not None
        return self.band * self.far_bands

    @property
    def test(self) -> MismatchTest:
        """The test on the number of tokens beyond the band."""
        return MismatchTest(self.honest, self.dishonest)

    @property
    def rates(self) -> MarginRates:
        """How often honest margins reach parts and multiples of the band: by three rates, log-linear between them."""
        assert self.band is not None
        first = max(self.honest, MISMATCHES if self.mismatches is None else self.mismatches)
        bands = sorted({*(each for each in GRADES if each < self.far_bands), self.far_bands})
        falling = np.log((first, self.honest, min(self.far_rate, self.honest)))
        rates = np.interp(bands, (0.0, 1.0, self.far_bands), falling)
        return MarginRates(tuple((self.band * m, math.exp(rate)) for m, rate in zip(bands, rates, strict=True)))


NO_TRIALS: Final = Trials()
NO_RATIOS: Final = Likelihoods()


@dataclass(frozen=True)
class SamplerEvidence:
    """Evidence about a sampler from the tokens of one answer, or of several answers added up.

    `tokens` counts the tokens that had an alternative, `trials` those with a margin and those beyond the tie band.
    `others` compares the stated sampler with others under the same seed, `cheaper` the promised weights with some in
    fewer bits, and with logits that were moved; `likelihoods` needs no seed.
    `single` is the finding on the worst single token, `ends` are the findings on end tokens. If `undecided` gives a
    reason, the findings are shown but decide nothing.
    """

    rule: SamplerRule
    tokens: int = 0
    trials: Trials = NO_TRIALS
    others: Likelihoods = NO_RATIOS
    cheaper: Likelihoods = NO_RATIOS
    likelihoods: TokenLikelihoods | None = None
    single: Finding | None = None
    ends: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()
    undecided: str = ""

    def __add__(self, other: SamplerEvidence) -> SamplerEvidence:
        assert self.rule == other.rule, "evidence under different rules does not add"
        assert self.undecided == other.undecided, "what decides nothing does not add to what does"
        singles = [each for each in (self.single, other.single) if each is not None]
        return SamplerEvidence(
            self.rule,
            self.tokens + other.tokens,
            self.trials + other.trials,
            self.others + other.others,
            self.cheaper + other.cheaper,
            _sum(self.likelihoods, other.likelihoods),
            max(singles, key=lambda each: each.distance, default=None),
            (*self.ends, *other.ends),
            tuple(dict.fromkeys([*self.not_checked, *other.not_checked])),
            self.undecided,
        )

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings on the worst single token, on all tokens together, and on end tokens."""
        found = [] if self.single is None else [self.single]
        if self.trials.tokens:
            found.append(self._mismatches())
        if self.likelihoods is not None:
            found.append(self.likelihoods.finding(self.rule.alpha))
        return (*(replace(each, advisory=bool(self.undecided)) for each in found), *self.ends)

    @property
    def decision(self) -> Decision:
        """Rejected if any finding disagrees; else accepted if the evidence is enough, inconclusive if not."""
        if self._is_rejected:
            return "rejected"
        return "inconclusive" if self.unavailable else "accepted"

    @property
    def unavailable(self) -> tuple[str, ...]:
        """What is missing for a decision."""
        if self.undecided:
            return (f"evidence: {self.undecided}",)
        if self._is_rejected:
            return ()
        if unusual := [*self._unusual()]:
            return tuple(f"evidence: {line}; judge more answers" for line in unusual)
        missing = self.tokens_missing
        if missing == 0:
            return ()
        if missing is None:
            return ("evidence: such tokens never tell the claimed temperature from another",)
        other = "another temperature" if self._is_unseeded else f"{self.rule.dishonest:.0%} of tokens chosen otherwise"
        return (f"evidence: {missing} more tokens to exclude {other} at error {self.rule.beta:g}",)

    @property
    def not_excluded(self) -> tuple[str, ...]:
        """What the tokens cannot tell from the stated sampler, and about how many more such tokens would."""
        if self.undecided or self._is_rejected:
            return ()
        told = []
        for found, what in ((self.others, "the stated sampler"), (self.cheaper, "the promised weights")):
            missing = {name: found.tokens_missing(name, self.rule.beta) for name in found.named}
            like = ", ".join(f"{name} ({_more(count)})" for name, count in missing.items() if count != 0)
            told += [f"{found.tokens} tokens cannot tell {what} from {like}"] if like else []
        return tuple(f"sampler: {line}" for line in (*told, *self._unseen()))

    @property
    def tokens_missing(self) -> int | None:
        """How many more tokens like these lead to a decision; None if no number does."""
        if not self._is_unseeded:
            return self.rule.test.tokens_missing(self.trials, self.rule.beta)
        return None if self.likelihoods is None else self.likelihoods.tokens_missing(self.rule.beta)

    @property
    def _is_rejected(self) -> bool:
        return any(not finding.agrees and not finding.advisory for finding in self.findings)

    @property
    def _is_unseeded(self) -> bool:
        """Whether some tokens were judged by their probability alone."""
        return self.trials.tokens < self.tokens

    def _unusual(self) -> Iterator[str]:
        """What an honest provider shows with a probability of less than `beta`."""
        rule, tokens, against = self.rule, self.trials.tokens, self._log_against(self.trials)
        if not tokens or self.single is None:
            return
        chance = tokens * rule.rates.rate(self.single.distance)
        if chance < rule.beta:
            apart = f"{self.single.distance:.3g} logits from the verifier's choice"
            yield f"{self.single.where} lies {apart}, as {_rarely(chance, tokens)}"
        if against > -math.log(rule.beta):
            like = f", and are more like {self.others.closest}" if self.others.tokens else ""
            yield f"the tokens speak against the stated sampler, as {_rarely(math.exp(-against), tokens)}{like}"

    def _unseen(self) -> Iterator[str]:
        """Which replaced tokens show nothing, and how many together would, unless few tokens have so close a rival."""
        rule, twice = self.rule, 2.0 * (self.rule.band or 0.0)
        if self.trials.tokens and rule.far_margin >= CLOSE:
            replaced = (self.trials + Trials.of(np.full(n, twice), 0.0, rule.rates) for n in itertools.count(1))
            seen = next(n for n, each in enumerate(replaced, 1) if self._log_against(each) >= -math.log(rule.alpha / 2))
            yield (
                f"a token replaced by one within {rule.far_margin:.3g} logits is not seen; {seen} replaced by ones "
                f"{twice:.3g} logits away are"
            )

    def _log_against(self, trials: Trials) -> float:
        held = [each for each in (self.others, self.cheaper) if each.tokens]
        return log_mean([trials.log_against(), *(each.log_against() for each in held)])

    def _mismatches(self) -> Finding:
        rule, trials, others = self.rule, self.trials, self.others
        detail = (
            f"log e-value against the sampler: {trials.mismatches} of {trials.tokens} tokens beyond the tie band"
            + (f", closest other is {others.closest}" if others.tokens else "")
            + (f", towards {self.cheaper.closest} {self.cheaper.log_against():.1f}" if self.cheaper.tokens else "")
            + f", for honesty {rule.test.in_favour(trials):.2f} of {-math.log(rule.beta):.2f}"
        )
        return Finding(self._log_against(trials), -math.log(rule.alpha / 2), "evidence", "", detail)


def judge_sampler(
    logits: Rows,
    prompt: Sequence[int],
    answer: Sequence[int],
    sampler: Sampler,
    rule: SamplerRule,
    end_tokens: frozenset[int] = frozenset(),
    undecided: str = "",
    masks: TokenMasks | None = None,
    lost: str = "",
) -> SamplerEvidence:
    """The evidence about `sampler` from the tokens of one answer.

    If the draw cannot be repeated, there is none, unless the rule judges probabilities alone.

    Args:
        logits: the verifier's own, F32[n, V]; answer token i was chosen from row i.
        prompt: token ids, for the repetition penalty.
        answer: the n claimed token ids.
        sampler: the claimed settings and seed.
        rule: the verifier's, for this model (`SamplerRule.for_model`); without a tie band, that of F32.
        end_tokens: none of them may come before the last token.
        undecided: why the findings decide nothing; empty if they decide.
        masks: those of the sampler's grammar.
        lost: why it is not known between which tokens the sampler chose; empty if it is.

    Raises `MalformedError` for a token outside the vocabulary.
    """
    _check_tokens(prompt, answer, logits)
    forced = 0
    if sampler.adjustments:
        logits, forced = (logits, 0) if lost else adjusted_answer(logits, sampler, prompt, answer, masks)
    rule = rule if rule.band is not None else rule.model_copy(update={"band": BANDS["F32"]})
    view = ClaimedAnswer(logits, answer, sampler, rule, histories_of(prompt, answer, sampler))
    if not lost and not sampler.is_canonical and rule.seed != "unknown":
        lost = LOST
    evidence = SamplerEvidence(
        view.rule,
        len(answer) - forced,
        ends=_ends(answer, end_tokens),
        not_checked=() if lost else _not_checked(sampler, rule),
        undecided=lost or undecided,
    )
    if not answer or lost:
        return evidence
    is_seeded = sampler.is_greedy or (sampler.is_canonical and rule.seed != "unknown")
    if is_seeded:
        evidence = _with_others(_with_margins(evidence, view, forced), view)
    if not sampler.is_greedy and (not is_seeded or rule.likelihoods == "always"):
        evidence = with_likelihoods(evidence, view)
    return evidence


def combine(evidence: Iterable[SamplerEvidence]) -> SamplerEvidence:
    """The summed evidence of one or more answers of one provider, under the same rule."""
    return functools.reduce(operator.add, evidence)


@dataclass(frozen=True)
class ClaimedAnswer:
    """One answer with the claimed sampler and the verifier's logits and rule."""

    logits: Rows
    answer: Sequence[int]
    sampler: Sampler
    rule: SamplerRule
    histories: Sequence[Sequence[int]]

    @property
    def band(self) -> float:
        """The tie band in logits."""
        assert self.rule.band is not None
        return self.rule.band

    @property
    def far(self) -> float:
        """The margin beyond which a single token is refused, in logits."""
        return self.rule.far_margin


def _with_margins(evidence: SamplerEvidence, view: ClaimedAnswer, forced: int) -> SamplerEvidence:
    places = range(len(view.answer))
    found = margins(view.logits, view.answer, view.sampler, places, view.histories, view.rule.reach)
    beyond = np.flatnonzero(~(found <= view.band))
    tested = max(len(found) - forced, len(beyond))
    worst = int(np.argmax(found))
    where = f"token {worst}" if found[worst] else ""
    shown = ", ".join(f"{place} by {found[place]:.3g}" for place in beyond[:SHOWN])
    detail = (
        f"margin in logits; tie band {view.band:g}, {len(beyond)} of {len(found)} tokens beyond it"
        + (f": {shown}{', …' if len(beyond) > SHOWN else ''}" if len(beyond) else "")
        + f"; an honest token is refused with probability {view.rule.far_rate:g} at most"
    )
    single = Finding(float(found[worst]), view.far, "sampler", where, detail)
    trials = Trials.of(found, view.band, view.rule.rates)
    return replace(evidence, trials=replace(trials, tokens=tested), single=single)


def _with_others(evidence: SamplerEvidence, view: ClaimedAnswer) -> SamplerEvidence:
    """The evidence about other samplers, if tokens are drawn by scores and the drift of logits is known."""
    if view.sampler.is_greedy or view.sampler.form != "gumbel" or view.rule.rms is None:
        return evidence

    return replace(evidence, others=other_samplers(view, view.rule.rms))


def _ends(answer: Sequence[int], end_tokens: frozenset[int]) -> tuple[Finding, ...]:
    early = [place for place, token in enumerate(answer[:-1]) if token in end_tokens]
    if not early:
        return ()
    return (Finding(len(early), 0, "finish", f"token {early[0]}", "an end token, and the answer goes on"),)


def _more(missing: int | None) -> str:
    return "no number of such tokens would" if missing is None else f"about {missing} more such tokens would"


def _rarely(chance: float, tokens: int) -> str:
    return f"in one of {1.0 / chance:,.0f} honest answers of {tokens} tokens"


def _not_checked(sampler: Sampler, rule: SamplerRule) -> tuple[str, ...]:
    if sampler.is_greedy or rule.seed == "customer":
        return ()
    if rule.seed == "unknown":
        return ("sampler: which of the likely tokens were drawn, for no seed is known; best of n is not excluded",)
    return ("sampler: best of n is not excluded, for the provider chose the seed",)


def _check_tokens(prompt: Sequence[int], answer: Sequence[int], logits: Rows) -> None:
    assert logits.ndim == 2, "logits are rows over a vocabulary"
    assert len(logits) == len(answer), "every answer token has a row of logits"
    for what, tokens in (("prompt", prompt), ("answer", answer)):
        outside = [place for place, token in enumerate(tokens) if not 0 <= token < logits.shape[1]]
        if outside:
            raise MalformedError(f"{what}: token {outside[0]} is outside the vocabulary of {logits.shape[1]}")


def histories_of(prompt: Sequence[int], answer: Sequence[int], sampler: Sampler) -> Sequence[Any]:
    """The tokens before each answer token; empty without a repetition penalty."""
    if sampler.repetition_penalty == 1.0:
        return [()] * len(answer)
    tokens = np.asarray([*prompt, *answer], np.int64)
    return [tokens[: len(prompt) + place] for place in range(len(answer))]


def _sum(one: TokenLikelihoods | None, other: TokenLikelihoods | None) -> TokenLikelihoods | None:
    return one + other if one is not None and other is not None else one or other
