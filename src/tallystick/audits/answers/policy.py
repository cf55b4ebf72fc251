"""The policy of one verifier for receipts, and the keys that it trusts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from tallystick.audits.answers.limits import FingerprintRule, SamplerRule
from tallystick.core.documents import DigestText, Document, Label, Positive, read_settings
from tallystick.core.errors import MalformedError, UsageError
from tallystick.formats.receipt import Fingerprint, Layers, Receipt
from tallystick.formats.signing import PublicKey

# The policy of one verifier for receipts; nothing in a receipt can change it.

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
    return read_settings(path, ReceiptPolicy)


# Keys that a verifier trusts, named beside its policy: as digits, or as files that hold them.

DIGITS: Final = re.compile("[0-9a-fA-F]{64}")
OTHERS_MAY_READ: Final = 0o077
FILE_BYTES_MAX: Final = 1 << 20


def trusting(policy: ReceiptPolicy, keys: Sequence[str | Path]) -> ReceiptPolicy:
    """The policy with these keys trusted too; any other key is rejected, unless the policy says what becomes of it.

    Each of `keys` is a public key of 64 hexadecimal digits, or a file of them, one a line.

    Raises:
        MalformedError: a file holds something else, or a key that nobody may trust.
        UsageError: a file holds a signing key, or is not there.
    """
    if not keys:
        return policy
    named = tuple(key for each in keys for key in _keys_in(each))
    unknown = policy.unknown_key if "unknown_key" in policy.model_fields_set else "rejected"
    return policy.model_copy(update={"keys": (*policy.keys, *named), "unknown_key": unknown})


def _keys_in(named: str | Path) -> Iterator[str]:
    if isinstance(named, str) and DIGITS.fullmatch(named):
        yield _checked(named, "trusted key")
        return
    path = Path(named)
    if not path.is_file():
        raise UsageError(f"{named}: neither a public key of 64 hexadecimal digits nor a file of such keys")
    lines = path.read_bytes()[:FILE_BYTES_MAX].decode(errors="replace").split()
    if not lines or not all(map(DIGITS.fullmatch, lines)):
        raise MalformedError(f"{path}: not public keys of 64 hexadecimal digits, one a line")
    if not path.stat().st_mode & OTHERS_MAY_READ:
        raise UsageError(
            f"{path}: only its owner may read it, as is so for signing keys: give the public key that belongs to it "
            "(`tally new-key` and `tally serve-model` print it), or `chmod a+r` a file of public keys"
        )
    yield from (_checked(line, path.name) for line in lines)


def _checked(digits: str, what: str) -> str:
    try:
        return TypeAdapter(PublicKey).validate_python(digits.lower())
    except ValidationError as error:
        raise MalformedError(f"{what}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
