"""What checks of an answer are able to see, on models like those that limits were measured on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final, Literal

from pydantic import Field

from tallystick.audits.answers.limits import Dtype, FingerprintRule, Kind, MeasuredModels, SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.core.documents import Count, Document, Positive
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import FingerprintSettings, standard_fingerprints
from tallystick.formats.receipt import Fingerprint, Receipt

# Whether limits were measured on models like the promised one; otherwise distances decide nothing.
#
# The promised model is described by the verifier's own copy, never by a receipt.

MEASURE: Final = "measure them with `tally calibrate-answers MODEL --out TABLE` and give the table as --limits"
WAYS: Final[dict[Kind, str]] = {
    "projection": MEASURE,
    "states": MEASURE,
    "toploc": "name such models in the policy's `fingerprints.measured` if the published limits are to hold for them",
}


def unmeasured_limits(rule: FingerprintRule, kind: Kind, card: ModelCard) -> str:
    """Why limits on distances do not hold for the model, and what to do; empty if they hold."""
    return _reason(rule.measured_for(kind), card, "no limits were", WAYS[kind])


def other_form(dtype: str, card: ModelCard) -> str:
    """Why limits do not hold for states kept in `dtype`; empty for the model's own dtype and for F32."""
    if dtype in ("F32", card.dtype):
        return ""
    return f"the states are kept in {dtype}, which rounds those of a model in {card.dtype}: keep them as they are"


def unmeasured_tokens(rule: SamplerRule, card: ModelCard) -> str:
    """Why no calibration of tokens holds for the model, and what to do; empty if one does, or if a band is stated."""
    if rule.band is not None:
        return ""
    return _reason(
        rule.token_limits, card, "no tie band was", f"{MEASURE}, or state one as `sampler.band` in the policy"
    )


def unmeasured_rounding(card: ModelCard) -> str:
    """Why a pass in F32 decides nothing: how far honest stacks round was measured for no model like this."""
    return f"no scale was measured for {card.layers} layers of width {card.width} in {card.dtype}: {MEASURE}"


def _reason(measured: Sequence[MeasuredModels], card: ModelCard, what: str, way: str) -> str:
    if any(each.covers(card) for each in measured):
        return ""
    promised = f"{card.layers} layers of width {card.width} in {card.dtype}"
    alike = [f"{each.layers} layers of width {each.width}" for each in measured if each.dtype == card.dtype]
    tried = f"up to {' or '.join(dict.fromkeys(alike))}" if alike else "nothing in that precision"
    return f"{what} measured for {promised} (measured: {tried}): {way}"


# What checks of an answer are able to see: by cheat, how many answers of a measured model were rejected for it.
#
# "Nothing speaks against it" says only as much as the checks would have seen. The shipped table has what was measured
# under the default policy; for another model, policy or form of fingerprint nothing is known, and the report says so.

Subject = Literal["model", "precision", "prompt", "sampler"]
SUBJECTS: Final[tuple[Subject, ...]] = ("model", "precision", "prompt", "sampler")


class CheatPower(Document):
    """Of `of` answers of `tokens` tokens with this cheat, `seen` were rejected.

    With `pooled`, `of` is a number of pools of so many answers, and each was judged as one. With `wide`, a second pass
    in F32 told rounding from other changes (`audits.answers.fingerprints`). With `opened`, of so many of these answers
    one layer was opened and run again (`audits.answers.states`).
    """

    subject: Subject
    cheat: str = Field(min_length=1, max_length=100)
    tokens: Positive
    seen: Count
    of: Positive
    pooled: Positive = 1
    wide: bool = False
    opened: Count = 0

    def __str__(self) -> str:
        return f"{self.cheat} {self.seen} of {self.of}"


class ModelPower(Document):
    """What was measured on one model: it holds for models of this precision, depth and width."""

    model: str
    dtype: Dtype
    layers: Positive
    width: Positive
    cheats: tuple[CheatPower, ...]

    def is_of(self, card: ModelCard) -> bool:
        """Whether the model of this card is of the measured kind."""
        return (self.dtype, self.layers, self.width) == (card.dtype, card.layers, card.width)


class PowerTable(Document):
    """Everything that was measured, and where."""

    version: Literal[1] = 1
    machine: str
    models: tuple[ModelPower, ...]


@cache
def shipped_power() -> PowerTable:
    """The table that comes with the package."""
    data = resources.files("tallystick.audits.answers").joinpath("power.json").read_bytes()
    return PowerTable.from_bytes(data.strip(), "power.json")


def power_at(
    card: ModelCard, tokens: int, answers: int = 1, wide: bool = False, opened: int = 0
) -> tuple[CheatPower, ...]:
    """For each measured cheat, the power at the largest measured size that `tokens` in so many answers reach.

    What was measured without a second pass holds with it too, but not the other way round.
    """
    known: dict[str, CheatPower] = {}
    measured = (each for one in shipped_power().models if one.is_of(card) for each in one.cheats)
    for each in sorted(measured, key=lambda each: (each.wide, each.opened > 0, each.pooled, each.tokens)):
        fits = each.pooled <= answers and each.pooled * each.tokens <= tokens
        if fits and each.wide <= wide and each.opened <= opened:
            known[each.cheat] = each
    return tuple(known.values())


def why_unmeasured(card: ModelCard, receipt: Receipt, policy: ReceiptPolicy, rung: int) -> str:
    """Why the measured power says nothing about this judgement; empty if it does."""
    usual = ReceiptPolicy()
    if not any(one.is_of(card) for one in shipped_power().models):
        return f"not measured for a model of {card.layers} layers of width {card.width} in {card.dtype}"
    if rung < 2:
        return "not measured for tokens without fingerprints"
    fingerprints = policy.fingerprints.model_copy(update={"wide": usual.fingerprints.wide})
    if (policy.sampler, fingerprints) != (usual.sampler, usual.fingerprints):
        return "not measured under limits other than the shipped ones"
    standard = standard_fingerprints(card.layers, card.dtype)
    if [*map(_form, receipt.fingerprints)] != [*map(_form, standard)]:
        return "not measured for fingerprints other than the standard ones"
    if receipt.sampler.form != "gumbel" and not receipt.sampler.is_greedy:
        return "not measured for tokens that are not drawn by the canonical form"
    return ""


def power_lines(fitting: Iterable[str], power: Sequence[CheatPower], reason: str) -> Iterator[str]:
    """One line for each subject that fits: which cheats would have been seen, and how often; or why nobody knows."""
    subjects = [each for each in SUBJECTS if each in fitting]
    if not subjects:
        return
    if reason or not power:
        known, them = reason or "not measured for an answer as short as this", "it" if len(subjects) == 1 else "them"
        yield f"{', '.join(subjects)}: nothing speaks against {them}; what would is {known}"
        return
    by_subject: Mapping[Subject, list[CheatPower]] = {
        subject: [each for each in power if each.subject == subject] for subject in subjects
    }
    for subject, cheats in by_subject.items():
        sizes = sorted({(each.pooled, each.tokens, each.opened) for each in cheats})
        alike = [(size, [each for each in cheats if (each.pooled, each.tokens, each.opened) == size]) for size in sizes]
        lines = "; ".join(f"{_answers(*size)} rejected for {', '.join(map(str, of_size))}" for size, of_size in alike)
        yield f"{subject}: nothing speaks against it; {lines or 'what would is not measured'}"


def _answers(pooled: int, tokens: int, opened: int) -> str:
    which = f"answers of {tokens} tokens" if pooled == 1 else f"pools of {pooled} answers of {tokens} tokens"
    layer = f" with a layer opened{f' in {opened}' if pooled > 1 else ''}" if opened else ""
    return f"of {which}{layer},"


def _form(stated: Fingerprint | FingerprintSettings) -> tuple[object, ...]:
    return stated.method, stated.layers, stated.block, stated.width, stated.bits, stated.seed, stated.grid
