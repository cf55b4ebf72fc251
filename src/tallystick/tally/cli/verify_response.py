"""`tally verify-response`: judge receipts of a model's answers against the model that was promised."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import compress
from pathlib import Path

import typer

from tallystick.audits import policy as audit_policy
from tallystick.audits.answers import (
    ladder,
    limits as answer_limits,
    policy as receipt_policy,
    reading,
    report as answer_report,
    request as answer_request,
    response as answer_response,
    statements,
    stream as answer_stream,
    subject as answer_subject,
)
from tallystick.core.canonical_json import Json, parse
from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.files import read_document, write_atomically
from tallystick.engines.torch.generation import kept_pass, language_models
from tallystick.formats import hidden_states, receipt as receipt_form
from tallystick.formats.store import log as logs
from tallystick.formats.store.folders import MODEL, require_folder
from tallystick.tally import answers as answers_api, auditing
from tallystick.tally.cli.options import (
    Attention,
    PolicyFile,
    PromisedDtype,
    Verbose,
    check_choices,
    device_option,
    dtype_of,
    show_report,
)
from tallystick.tally.cli.output import progress_bar, talk
from tallystick.verdicts import words

OPENED = b"opened"
"""What tells the sample that is opened from the one that is computed."""


def verify_response(
    receipts: list[Path] = typer.Argument(help="Signed receipts, or responses that carry one, as JSON or JSON lines."),
    model: Path = typer.Option(..., "--model", help="The directory of the promised model."),
    policy: PolicyFile = None,
    trust_key: list[str] = typer.Option(
        [], "--trust-key", help="A public key of the provider, or a file of such keys; answers of others are rejected."
    ),
    wide: bool | None = typer.Option(
        None,
        "--wide/--no-wide",
        help="Pass a model of 16 bits a second time in F32, which tells rounding from small changes; on if no policy.",
    ),
    limits: Path | None = typer.Option(None, help="Limits for this model, by `tally calibrate-answers`."),
    request: Path | None = typer.Option(None, help="What was asked: the JSON of the request, or a line for each."),
    challenge: str | None = typer.Option(
        None,
        help="The provider's address (…/v1): ask it to open the states around a layer, and judge that on rung 3; of "
        "several receipts, a layer of the share that the policy's `open_sample` names.",
    ),
    save_opening: Path | None = typer.Option(None, "--save-opening", help="Where to keep what the provider opened."),
    opening: Path | None = typer.Option(None, help="The provider's answer to a challenge of committed states."),
    nonce: str | None = typer.Option(None, help="The nonce of that challenge, or with which a stream is sampled."),
    count: int | None = typer.Option(None, min=1, max=1024, help="How many parts were challenged."),
    environment: Path | None = typer.Option(None, help="The provider's environment, to see where stacks differ."),
    rung: int | None = typer.Option(
        None, min=1, max=4, help="Climb to 1 tokens, 2 fingerprints, 3 one layer, 4 exact replay."
    ),
    layer: int | None = typer.Option(None, min=0, help="The layer to judge on rung 3; by default the nonce chooses."),
    audit_sample: float | None = typer.Option(
        None, "--audit-sample", min=0.0, max=1.0, help="The share of a stream that is computed."
    ),
    dtype: PromisedDtype = None,
    attention: Attention = "sdpa",
    device: str = device_option("Compute on cpu or cuda."),
    keep_pass: bool = typer.Option(
        False,
        "--keep-pass",
        help="After the verdict, keep the graph of the model's pass in your cache folder: later verifications on this "
        "machine start without transformers. It takes seconds for a small model, half a minute for 30 layers.",
    ),
    json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    verbose: Verbose = False,
) -> int:
    """Judge answers by their receipts.

    What a receipt states is checked first, then one pass over the tokens is made, then higher rungs where needed.

    Several receipts, or JSON lines, are a stream of one provider: numbers, links and replays are checked for all, and
    the sampled share is computed and judged together.
    """
    started = time.perf_counter()
    if not (model / "config.json").is_file():
        require_folder(model, MODEL)
    check_choices(attention=(attention, ("sdpa", "eager")))
    promised_dtype = dtype_of(model, dtype)
    stated = [each for path in receipts for each in _stated(path, receipt_form.RECEIPT_BYTES_MAX)]
    read = [_responses(value, what) for what, value in stated]
    responses = [response for each in read if not isinstance(each, reading.UnreadReport) for response in each]
    unread = [each for each in read if isinstance(each, reading.UnreadReport)]
    if len(stated) == len(unread) == 1:
        text = words.VerdictText(unread[0].verdict, unread[0].subject)
        return show_report(unread[0], lambda: text, json, verbose)
    if not stated:
        raise UsageError(f"{receipts[0].name}: no receipt in it")
    chosen_policy = _policy(policy, trust_key, limits, audit_sample, wide)
    subjects = _subjects(responses, request, [not isinstance(each, reading.UnreadReport) for each in read])
    drawn = answers_api.read_nonce(nonce)
    if opening is not None and len(subjects) > 1:
        raise UsageError("--opening: of one receipt; give that one alone")
    if challenge is not None and len(subjects) > 1:
        drawn = drawn or audit_policy.draw_nonce()
        subjects = [_sampled_opening(challenge, each, drawn, count, chosen_policy) for each in subjects]
    elif opening is not None:
        subjects = [
            answers_api.challenged(subjects[0], opening, drawn, count or chosen_policy.fingerprints.parts, layer)
        ]
    elif challenge is not None:
        opened, answer = answers_api.challenge_provider(subjects[0], challenge, drawn, count, layer)
        if save_opening is not None and answer:
            write_atomically(save_opening, answer)
        subjects = [opened]
        rung = rung or (3 if count is None else None)
    promised = kept_pass.load_promised(model, promised_dtype, attention, device)  # type: ignore[arg-type]
    subjects = [replace(each, context_length=statements.context_length_of(promised)) for each in subjects]
    # Only the upper rungs need tools, and as many threads as the environment states.
    is_low = rung in (1, 2) and environment is None
    tools = None if is_low else answers_api.tools_for(promised, environment, layer)
    with nullcontext() if tools is None else auditing.threads_of(tools.environment):
        seconds = time.perf_counter() - started
        if len(subjects) == 1 and not unread:
            report = ladder.climb(subjects[0], promised, chosen_policy, rung, tools)
            code = show_report(report, lambda: answer_report.receipt_text(report, seconds), json, verbose)
        else:
            stream = _stream(subjects, unread, promised, chosen_policy, drawn, rung, tools)
            code = show_report(stream, lambda: answer_stream.stream_text(stream, seconds), json, verbose)
    if keep_pass and not isinstance(promised, kept_pass.KeptLanguageModel):
        try:  # a model whose pass cannot be kept has its verdict all the same
            kept = kept_pass.keep_pass(promised, attention)  # type: ignore[arg-type]
            talk().print(f"kept the graph of the model's pass: {kept}")
        except UnavailableError as error:
            talk().print(f"the graph of the model's pass is not kept: {error}")
    return code


def _sampled_opening(
    url: str,
    subject: answer_subject.ReceiptContext,
    nonce: bytes,
    count: int | None,
    policy: receipt_policy.ReceiptPolicy,
) -> answer_subject.ReceiptContext:
    """The receipt with a layer opened if the sample holds it; with parts of its states where no layer can be judged."""
    is_drawn = answer_stream.is_sampled(nonce + OPENED, subject.identity, policy.open_sample)
    if subject.receipt.states is None or not is_drawn:
        return subject
    parts = count or (None if hidden_states.judged_layers(subject.receipt.states) else policy.fingerprints.parts)
    return answers_api.challenge_provider(subject, url, nonce, parts)[0]


def _stated(path: Path, line_bytes_max: int) -> Iterator[tuple[str, Json]]:
    """What a file holds as JSON, each with the place that a message names."""
    if path.suffix == ".jsonl":
        for number, line in enumerate(logs.read_lines(path, line_bytes_max), 1):
            what = f"{path.name}: line {number}"
            yield what, parse(line, what)
    else:
        yield path.name, parse(read_document(path), path.name)


def _responses(value: Json, what: str) -> tuple[answer_response.Response, ...] | reading.UnreadReport:
    """The responses in a value, or the verdict on a signed receipt in it that has not the form of one."""
    try:
        return reading.read_responses(value, what)
    except MalformedError:
        unread = reading.judge_unread(what, value)
        if unread is None:
            raise
        return unread


def _policy(
    path: Path | None, keys: list[str], limits: Path | None, audit_sample: float | None, wide: bool | None
) -> receipt_policy.ReceiptPolicy:
    chosen = receipt_policy.read_receipt_policy(path) if path is not None else receipt_policy.ReceiptPolicy()
    if keys:
        chosen = receipt_policy.trusting(chosen, keys)
    if limits is not None:
        table = answer_limits.FingerprintCalibration.from_json(parse(read_document(limits), limits.name), limits.name)
        own = {"rows": table.rows, "rounding": table.rounding or chosen.fingerprints.rounding}
        sampler = chosen.sampler.model_copy(update={"limits": table.tokens or None})
        chosen = chosen.model_copy(
            update={"fingerprints": chosen.fingerprints.model_copy(update=own), "sampler": sampler}
        )
    if wide is not None or path is None:
        passes = {"wide": True if wide is None else wide}
        chosen = chosen.model_copy(update={"fingerprints": chosen.fingerprints.model_copy(update=passes)})
    return chosen if audit_sample is None else chosen.model_copy(update={"audit_sample": audit_sample})


def _subjects(
    responses: list[answer_response.Response], request: Path | None, is_read: list[bool]
) -> list[answer_subject.ReceiptContext]:
    """The responses with their requests; a request may be given for each of the values, those without form too."""
    requests: list[answer_request.ExpectedRequest | None] = [None] * len(responses)
    if request is not None:
        bodies = _stated(request, logs.LINE_BYTES_MAX)
        given = [answer_request.ExpectedRequest.from_body(value, what) for what, value in bodies]
        if len(given) == len(is_read):
            given = [*compress(given, is_read)]
        requests = [*given]
        if len(given) != len(responses):  # each request as often as its response has answers
            firsts = [each for each in responses if each.number == 0]
            pairs = zip(given, firsts, strict=True) if len(firsts) == len(given) else ()
            requests = [each for each, first in pairs for _ in range(first.answers)]
        if len(requests) != len(responses):
            raise UsageError(f"--request: {len(given)} requests for {len(responses)} receipts")
    return [answer_subject.ReceiptContext(*pair) for pair in zip(responses, requests, strict=True)]


def _stream(
    subjects: list[answer_subject.ReceiptContext],
    unread: list[reading.UnreadReport],
    model: language_models.TorchLanguageModel,
    policy: receipt_policy.ReceiptPolicy,
    nonce: bytes | None,
    rung: int | None,
    tools: ladder.Tools | None,
) -> answer_stream.StreamReport:
    with progress_bar() as bar:
        task = bar.add_task("verifying", total=len(subjects), seen="")

        def judged(verification: answer_subject.Verification) -> answer_report.ReceiptReport:
            report = ladder.climb_from(verification, rung or 2, tools)
            bar.update(task, seen=f"receipt {report.sequence}: {report.outcome}")
            return report

        drawn = nonce or audit_policy.draw_nonce()
        return answer_stream.verify_stream(
            subjects, model, policy, drawn, judged, lambda done: bar.update(task, completed=done), unread
        )
