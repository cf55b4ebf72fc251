"""The policy of one verifier for receipts; nothing in a receipt can change it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.answers.distance_limits import FingerprintRule
from tallystick.answers.sampler import SamplerRule
from tallystick.attestation.points import PublicKey
from tallystick.documents.document import DigestText, Document, Positive
from tallystick.transcripts.model_card import Label
from tallystick.transcripts.receipt import Fingerprint, Layers, Receipt

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Size = Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
Dtype = Literal["F32", "BF16", "F16"]


class FingerprintDemand(Document):
    """Fingerprints that a receipt has to carry, at least: method, layers, tokens and numbers a block, bytes a token.

    `final` is the layer behind everything else, the final norm. Without `required`, a receipt that lacks them is
    checked without; with it, such a receipt stays inconclusive.
    """

    method: Literal["projection", "toploc"] = "projection"
    layers: Layers | None = None
    final: bool = False
    block_max: Positive | None = None
    width_min: Positive = 1
    bytes_min: Size = 0.0
    required: bool = True

    def is_met(self, receipt: Receipt, final: int) -> bool:
        """Whether one of the receipt's fingerprints is enough, of a model whose final norm is layer `final`."""
        wanted = {*(self.layers or ()), *([final] if self.final else [])}
        return any(self._is_enough(each, wanted) for each in receipt.fingerprints)

    def _is_enough(self, fingerprint: Fingerprint, wanted: set[int]) -> bool:
        return (
            fingerprint.method == self.method
            and wanted <= set(fingerprint.layers)
            and (self.block_max is None or fingerprint.block <= self.block_max)
            and fingerprint.width >= self.width_min
            and len(fingerprint.raw) >= self.bytes_min * fingerprint.tokens
        )

    def __str__(self) -> str:
        places = [f"layer {each}" for each in self.layers or ()] + (["the final norm"] if self.final else [])
        layers = f" of {', '.join(places)}" if places else ""
        block = "" if self.block_max is None else f" for {self.block_max} tokens at most"
        return f"{self.method}{layers}, {self.width_min} numbers{block} and {self.bytes_min:g} bytes a token at least"


STANDARD_DEMANDS: Final = (FingerprintDemand(final=True, block_max=32, bytes_min=0.25),)
"""What is asked where a policy names no demands: half of what is made by default, or any other that sees as much.

Only the final norm lies behind every layer; a long block leaves no median to judge, and TOPLOC is blind to signs.
"""


class ReceiptPolicy(Document):
    """Whom to trust, what has to be shown and how much work is done for one verifier.

    `keys` are the providers' keys that are trusted, and `unknown_key` what any other key leads to; without keys, nobody
    in particular has to have signed. `model` is the promised model root; by default that of the model given. `dtypes`
    and `quantizations` say in which precision the promised model may be; `kv_caches` which cache an engine may state.
    `demands` are the fingerprints that have to be there: none if empty, and if absent, `STANDARD_DEMANDS` wherever
    fingerprints are judged. `seed` says whether the randomness has to be the customer's, `layer` how far a layer's
    output may lie from a replay of that layer, relative to its norm, `complete` whether a stream has to hold every
    number. `audit_sample` is the share of a stream that is computed; `sampler.alpha` is the chance at which an honest
    provider is accused over all.

    What one receipt may take is bounded before it is computed: tokens, bytes, and operations of about a nanosecond each
    besides the pass (`work`).
    """

    keys: tuple[PublicKey, ...] = ()
    unknown_key: Literal["rejected", "inconclusive"] = "inconclusive"
    model: DigestText | None = None
    dtypes: tuple[Dtype, ...] = ("F32", "BF16", "F16")
    quantizations: tuple[Label, ...] = ()
    kv_caches: tuple[Label, ...] = ("native",)
    nonce: Literal["required", "optional"] = "optional"
    seed: Literal["customer", "any"] = "any"
    demands: tuple[FingerprintDemand, ...] | None = None
    sampler: SamplerRule = SamplerRule()
    fingerprints: FingerprintRule = FingerprintRule()
    layer: Share | None = None
    complete: bool = False
    tokens_max: Positive = 1 << 16
    memory_max: Positive = 8 << 30
    work_max: Positive = 1 << 40
    audit_sample: Share = 1.0


def read_receipt_policy(path: Path) -> ReceiptPolicy:
    """Read a policy from TOML or JSON; raises `MalformedError` naming the field."""
    from tallystick.documents.settings import read_settings

    return read_settings(path, ReceiptPolicy)
