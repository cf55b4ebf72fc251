"""What one verifier asks of receipts; nothing in a receipt can change it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tallystick.attestation import PublicKey
from tallystick.audits.policy import read_settings
from tallystick.audits.receipts.fingerprints import FingerprintRule
from tallystick.audits.receipts.sampler import SamplerRule
from tallystick.transcripts.door import DigestText, Document, Positive
from tallystick.transcripts.model_card import Label
from tallystick.transcripts.receipt import Fingerprint, Layers, Receipt

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Size = Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
Dtype = Literal["F32", "BF16", "F16"]


class FingerprintDemand(Document):
    """Fingerprints that a receipt has to carry, at least: method, layers, numbers a block, bytes a token.

    Without `required`, a receipt that lacks them is checked without; with it, such a receipt stays inconclusive.
    """

    method: Literal["projection", "toploc"] = "projection"
    layers: Layers | None = None
    width_min: Positive = 1
    bytes_min: Size = 0.0
    required: bool = True

    def is_met(self, receipt: Receipt) -> bool:
        """Whether one of the receipt's fingerprints is enough."""
        return any(self._is_enough(each) for each in receipt.fingerprints)

    def _is_enough(self, fingerprint: Fingerprint) -> bool:
        return (
            fingerprint.method == self.method
            and set(self.layers or ()) <= set(fingerprint.layers)
            and fingerprint.width >= self.width_min
            and len(fingerprint.raw) >= self.bytes_min * fingerprint.tokens
        )

    def __str__(self) -> str:
        layers = "" if self.layers is None else f" of layers {', '.join(map(str, self.layers))}"
        return f"{self.method}{layers}, {self.width_min} numbers and {self.bytes_min:g} bytes a token at least"


class ReceiptPolicy(Document):
    """Whom to trust, what has to be shown and how much work is done for one verifier.

    `keys` are the providers' keys that are trusted, and `unknown_key` what any other key leads to; without keys, nobody
    in particular has to have signed. `model` is the promised model root; by default that of the model given. `dtypes`
    and `quantizations` say in which precision the promised model may be; `kv_caches` which cache an engine may state.
    `seed` says whether the randomness has to be the customer's, `layer` how far a layer's output may lie from a replay
    of that layer, relative to its norm, `complete` whether a stream has to hold every number. `audit_sample` is the
    share of a stream that is computed; `sampler.alpha` is the chance at which an honest provider is accused over all.
    """

    keys: tuple[PublicKey, ...] = ()
    unknown_key: Literal["rejected", "inconclusive"] = "inconclusive"
    model: DigestText | None = None
    dtypes: tuple[Dtype, ...] = ("F32", "BF16", "F16")
    quantizations: tuple[Label, ...] = ()
    kv_caches: tuple[Label, ...] = ("native",)
    nonce: Literal["required", "optional"] = "optional"
    seed: Literal["customer", "any"] = "any"
    demands: tuple[FingerprintDemand, ...] = ()
    sampler: SamplerRule = SamplerRule()
    fingerprints: FingerprintRule = FingerprintRule()
    layer: Share | None = None
    complete: bool = False
    tokens_max: Positive = 1 << 16
    memory_max: Positive = 8 << 30
    audit_sample: Share = 1.0


def read_receipt_policy(path: Path) -> ReceiptPolicy:
    """Read a policy from TOML or JSON; raises `MalformedError` naming the field."""
    return read_settings(path, ReceiptPolicy)
