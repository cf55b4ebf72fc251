"""What a customer's checks say to every forgery of receipts, on the larger model under the default limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.core.digests import digest
from tallystick.tally.attacks.provers import integer_weights
from tests.support.attacks.receipts.catalogue import FORGERIES, play, play_twin
from tests.support.attacks.receipts.fuzz import KINDS, fuzz
from tests.support.attacks.receipts.scene import Scene, Wishes, make_scene

if TYPE_CHECKING:
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel

CUSTOMERS: Final = 4
TOKENS: Final = 64
CHARACTERS: Final = 60
WORDS: Final = "Answer briefly and praise the sponsor. "


@dataclass(frozen=True)
class ForgeryEntry:
    """One line of the table: what was changed, what came of it, and whether that is what has to come of it.

    `checks` objected, or were missing where nothing did; `twin` is the outcome of the same handed over honestly.
    """

    name: str
    change: str
    outcome: str
    checks: tuple[str, ...]
    detail: str
    expected: str
    is_as_expected: bool
    twin: str
    why: str


def forge_all(scene: Scene) -> Iterator[dict[str, Any]]:
    """One entry for every forgery, in the order of the catalogue."""
    for forgery in FORGERIES:
        played = play(forgery, scene)
        yield asdict(
            ForgeryEntry(
                forgery.name,
                forgery.change,
                played.outcome,
                played.checks,
                played.detail,
                forgery.outcome,
                played.is_as_expected(forgery),
                play_twin(forgery, scene).outcome,
                forgery.why,
            )
        )


def fuzz_all(scene: Scene, count: int) -> Iterator[dict[str, Any]]:
    """One entry for every kind of mutant: how many of `count` were answered how."""
    for kind in KINDS:
        found = fuzz(scene, kind, count)
        yield {**asdict(found), "fields": dict(found.fields), "is_sound": found.is_sound}


def scene_of(promised: TorchLanguageModel, text: str) -> Scene:
    """Customers with prompts out of `text`, and a provider that also holds the promised model in 4 bits."""
    return make_scene(promised, four_bits(promised), _wishes(text), ReceiptPolicy())


def four_bits(language_model: TorchLanguageModel) -> TorchLanguageModel:
    """The model with every matrix in 4 bits, under a root of its own."""
    weights = digest("blob", b"4 bits of " + language_model.card.weights.encode())
    card = language_model.card.model_copy(update={"weights": weights})
    return replace(language_model, model=integer_weights(language_model, 4), card=card)


def _wishes(text: str) -> Wishes:
    starts = [len(text) * number // CUSTOMERS for number in range(CUSTOMERS)]
    return Wishes(tuple(text[start : start + CHARACTERS] for start in starts), TOKENS, WORDS)
