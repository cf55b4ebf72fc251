"""What the transformers verifier says about answers that vLLM gave."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

from research.vllm.load import Answered
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import read_response, read_responses
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.stream import verify_stream
from tallystick.audits.answers.subject import ReceiptContext
from tallystick.audits.answers.verify import verify_receipt
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.formats.receipt import RECEIPT_BYTES_MAX
from tallystick.formats.store.log import read_lines
from tallystick.verdicts.evidence import clopper_pearson

ANSWERS: Final = "answers.jsonl"
JUDGED: Final = "judged.jsonl"
RESPONSE_BYTES_MAX: Final = 1 << 26
JOURNAL: Final = "receipts.jsonl"
LENGTHS: Final = (8, 16, 32, 64, 128, 256, 513)


def keep(each: Answered, folder: Path) -> None:
    """Write a request and its answer, so that they can be judged again."""
    kept = {"whole": each.is_whole, "request": each.planned.body, "response": each.response}
    with (folder / ANSWERS).open("a") as file:
        file.write(json.dumps(kept) + "\n")


def counted(folder: Path) -> tuple[int, int]:
    """How many answers are kept, and how many of them are whole."""
    if not (folder / ANSWERS).is_file():
        return 0, 0
    kept = [json.loads(line)["whole"] for line in read_lines(folder / ANSWERS, RESPONSE_BYTES_MAX)]
    return len(kept), sum(kept)


@dataclass(frozen=True)
class Judging:
    """Kept answers, the promised model, and the rules of the verifier."""

    folder: Path
    model: TorchLanguageModel
    policy: ReceiptPolicy

    def judge(self, most: int | None = None, *, goes_on: bool = False) -> list[dict[str, Any]]:
        """One row for each answer, written as they come; at most `most` responses are judged.

        With `goes_on` the rows that were written before stay.
        """
        path = self.folder / JUDGED
        rows = list(map(json.loads, path.read_text().splitlines())) if goes_on and path.is_file() else []
        done = {row["response"] for row in rows}
        torch.set_num_threads(1)
        whole = [kept for kept in self._kept() if kept["whole"]][:most]
        with path.open("a" if goes_on else "w") as file:
            for number, kept in enumerate(whole, 1):
                if kept["response"]["id"] in done:
                    continue
                new = [{"response": kept["response"]["id"], **row} for row in self._rows(kept)]
                rows += new
                file.write("".join(json.dumps(row) + "\n" for row in new))
                file.flush()
                print(f"judged {number} of {len(whole)}: {', '.join(row['verdict'] for row in new)}", flush=True)
        return rows

    def cancelled(self) -> int:
        """How many answers a client left; the journal has their receipts where a token had arrived."""
        return sum(not kept["whole"] for kept in self._kept())

    def order(self) -> dict[str, Any]:
        """What is wrong with the numbers and the links of the journal, of which no answer is computed here."""
        lines = read_lines(self.folder / JOURNAL, RECEIPT_BYTES_MAX)
        contexts = [ReceiptContext(read_response(json.loads(line))) for line in lines]
        stated = self.policy.model_copy(update={"audit_sample": 0.0, "complete": True})
        report = verify_stream(contexts, self.model, stated, bytes(16))
        wrong = [str(each) for each in report.verdict.findings if not each.agrees]
        left = sum(each.receipt.answer.finish == "cancelled" for each in contexts)
        return {"receipts": len(contexts), "cancelled": left, "objections": wrong}

    def _kept(self) -> Iterator[dict[str, Any]]:
        with (self.folder / ANSWERS).open() as file:
            yield from map(json.loads, file)

    def _rows(self, kept: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        asked = ExpectedRequest.from_body(dict(kept["request"]))
        for response in read_responses(kept["response"]):
            report = verify_receipt(response.receipt, self.model, self.policy, asked, response=response)
            yield {"request": response.receipt.receipt.request.id, **_row(report), **_asked(kept["request"])}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts by verdict, with the interval of the rate of rejections, by temperature and by length."""
    rejected = [row for row in rows if row["verdict"] == "rejected"]
    return {
        "answers": len(rows),
        "tokens": sum(row["tokens"] for row in rows),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "rejected_interval": clopper_pearson(len(rejected), len(rows)),
        "objections": dict(Counter(each for row in rejected for each in set(row["objections"]))),
        "unavailable": dict(Counter(each for row in rows for each in {_alike(line) for line in row["unavailable"]})),
        "by_length": {f"{a}–{b - 1}": _verdicts(rows, a, b) for a, b in pairwise(LENGTHS)},
    }


def _verdicts(rows: Sequence[Mapping[str, Any]], least: int, end: int) -> dict[str, int]:
    return dict(Counter(row["verdict"] for row in rows if least <= row["tokens"] < end))


def _alike(reason: str) -> str:
    """A reason without the numbers that differ from answer to answer."""
    return re.sub(r"fingerprint 0: |\d+ (?=more tokens|tokens are too few|numbers for)", "", reason).partition(
        " of other"
    )[0]


def _row(report: ReceiptReport) -> dict[str, Any]:
    found = [each for each in report.findings if each.name == "fingerprint"]
    return {
        "verdict": report.outcome,
        "tokens": report.tokens,
        "objections": [f"{each.name} {each.where}: {each.detail}"[:200] for each in report.findings if not each.agrees],
        "unavailable": [str(each)[:200] for each in report.missing],
        "distances": {each.where: each.distance for each in found},
        "seconds": report.seconds,
    }


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "n", "stream", "stop", "max_tokens")
    return {"asked": {name: request[name] for name in names if name in request}}
