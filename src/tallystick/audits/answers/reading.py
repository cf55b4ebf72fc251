"""Reads receipts from JSON or from a stream, and judges those that have not the form of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tallystick.audits.answers.response import ANSWERS_MAX, Response, split_name
from tallystick.core.canonical_json import Json, encode
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError
from tallystick.formats.completions import CompletionReader, ReadChoice, Remark, is_nothing
from tallystick.formats.receipt import SIGNED, SignedReceipt
from tallystick.formats.responses_api import form_of_answer, reader_of
from tallystick.formats.signing import check_signature
from tallystick.verdicts.verdict import DIFFERS, Findings, Judgement, Outcome, Verdict

# Reads a signed receipt, or a response that carries receipts, from parsed JSON or from the reader of a stream.

SHARED: Final[tuple[str, ...]] = ("id", "model", "system_fingerprint", "usage", "prompt_token_ids")


def read_response(value: Json, what: str = "response") -> Response:
    """Read a signed receipt, or a response of one answer whose field `receipt` holds one; raises `MalformedError`."""
    responses = read_responses(value, what)
    if len(responses) > 1:
        raise MalformedError(f"{what}: receipts: {len(responses)} answers, not one")
    return responses[0]


def read_responses(value: Json, what: str = "response") -> tuple[Response, ...]:
    """Read a signed receipt, or a response with a receipt for each of its answers; raises `MalformedError`."""
    if not isinstance(value, Mapping):
        raise MalformedError(f"{what}: a signed receipt or a response is an object")
    if "signature" in value or "key" in value:
        return (Response(receipt=SignedReceipt.from_json(dict(value), what)),)
    reader = reader_of(form_of_answer(value))
    reader.add(value)
    return delivered(reader, what)


def delivered(reader: CompletionReader, what: str = "response") -> tuple[Response, ...]:
    """What a reader has read, as one response for each receipt; raises `MalformedError` where there is none."""
    receipts = _receipts(reader, what)
    if len(receipts) == 1 and not (reader.fields.keys() - {"receipt", "receipts"} or reader.choices or reader.remarks):
        return (Response(receipt=receipts[0]),)
    numbers = _numbers(receipts, reader)
    answers = max(len(receipts), len(reader.choices))
    uncovered = sorted(reader.choices.keys() - set(numbers))
    remarks = [*reader.remarks]
    remarks += [Remark("open", f"choices.{number}", "no receipt of this answer") for number in uncovered]
    shared = {name: reader.fields[name] for name in SHARED if name in reader.fields}
    if reader.choices and len(reader.choices) < len(receipts):
        remarks.append(Remark("refused", "choices", f"{len(reader.choices)}, and {len(receipts)} receipts"))
    responses = []
    for number, receipt in zip(numbers, receipts, strict=True):
        choice = reader.choices.get(number, ReadChoice())
        choices = [choice.fields()] if number in reader.choices else []
        fields: dict[str, Any] = {**shared, "receipt": receipt.to_json(), "choices": choices}
        read = Response.from_json(fields, what)
        # what one answer was billed: the sum without the tokens of the others; unknown if some have no receipt
        others = sum(other.receipt.answer.tokens.count for other in receipts if other is not receipt)
        has_form = choice.text is not None or bool(choice.calls)
        own = {
            "usage": None if read.usage is None or uncovered else read.usage.without(others),
            "number": number,
            "answers": answers,
            "form": reader.form if has_form else None,
            "remarks": tuple(dict.fromkeys([*remarks, *choice.remarks])),
        }
        responses.append(read.model_copy(update=own))
    return tuple(responses)


def _receipts(reader: CompletionReader, what: str) -> list[SignedReceipt]:
    one, several = reader.fields.get("receipt"), reader.fields.get("receipts")
    if several is not None and not (isinstance(several, list) and 1 <= len(several) <= ANSWERS_MAX):
        raise MalformedError(f"{what}: receipts: a list of receipts is needed")
    listed = several or ([] if is_nothing(one) else [one])
    if not listed:
        raise MalformedError(f"{what}: receipt: the response carries none")
    if one is not None and one != listed[0]:
        raise MalformedError(f"{what}: receipt: another one than the first of receipts")
    return [SignedReceipt.from_json(receipt, f"{what}: receipt") for receipt in listed]


def _numbers(receipts: list[SignedReceipt], reader: CompletionReader) -> list[int]:
    """The index of the answer of each receipt: its place, or the number in its request's id where some have none."""
    if len(receipts) == len(reader.choices) == 1:
        return [*reader.choices]
    if len(receipts) >= len(reader.choices):
        return list(range(len(receipts)))
    named = [split_name(receipt.receipt.request.id)[1] for receipt in receipts]
    is_clear = all(number in reader.choices for number in named) and len(set(named)) == len(named)
    return [number for number in named if number is not None] if is_clear else list(range(len(receipts)))


# The verdict on a signed receipt that has not the form of a receipt: edited, contradictory, or of a later version.

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
    for statement in signed:
        try:
            SignedReceipt.from_json(dict(statement), what)
        except MalformedError as error:
            left = (LEFT,) if len(signed) == 1 else (LEFT, "the other receipts of the response")
            return UnreadReport(
                f"receipt {digest('receipt', encode(statement['receipt']))}",
                _verdict(statement, str(error), left),
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
    for part in (value, value.get("receipt"), *(listed if isinstance(listed, list) else ())):
        if not isinstance(part, dict) or not isinstance(part.get("receipt"), dict):
            continue
        if KEY.fullmatch(str(part.get("key"))) and SIGNATURE.fullmatch(str(part.get("signature"))):
            yield part
