"""The verdict on a signed receipt that has not the form of a receipt: edited, contradictory, or of a later version."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.attestation.signatures import check_signature
from tallystick.commitments.digests import digest
from tallystick.commitments.encoding import Json, encode
from tallystick.errors import MalformedError
from tallystick.judging.findings import DIFFERS, Findings
from tallystick.judging.verdict import Judgement, Outcome, Verdict
from tallystick.transcripts.receipt import SIGNED, SignedReceipt

VERSION: Final = 1
KEY: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
SIGNATURE: Final = re.compile(r"[0-9a-f]{128}", re.ASCII)
LEFT: Final = "tokens, sampler and fingerprints: nothing was computed"


@dataclass(frozen=True, repr=False)
class UnreadReport(Judgement):
    """The verdict on a signed receipt without form; `subject` names it by its digest."""

    subject: str
    verdict: Verdict

    @property
    def outcome(self) -> Outcome:
        """The verdict's outcome."""
        return self.verdict.outcome

    @property
    def gist(self) -> str:
        """Which receipt could not be read."""
        return self.subject

    def to_json(self) -> dict[str, Json]:
        """The report as JSON values."""
        return {**self.verdict.to_json(), "subject": self.subject}


def judge_unread(what: str, value: Json) -> UnreadReport | None:
    """The verdict on the first signed receipt without form in a JSON value that messages name `what`.

    `None` where there is none: then the bytes are no receipt, or something beside the receipt is malformed. A version
    that is not known here is inconclusive; what states to be of this version and is not, or was edited, is rejected.
    """
    signed = [*_signed(value)]
    for each in signed:
        try:
            SignedReceipt.from_json(dict(each), what)
        except MalformedError as error:
            left = (LEFT,) if len(signed) == 1 else (LEFT, "the other receipts of the response")
            return UnreadReport(
                f"receipt {digest('receipt', encode(each['receipt']))}", _verdict(each, str(error), left)
            )
    return None


def _verdict(signed: Mapping[str, Json], reason: str, left: tuple[str, ...]) -> Verdict:
    receipt = signed["receipt"]
    version = receipt.get("receipt", VERSION) if isinstance(receipt, dict) else VERSION
    if version != VERSION or isinstance(version, bool):
        line = f"form: a receipt of version {str(version)[:32]}, and version {VERSION} is known here"
        return Verdict((), (f"{line}: a later release of tallystick may read it",), left)
    findings = Findings()
    with findings.check("signature"):
        check_signature(str(signed["key"]), str(signed["signature"]), SIGNED + encode(receipt))
    findings.note(DIFFERS, "form", detail=f"states version {VERSION}, and has not its form: {reason}")
    return Verdict(tuple(findings.seen), (), left)


def _signed(value: Json) -> Iterator[Mapping[str, Json]]:
    """What states to be a signed receipt: the value itself, or what a response carries."""
    if not isinstance(value, dict):
        return
    listed = value.get("receipts")
    for each in (value, value.get("receipt"), *(listed if isinstance(listed, list) else ())):
        if isinstance(each, dict) and isinstance(each.get("receipt"), dict) and _is_signed(each):
            yield each


def _is_signed(value: Mapping[str, Json]) -> bool:
    return bool(KEY.fullmatch(str(value.get("key"))) and SIGNATURE.fullmatch(str(value.get("signature"))))
