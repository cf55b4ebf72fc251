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
from typing import Final

import numpy as np

from tallystick.audits.answers.likelihoods import (
    ClaimedAnswer,
    Passes,
    TokenLikelihoods,
    cheaper_weights,
    other_samplers,
    token_likelihoods,
)
from tallystick.audits.answers.limits import BANDS, SamplerRule
from tallystick.core.errors import MalformedError
from tallystick.formats.receipt import Sampler
from tallystick.verdicts.evidence import Decision, Likelihoods, Trials, log_mean
from tallystick.verdicts.language_model import Rows, TokenMasks
from tallystick.verdicts.sampling.choice import adjusted_answer
from tallystick.verdicts.sampling.margin import margins
from tallystick.verdicts.tolerance import Finding

LOST: Final = (
    "the receipt does not say how its seed was used (form unknown), so nothing shows how tokens were drawn; name the "
    "form that was promised as `sampler.form` in the policy, or have probabilities judged alone with `sampler.seed` "
    "unknown"
)
SHOWN: Final = 8
CLOSE: Final = 0.1
"""Few tokens have a rival within so many logits; replacing one by it is not worth a line."""

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
        likelihoods = [each for each in (self.likelihoods, other.likelihoods) if each is not None]
        return SamplerEvidence(
            self.rule,
            self.tokens + other.tokens,
            self.trials + other.trials,
            self.others + other.others,
            self.cheaper + other.cheaper,
            functools.reduce(operator.add, likelihoods) if likelihoods else None,
            max(singles, key=lambda each: each.distance, default=None),
            (*self.ends, *other.ends),
            tuple(dict.fromkeys([*self.not_checked, *other.not_checked])),
            self.undecided,
        )

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings on the worst single token, on all tokens together, and on end tokens."""
        findings = [] if self.single is None else [self.single]
        if self.trials.tokens:
            findings.append(self._mismatches())
        if self.likelihoods is not None:
            findings.append(self.likelihoods.finding(self.rule.alpha))
        return (*(replace(each, advisory=bool(self.undecided)) for each in findings), *self.ends)

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
        lines = []
        for ratios, what in ((self.others, "the stated sampler"), (self.cheaper, "the promised weights")):
            missing = {name: ratios.tokens_missing(name, self.rule.beta) for name in ratios.named}
            like = ", ".join(f"{name} ({_more(count)})" for name, count in missing.items() if count != 0)
            lines += [f"{ratios.tokens} tokens cannot tell {what} from {like}"] if like else []
        return tuple(f"sampler: {line}" for line in (*lines, *self._unseen()))

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
        known = [each for each in (self.others, self.cheaper) if each.tokens]
        return log_mean([trials.log_against(), *(each.log_against() for each in known)])

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
    masks: TokenMasks | str | None = None,
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
        masks: those of the sampler's grammar, or why it is not known between which tokens the sampler chose.

    Raises `MalformedError` for a token outside the vocabulary.
    """
    assert logits.ndim == 2, "logits are rows over a vocabulary"
    assert len(logits) == len(answer), "every answer token has a row of logits"
    for what, tokens in (("prompt", prompt), ("answer", answer)):
        outside = next((place for place, token in enumerate(tokens) if not 0 <= token < logits.shape[1]), None)
        if outside is not None:
            raise MalformedError(f"{what}: token {outside} is outside the vocabulary of {logits.shape[1]}")
    lost, forced = masks if isinstance(masks, str) else "", 0
    if sampler.adjustments and not isinstance(masks, str):
        logits, forced = adjusted_answer(logits, sampler, prompt, answer, masks)
    if rule.band is None:
        rule = rule.model_copy(update={"band": BANDS["F32"]})
    if not lost and not sampler.is_canonical and rule.seed != "unknown":
        lost = LOST
    early = [place for place, token in enumerate(answer[:-1]) if token in end_tokens]
    where = [f"token {place}" for place in early[:1]]
    evidence = SamplerEvidence(
        rule,
        len(answer) - forced,
        ends=tuple(Finding(len(early), 0, "finish", each, "an end token, and the answer goes on") for each in where),
        not_checked=() if lost else _not_checked(sampler, rule),
        undecided=lost or undecided,
    )
    if not answer or lost:
        return evidence
    view = ClaimedAnswer(logits, prompt, answer, sampler, rule)
    is_seeded = sampler.is_greedy or (sampler.is_canonical and rule.seed != "unknown")
    if is_seeded:
        evidence = _with_margins(evidence, view, forced)
        if not sampler.is_greedy and sampler.form == "gumbel" and rule.rms is not None:  # drawn by scores
            evidence = replace(evidence, others=other_samplers(view, rule.rms))
    if not sampler.is_greedy and (not is_seeded or rule.likelihoods == "always"):
        likelihoods, impossible = token_likelihoods(view)
        evidence = replace(evidence, likelihoods=likelihoods, single=evidence.single or impossible)
    return evidence


def shows_weights(evidence: SamplerEvidence, sampler: Sampler) -> bool:
    """Whether tokens were drawn by scores under a known seed, with logits as the model gives them."""
    is_seeded = bool(evidence.trials.tokens) and (sampler.is_greedy or sampler.form == "gumbel")
    return is_seeded and not evidence.undecided and not sampler.adjustments and evidence.rule.rms is not None


def with_cheaper(
    evidence: SamplerEvidence, prompt: Sequence[int], answer: Sequence[int], sampler: Sampler, passes: Passes
) -> SamplerEvidence:
    """The evidence, extended by that for and against each cheaper form of the model, and against moved logits."""
    view = ClaimedAnswer(passes[0], prompt, answer, sampler, evidence.rule)
    return replace(evidence, cheaper=cheaper_weights(view, passes))


def combine(evidence: Iterable[SamplerEvidence]) -> SamplerEvidence:
    """The summed evidence of one or more answers of one provider, under the same rule."""
    return functools.reduce(operator.add, evidence)


def _with_margins(evidence: SamplerEvidence, view: ClaimedAnswer, forced: int) -> SamplerEvidence:
    places = range(len(view.answer))
    apart = margins(view.logits, view.answer, view.sampler, places, view.histories, view.rule.reach)
    beyond = np.flatnonzero(~(apart <= view.band))
    tested = max(len(apart) - forced, len(beyond))
    worst = int(np.argmax(apart))
    where = f"token {worst}" if apart[worst] else ""
    shown = ", ".join(f"{place} by {apart[place]:.3g}" for place in beyond[:SHOWN])
    detail = (
        f"margin in logits; tie band {view.band:g}, {len(beyond)} of {len(apart)} tokens beyond it"
        + (f": {shown}{', …' if len(beyond) > SHOWN else ''}" if len(beyond) else "")
        + f"; an honest token is refused with probability {view.rule.far_rate:g} at most"
    )
    single = Finding(float(apart[worst]), view.rule.far_margin, "sampler", where, detail)
    trials = Trials.of(apart, view.band, view.rule.rates)
    return replace(evidence, trials=replace(trials, tokens=tested), single=single)


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
