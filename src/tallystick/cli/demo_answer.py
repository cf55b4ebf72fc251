"""The second half of `tally demo`: serve an answer with a receipt, verify it, then serve it from a quantised model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.answers.report import ReceiptReport
    from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
    from tallystick.transcripts.receipt import SignedReceipt

PROMPT = "The with statement is used "
TOKENS = 48
BITS = 4


def exported_model(run: Path, out: Path) -> TorchLanguageModel:
    """The model that the run trained, in a directory to serve from."""
    from tallystick.frameworks.torch.generation.language_models import load_language_model
    from tallystick.recorders.export import export_model
    from tallystick.store.run import RunDirectory

    export_model(RunDirectory(run), out)
    return load_language_model(out)


def quantised(promised: TorchLanguageModel) -> TorchLanguageModel:
    """What a cheating provider runs: the promised model with weights in few bits, under the promised card."""
    from tallystick.attacks.serving.weights import integer_weights

    return replace(promised, model=integer_weights(promised, BITS))


def served_answer(language_model: TorchLanguageModel, out: Path) -> SignedReceipt:
    """One sampled answer and its receipt, under a key made for it; the receipt is kept in the folder `out`."""
    from tallystick.attestation.signing import SigningKey
    from tallystick.recorders.generation import AnswerRequest, generate_plain
    from tallystick.recorders.receipts import ReceiptIssuer, RecordSettings
    from tallystick.store.receipts import ReceiptLog
    from tallystick.tolerances.fingerprints.standard import standard_fingerprints
    from tallystick.transcripts.sampler import Sampler

    card = language_model.card
    settings = RecordSettings(standard_fingerprints(card.layers, card.dtype))
    with ReceiptIssuer(language_model, SigningKey.generate(), settings) as issuer:
        asked = AnswerRequest(sampler=Sampler(temperature=0.8, seed=7))
        answer = generate_plain(language_model, [language_model.encode_text(PROMPT)], TOKENS, [asked], issuer)[0]
    assert answer.issued is not None
    with ReceiptLog(out / "receipts.jsonl") as log:
        log.append(answer.issued.signed)
    return answer.issued.signed


def verified(signed: SignedReceipt, promised: TorchLanguageModel) -> ReceiptReport:
    """What a customer finds who holds the promised model and asked with a seed of its own."""
    from tallystick.answers.policy import ReceiptPolicy
    from tallystick.answers.sampler import SamplerRule
    from tallystick.answers.verify import verify_receipt

    return verify_receipt(signed, promised, ReceiptPolicy(sampler=SamplerRule(seed="customer")))
