"""Makes or verifies receipts on one stack, in a process of its own (`calibration.stacks.run_all`).

Beside the receipts of a batch stand the logits that its tokens were chosen from, so that a verifier's can be compared
with them directly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from research.inference.engines import verifier_on
from research.inference.models import prompts_of, source_text
from research.inference.stacks import Place, place_named
from tallystick.audits.answers.limits import BANDS, SamplerRule
from tallystick.audits.answers.policy import ReceiptPolicy
from tallystick.audits.answers.reading import read_response
from tallystick.audits.answers.report import ReceiptReport
from tallystick.audits.answers.request import ExpectedRequest
from tallystick.audits.answers.verify import verify_receipt
from tallystick.core.canonical_json import Json
from tallystick.core.digests import digest
from tallystick.core.errors import TallyError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.generation.language_models import load_language_model
from tallystick.formats.fingerprints import standard_fingerprints
from tallystick.formats.signing import SigningKey
from tallystick.recording.generation import AnswerRequest, generate_plain
from tallystick.recording.receipts import ReceiptIssuer, RecordSettings
from tallystick.tally.calibration.stacks import Stack
from tallystick.verdicts.language_model import LanguageModel, Prefill, Rows
from tests.support.attacks.receipts.scene import body_of, sampler_of

Job: TypeAlias = Mapping[str, Any]
Requests: TypeAlias = Sequence[dict[str, Json]]
SECRET: Final = bytes(range(32))
LOGITS: Final = "logits"
POLICY: Final = ReceiptPolicy(sampler=SamplerRule(seed="customer"), nonce="required", seed="customer")


def make(place: Place, job: Job) -> dict[str, Any]:
    """Write the answers of a subject with their receipts, and the logits they were chosen from."""
    language_model = load_language_model(Path(job["model"]), job["dtype"], place.stack.attention, place.stack.device)
    card = language_model.card
    settings = RecordSettings(standard_fingerprints(card.layers, card.dtype))
    issuer = ReceiptIssuer(language_model, SigningKey(SECRET), settings)
    prompts = prompts_of(language_model, source_text(), job["answers"], job["prompt"])
    answered: list[dict[str, Json]] = []
    logits: list[Rows] = []
    for temperature in job["temperatures"]:
        requests = [_request(prompt, temperature, number, job) for number, prompt in enumerate(prompts)]
        bodies, rows = _answers(language_model, issuer, requests, job["tokens"])
        answered += [{"request": asked, "response": body} for asked, body in zip(requests, bodies, strict=True)]
        logits += list(rows)
    Path(job["out"]).with_suffix(".json").write_text(json.dumps(answered))
    write_state(_logits_file(job), {LOGITS: Tensor.of(np.stack(logits))}, durable=False)
    return {"maker": place.name, "subject": job["subject"], "receipts": len(answered)}


def verify(place: Place, job: Job) -> dict[str, Any]:
    """What this place says to the receipts of a subject that another one made."""
    entry = {"subject": job["subject"], "dtype": job["dtype"], "maker": job["maker"], "verifier": place.name}
    try:
        model = Remembering(verifier_on(place.name, Path(job["model"]), job["dtype"]))
        return {**entry, **_verified(model, job)}
    except TallyError as error:
        return {**entry, "unavailable": str(error)}


@dataclass
class Remembering:
    """A language model that keeps its last pass."""

    model: Any
    last: Prefill | None = None

    def prefill(self, tokens: Sequence[int], first: int, layers: Collection[int] = ()) -> Prefill:
        """One pass over `tokens`."""
        self.last = self.model.prefill(tokens, first, layers)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def _logits_file(job: Job) -> Path:
    return Path(job["out"]).with_suffix(".safetensors")


def _verified(model: Any, job: Job) -> dict[str, Any]:
    answered = json.loads(Path(job["out"]).with_suffix(".json").read_text())
    claimed = read_state(_logits_file(job))[LOGITS].array()
    outcomes: Counter[str] = Counter()
    objections: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    seen: list[dict[str, float]] = []
    own: list[bytes] = []
    for each, logits in zip(answered, claimed, strict=True):
        report = _report(model, each)
        outcomes[report.outcome] += 1
        objections.update({finding.name for finding in report.verdict.objections})
        missing.update({each.check for each in report.missing})
        seen.append(_figures(report, model, logits))
        own.append(_last_rows(model, len(logits)).tobytes())
    return {
        "receipts": len(answered),
        **{name: outcomes[name] for name in ("accepted", "inconclusive", "rejected")},
        "objections": dict(objections),
        "missing": dict(missing),
        **{name: max(each[name] for each in seen) for name in ("fingerprint", "margin", "drift", "spread")},
        "beyond": int(sum(each["beyond"] for each in seen)),
        "rows": sum(len(each) for each in claimed),
        "bits": digest("blob", b"".join(own)),
    }


def _report(model: LanguageModel, each: Mapping[str, Any]) -> ReceiptReport:
    response, request = read_response(each["response"]), ExpectedRequest.from_body(each["request"])
    return verify_receipt(response.receipt, model, POLICY, request, response=response)


def _figures(report: ReceiptReport, model: Remembering, logits: Rows) -> dict[str, float]:
    """The largest distances in units of what is allowed, and how far the two sides' logits lie apart."""
    fingerprints = [each.distance / each.allowed for each in report.findings if each.name == "fingerprint"]
    margins = [each.distance for each in report.findings if each.name == "sampler"]
    gaps = _last_rows(model, len(logits)).astype(np.float64) - logits
    assert report.evidence is not None
    return {
        "fingerprint": max(fingerprints, default=0.0),
        "margin": max(margins) / BANDS[model.card.dtype],
        "drift": float(np.abs(gaps).max()),
        "spread": float(np.ptp(gaps, axis=1).max()),
        "beyond": report.evidence.trials.mismatches,
    }


def _last_rows(model: Remembering, count: int) -> Rows:
    assert model.last is not None, "a receipt that was not computed"
    return model.last.logits[-count:]


def _request(prompt: Sequence[int], temperature: float, number: int, job: Job) -> dict[str, Json]:
    return {
        "prompt": list(prompt),
        "max_tokens": job["tokens"],
        "temperature": temperature,
        "seed": 1000 + number,
        "tally_nonce": f"{number + 1:032x}{round(100 * temperature):032x}",
    }


def _answers(language_model: Any, issuer: Any, requests: Requests, tokens: int) -> tuple[list[dict[str, Json]], Rows]:
    """Responses to one batch, and logits F32 [answers, tokens, vocabulary]."""
    asked = []
    for each in map(ExpectedRequest.from_body, requests):
        asked.append(AnswerRequest(nonce=each.tally_nonce, sampler=sampler_of(each)))
    prompts: Any = [each["prompt"] for each in requests]
    with _logits_of(language_model.model) as steps:
        found = generate_plain(language_model, prompts, tokens, asked, issuer)
    return [body_of(language_model, each) for each in found], np.stack(steps, 1)


@contextmanager
def _logits_of(model: Any) -> Iterator[list[Rows]]:
    """The last row of logits of every pass inside the block."""
    steps: list[Rows] = []
    handle = model.register_forward_hook(lambda _, __, output: steps.append(output.logits[:, -1].float().cpu().numpy()))
    try:
        yield steps
    finally:
        handle.remove()


def act_on(stack: Stack, task: Mapping[str, Any]) -> list[Any]:
    """Make or verify the receipts of a task at the place of this stack."""
    act = {"make": make, "verify": verify}[task["action"]]
    return [act(place_named(stack.name), job) for job in task["jobs"]]
