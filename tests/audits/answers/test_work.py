"""What a receipt can make a verifier spend is known from its counts, and bounded by the policy before it is spent."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.audits.answers.layer import check_program
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.statements import check_sizes, memory, operations
from tallystick.core.errors import UnavailableError
from tallystick.engines.torch.generation.language_models import capture_layer

LARGE = {"vocabulary": 131_072, "layers": 32, "width": 4096}
LONG = 8192


@pytest.fixture(scope="module")
def large(language_model: Any) -> Any:
    """The card of a model of seven billion weights."""
    return language_model.card.model_copy(update=LARGE)


def receipt_of(answer: Any, tokens: int, prompt: int = 16, **changes: Any) -> Any:
    """A receipt of other counts, and with other fields."""
    receipt = answer.issued.signed.receipt
    update = {
        "answer": receipt.answer.model_copy(
            update={"tokens": receipt.answer.tokens.model_copy(update={"count": tokens})}
        ),
        "request": receipt.request.model_copy(
            update={"prompt": receipt.request.prompt.model_copy(update={"count": prompt})}
        ),
        "fingerprints": (),
        "states": None,
        **changes,
    }
    return receipt.model_copy(update=update)


def fingerprint_of(answer: Any, **changes: Any) -> Any:
    return answer.issued.signed.receipt.fingerprints[0].model_copy(update=changes)


@pytest.mark.parametrize("form", ["gumbel", "cdf", "unknown"])
def test_an_ordinary_answer_of_a_large_model_is_within_the_default(honest_answer: Any, large: Any, form: str) -> None:
    sampler = honest_answer.issued.signed.receipt.sampler.model_copy(
        update={"form": form, "top_p": 0.9, "repetition_penalty": 1.1}
    )
    usual = fingerprint_of(honest_answer, layers=(0, 16, 32), block=32, width=8, tokens=LONG)
    receipt = receipt_of(honest_answer, LONG, LONG, sampler=sampler, fingerprints=(usual,))
    check_sizes(receipt, large, ReceiptPolicy(), None, {0, 16, 32})


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"method": "projection", "width": 1024, "block": 1024}, "work_max"),
        ({"method": "toploc", "width": 1024, "block": 1}, "work_max"),
        ({"width": 1}, "memory_max"),
    ],
)
def test_fingerprints_that_cost_more_than_the_pass_are_refused_unread(
    honest_answer: Any, large: Any, changes: dict[str, Any], setting: str
) -> None:
    layers = tuple(range(33)) * (1 if setting == "memory_max" else 4)
    costly = fingerprint_of(honest_answer, layers=layers, tokens=4 * LONG, **changes)
    receipt = receipt_of(honest_answer, 1 if setting == "memory_max" else 2, 4 * LONG, fingerprints=(costly,))
    few = set(layers) if setting == "memory_max" else {0}
    with pytest.raises(UnavailableError, match=f"more than {setting} of"):
        check_sizes(receipt, large, ReceiptPolicy(), None, few)
    cheap = costly.model_copy(update={"layers": (0,), "width": 8, "block": 32})
    check_sizes(receipt.model_copy(update={"fingerprints": (cheap,)}), large, ReceiptPolicy(), None, {0})


def test_work_and_memory_grow_with_what_is_looked_at(honest_answer: Any, large: Any) -> None:
    one, two = receipt_of(honest_answer, 100), receipt_of(honest_answer, 200)
    assert operations(two, large) == 2 * operations(one, large)
    greedy = one.model_copy(update={"sampler": one.sampler.model_copy(update={"temperature": 0.0})})
    assert operations(greedy, large) < operations(one, large) / 10
    remembering = one.model_copy(update={"sampler": one.sampler.model_copy(update={"repetition_penalty": 1.1})})
    assert operations(remembering, large) > operations(one, large)
    assert memory(one, large, {0, 5}) - memory(one, large, {0}) == 4 * 116 * 4096


def test_a_layer_is_judged_only_within_the_policy(language_model: Any) -> None:
    graph = capture_layer(language_model, tuple(range(12)), 1).graph
    check_program(graph, ReceiptPolicy())
    for setting in ("memory_max", "work_max"):
        with pytest.raises(UnavailableError, match=setting):
            check_program(graph, ReceiptPolicy(**{setting: 1000}))
