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
    """The least fingerprints of a receipt: method, layers, tokens and numbers per block, bytes per token.

    `final` demands the final norm, `logits` the logits behind it. A receipt without such fingerprints stays
    inconclusive if they are `required`; otherwise it is checked without them.
    """

    method: Literal["projection", "toploc"] = "projection"
    layers: Layers | None = None
    final: bool = False
    logits: bool = False
    block_max: Positive | None = None
    width_min: Positive = 1
    bytes_min: Size = 0.0
    required: bool = True

    def is_met(self, receipt: Receipt, final: int) -> bool:
        """Whether one of the receipt's fingerprints is enough; `final` is the layer number of the final norm."""
        wanted = {*(self.layers or ()), *([final] if self.final else []), *([final + 1] if self.logits else [])}
        return any(self._is_enough(each, wanted) for each in receipt.fingerprints)

    def _is_enough(self, fingerprint: Fingerprint, wanted: set[int]) -> bool:
        return (
            fingerprint.method == self.method
            and wanted <= set(fingerprint.layers)
            and (self.block_max is None or fingerprint.block <= self.block_max)
            and fingerprint.width >= self.width_min
            and (not self.bytes_min or len(fingerprint.raw) >= self.bytes_min * fingerprint.tokens)
        )

    def __str__(self) -> str:
        places = [f"layer {each}" for each in self.layers or ()]
        places += ["the final norm"] * self.final + ["the logits"] * self.logits
        layers = f" of {', '.join(places)}" if places else ""
        block = "" if self.block_max is None else f" for {self.block_max} tokens at most"
        size = f" and {self.bytes_min:g} bytes a token" if self.bytes_min else ""
        return f"{self.method}{layers}, {self.width_min} numbers{block}{size} at least"

    @property
    def shows(self) -> str:
        """What no fingerprint shows where the demand is not met."""
        unseen = ["the blocks"] * self.final + ["the output matrix"] * self.logits
        return f", so nothing shows {' and '.join(unseen)}" if unseen else ""


STANDARD_DEMANDS: Final = (
    FingerprintDemand(final=True, block_max=32, width_min=4),
    FingerprintDemand(logits=True, block_max=32, width_min=4),
)
"""The demands of a policy that names none: half the numbers of the standard fingerprints.

Only the final norm comes after every block, and only the logits after the output matrix. Blocks must be short because a
median needs several of them. TOPLOC does not meet the demands: it is blind to signs.
"""


class ReceiptPolicy(Document):
    """Whom one verifier trusts, what a receipt must show, and how much work may be done.

    `keys` are the trusted keys of providers; `unknown_key` is the outcome for any other key. Without `keys`, any key
    may sign. `model` is the promised model root; by default that of the given model. `dtypes` and `quantizations` are
    the accepted precisions of the promised model, `kv_caches` the accepted caches. `demands` are the required
    fingerprints: none if empty; if absent, `STANDARD_DEMANDS` wherever fingerprints are judged. `seed` says whether the
    seed must be the customer's. `layer` limits the distance of a layer's output from its replay, relative to its norm.
    `replay` says whether other bits in an exact replay on an equal stack are an objection; by default only other tokens
    are. `complete` says whether a stream must hold every number of each journal, and `journals` how many journals of a
    key are accepted then. `audit_sample` is the share of a stream that is computed, and `open_sample` the share of it
    whose committed states a provider is asked to open, where its address is known: fingerprints can be made to fit by
    whoever knows their directions, states that were committed before cannot.
    `sampler.alpha` is the probability of ever accusing an honest provider.

    The cost of one receipt is bounded before it is computed: tokens, bytes, and operations of about a nanosecond each
    in addition to the pass (`work`).
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
    replay: Literal["tokens", "bits"] = "tokens"
    complete: bool = False
    journals: Positive = 1
    tokens_max: Positive = 1 << 16
    memory_max: Positive = 8 << 30
    work_max: Positive = 1 << 40
    audit_sample: Share = 1.0
    open_sample: Share = 0.5


def read_receipt_policy(path: Path) -> ReceiptPolicy:
    """Read a policy from TOML or JSON; raises `MalformedError` naming the field."""
    from tallystick.documents.settings import read_settings

    return read_settings(path, ReceiptPolicy)
