"""Generates an answer again on this stack, as `tally generate` makes it, to be compared bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tallystick.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from tallystick.answers.exact import Replay
    from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
    from tallystick.recorders.receipts import RecordSettings
    from tallystick.transcripts.environment import Environment
    from tallystick.transcripts.receipt import EngineStatement, Receipt


@dataclass(frozen=True)
class PlainReplayer:
    """One answer at a time by the plain loop, with a cache, alone in its batch."""

    language_model: TorchLanguageModel

    @cached_property
    def environment(self) -> Environment:
        """This process's stack."""
        from tallystick.frameworks.torch.environment import describe_environment

        return describe_environment("cuda" if self.language_model.device.startswith("cuda") else "cpu")

    @cached_property
    def engine(self) -> EngineStatement:
        """This process's engine."""
        from tallystick.recorders.receipts import describe_engine

        return describe_engine(self.language_model)

    def replay(self, receipt: Receipt, prompt: tuple[int, ...]) -> Replay:
        """The answer with the receipt's sampler, as many tokens as it claims; raises `UnavailableError`."""
        from tallystick.answers.exact import Replay
        from tallystick.attestation.signing import SigningKey
        from tallystick.recorders.generation import AnswerRequest, generate_plain
        from tallystick.recorders.receipts import ReceiptIssuer

        asked = AnswerRequest(receipt.request.id, receipt.request.nonce, receipt.sampler)
        try:
            issuer = ReceiptIssuer(self.language_model, SigningKey.generate(), settings_of(receipt))
            [found] = generate_plain(self.language_model, [prompt], receipt.answer.tokens.count, [asked], issuer)
        except UsageError as error:
            raise UnavailableError(str(error)) from None
        assert found.issued is not None
        own = found.issued.signed.receipt
        return Replay(found.tokens, own.fingerprints, own.states)


def settings_of(receipt: Receipt) -> RecordSettings:
    """What has to be recorded so that a receipt of the same answer states the same."""
    from tallystick.recorders.receipts import RecordSettings
    from tallystick.workloads.fingerprints import settings_of as fingerprint_settings

    states = receipt.states
    fingerprints = tuple(map(fingerprint_settings, receipt.fingerprints))
    if states is None:
        return RecordSettings(fingerprints)
    return RecordSettings(fingerprints, tuple(states.layers), states.block, states.prompt)
