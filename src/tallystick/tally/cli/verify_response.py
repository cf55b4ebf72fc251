"""`tally verify-response`: judge receipts of a model's answers against the model that was promised."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.tally.cli.options import VERBOSE, check_choices, device_option, dtype_of, dtype_option, print_verdict

if TYPE_CHECKING:
    from tallystick.audits.answers.ladder import Tools
    from tallystick.audits.answers.policy import ReceiptPolicy
    from tallystick.audits.answers.reading import UnreadReport
    from tallystick.audits.answers.report import ReceiptReport
    from tallystick.audits.answers.request import ExpectedRequest
    from tallystick.audits.answers.response import Response
    from tallystick.audits.answers.stream import StreamReport
    from tallystick.audits.answers.verify import ReceiptContext, Verification
    from tallystick.core.canonical_json import Json
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel
    from tallystick.formats.claims import Dtype


OPENED = b"opened"
"""What tells the sample that is opened from the one that is computed."""


def verify_response(
    receipts: list[Path] = typer.Argument(help="Signed receipts, or responses that carry one, as JSON or JSON lines."),
    model: Path = typer.Option(..., "--model", help="The directory of the promised model."),
    policy: Path | None = typer.Option(None, help="The verifier's policy, as TOML or JSON."),
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
        "several receipts, parts of the share that the policy's `open_sample` names.",
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
    dtype: str | None = dtype_option("The promised precision"),
    attention: str = typer.Option("sdpa", help="sdpa or eager."),
    device: str = device_option("Compute on cpu or cuda."),
    keep_pass: bool = typer.Option(
        False,
        "--keep-pass",
        help="After the verdict, keep the graph of the model's pass in your cache folder: later verifications on this "
        "machine start without transformers. It takes seconds for a small model, half a minute for 30 layers.",
    ),
    json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    verbose: bool = VERBOSE,
) -> int:
    """Judge answers by their receipts.

    What a receipt states is checked first, then one pass over the tokens is made, then higher rungs where needed.

    Several receipts, or JSON lines, are a stream of one provider: numbers, links and replays are checked for all, and
    the sampled share is computed and judged together.
    """
    started = time.perf_counter()
    from tallystick.audits.answers.ladder import climb
    from tallystick.audits.answers.reading import UnreadReport

    if not (model / "config.json").is_file():
        from tallystick.formats.store.folders import MODEL, require_folder

        require_folder(model, MODEL)
    check_choices(attention=(attention, ("sdpa", "eager")))
    promised_dtype = dtype_of(model, dtype)
    stated = [each for path in receipts for each in _stated(path)]
    read = [_responses(value, what) for what, value in stated]
    responses = [response for each in read if not isinstance(each, UnreadReport) for response in each]
    unread = [each for each in read if isinstance(each, UnreadReport)]
    if len(stated) == len(unread) == 1:
        return _show_unread(unread[0], json, verbose)
    if not stated:
        raise UsageError(f"{receipts[0].name}: no receipt in it")
    asked = _policy(policy, trust_key, limits, audit_sample, wide)
    subjects = _subjects(responses, request, [not isinstance(each, UnreadReport) for each in read])
    drawn = None if nonce is None else _nonce(nonce)
    if opening is not None and len(subjects) > 1:
        raise UsageError("--opening: of one receipt; give that one alone")
    if challenge is not None and len(subjects) > 1:
        drawn = drawn or _fresh_nonce()
        subjects = [_sampled_opening(challenge, each, drawn, count, asked) for each in subjects]
    elif opening is not None:
        from tallystick.tally.answers import challenged

        subjects = [challenged(subjects[0], opening, drawn, count or asked.fingerprints.parts, layer)]
    elif challenge is not None:
        subjects = [_challenged_at(challenge, subjects[0], drawn, count, layer, save_opening)]
        rung = rung or (3 if count is None else None)
    promised = _load(model, promised_dtype, attention, device)
    subjects = [_placed(each, promised) for each in subjects]
    with _tools(promised, environment, layer, rung) as tools:
        ready = time.perf_counter()
        if len(subjects) == 1 and not unread:
            code = _show(climb(subjects[0], promised, asked, rung, tools), ready - started, json, verbose)
        else:
            stream = _stream(subjects, unread, promised, asked, drawn, rung, tools)
            code = _show_stream(stream, ready - started, json, verbose)
    if keep_pass:
        _keep_pass(promised, attention)
    return code


def _challenged_at(
    url: str, subject: ReceiptContext, nonce: bytes | None, count: int | None, layer: int | None, keep: Path | None
) -> ReceiptContext:
    from tallystick.core.files import write_atomically
    from tallystick.tally.answers import challenge_provider

    found, answer = challenge_provider(subject, url, nonce, count, layer)
    if keep is not None and answer:
        write_atomically(keep, answer)
    return found


def _sampled_opening(
    url: str, subject: ReceiptContext, nonce: bytes, count: int | None, policy: ReceiptPolicy
) -> ReceiptContext:
    """The receipt with parts of its states opened, if it has states and belongs to the sample that is opened."""
    from tallystick.audits.answers.stream import is_sampled
    from tallystick.tally.answers import challenge_provider

    is_drawn = is_sampled(nonce + OPENED, subject.identity, policy.open_sample)
    if subject.receipt.states is None or not is_drawn:
        return subject
    return challenge_provider(subject, url, nonce, count or policy.fingerprints.parts)[0]


def _fresh_nonce() -> bytes:
    from tallystick.audits.policy import draw_nonce

    return draw_nonce()


def _nonce(text: str) -> bytes | None:
    from tallystick.tally.answers import read_nonce

    return read_nonce(text)


@contextmanager
def _tools(
    model: TorchLanguageModel, environment: Path | None, layer: int | None, rung: int | None
) -> Iterator[Tools | None]:
    """What the upper rungs need, unless the first two are asked for; as many threads as the environment states."""
    if rung in (1, 2) and environment is None:
        yield None
        return
    from tallystick.tally.answers import tools_for
    from tallystick.tally.auditing import threads_of

    tools = tools_for(model, environment, layer)
    with threads_of(tools.environment):
        yield tools


def _stated(path: Path) -> Iterator[tuple[str, Json]]:
    """What a file holds as JSON, each with the place that a message names."""
    from tallystick.core.canonical_json import parse
    from tallystick.core.files import read_document

    if path.suffix == ".jsonl":
        from tallystick.formats.receipt import RECEIPT_BYTES_MAX
        from tallystick.formats.store.log import read_lines

        for number, line in enumerate(read_lines(path, RECEIPT_BYTES_MAX), 1):
            what = f"{path.name}: line {number}"
            yield what, parse(line, what)
    else:
        yield path.name, parse(read_document(path), path.name)


def _responses(value: Json, what: str) -> tuple[Response, ...] | UnreadReport:
    """The responses in a value, or the verdict on a signed receipt in it that has not the form of one."""
    from tallystick.audits.answers.reading import judge_unread, read_responses

    try:
        return read_responses(value, what)
    except MalformedError:
        found = judge_unread(what, value)
        if found is None:
            raise
        return found


def _policy(
    path: Path | None, keys: list[str], limits: Path | None, audit_sample: float | None, wide: bool | None
) -> ReceiptPolicy:
    from tallystick.audits.answers.policy import ReceiptPolicy, read_receipt_policy

    held = read_receipt_policy(path) if path is not None else ReceiptPolicy()
    if keys:
        from tallystick.audits.answers.policy import trusting

        held = trusting(held, keys)
    if limits is not None:
        from tallystick.audits.answers.distance_limits import FingerprintCalibration
        from tallystick.core.canonical_json import parse
        from tallystick.core.files import read_document

        table = FingerprintCalibration.from_json(parse(read_document(limits), limits.name), limits.name)
        own = {"rows": table.rows, "rounding": table.rounding or held.fingerprints.rounding}
        sampler = held.sampler.model_copy(update={"limits": table.tokens or None})
        held = held.model_copy(update={"fingerprints": held.fingerprints.model_copy(update=own), "sampler": sampler})
    if wide is not None or path is None:
        passes = {"wide": True if wide is None else wide}
        held = held.model_copy(update={"fingerprints": held.fingerprints.model_copy(update=passes)})
    return held if audit_sample is None else held.model_copy(update={"audit_sample": audit_sample})


def _subjects(responses: list[Response], request: Path | None, is_read: list[bool]) -> list[ReceiptContext]:
    """The responses with their requests; a request may be given for each of the values, those without form too."""
    from tallystick.audits.answers.verify import ReceiptContext

    asked: list[ExpectedRequest | None] = [None] * len(responses)
    if request is not None:
        held = [*_requests(request)]
        if len(held) == len(is_read):
            held = [*compress(held, is_read)]
        asked = [*held] if len(held) == len(responses) else [*_for_each_answer(held, responses)]
        if len(asked) != len(responses):
            raise UsageError(f"--request: {len(held)} requests for {len(responses)} receipts")
    return [ReceiptContext(*pair) for pair in zip(responses, asked, strict=True)]


def _for_each_answer(requests: list[ExpectedRequest], responses: list[Response]) -> Iterator[ExpectedRequest]:
    """Each request as often as its response has answers."""
    firsts = [each for each in responses if each.number == 0]
    if len(firsts) == len(requests):
        for asked, first in zip(requests, firsts, strict=True):
            yield from [asked] * first.answers


def _requests(path: Path) -> Iterator[ExpectedRequest]:
    from tallystick.audits.answers.request import ExpectedRequest, read_request
    from tallystick.core.canonical_json import parse
    from tallystick.formats.store.log import read_lines

    if path.suffix != ".jsonl":
        yield read_request(path)
        return
    for number, line in enumerate(read_lines(path), 1):
        what = f"{path.name}: line {number}"
        yield ExpectedRequest.from_body(parse(line, what), what)


def _load(path: Path, dtype: Dtype, attention: str, device: str) -> TorchLanguageModel:
    from tallystick.engines.torch.generation.kept_pass import load_promised

    return load_promised(path, dtype, attention, device)  # type: ignore[arg-type]


def _keep_pass(model: TorchLanguageModel, attention: str) -> None:
    """Keep the pass unless it is kept; a model whose pass cannot be kept has its verdict all the same."""
    from tallystick.engines.torch.generation.kept_pass import KeptLanguageModel
    from tallystick.engines.torch.generation.pass_keeping import keep_pass
    from tallystick.tally.cli.output import talk

    if isinstance(model, KeptLanguageModel):
        return
    try:
        talk().print(f"kept the graph of the model's pass: {keep_pass(model, attention)}")  # type: ignore[arg-type]
    except UnavailableError as error:
        talk().print(f"the graph of the model's pass is not kept: {error}")


def _placed(subject: ReceiptContext, model: TorchLanguageModel) -> ReceiptContext:
    from dataclasses import replace

    from tallystick.audits.answers.statements import context_length_of

    return replace(subject, context_length=context_length_of(model))


def _stream(
    subjects: list[ReceiptContext],
    unread: list[UnreadReport],
    model: TorchLanguageModel,
    policy: ReceiptPolicy,
    nonce: bytes | None,
    rung: int | None,
    tools: Tools | None,
) -> StreamReport:
    from tallystick.audits.answers.ladder import climb_from
    from tallystick.audits.answers.stream import verify_stream
    from tallystick.audits.policy import draw_nonce
    from tallystick.tally.cli.output import progress_bar

    with progress_bar() as bar:
        task = bar.add_task("verifying", total=len(subjects), seen="")

        def judged(found: Verification) -> ReceiptReport:
            report = climb_from(found, rung or 2, tools)
            bar.update(task, seen=f"receipt {report.sequence}: {report.outcome}")
            return report

        def show(done: int) -> None:
            bar.update(task, completed=done)

        return verify_stream(subjects, model, policy, nonce or draw_nonce(), judged, show, unread)


def _show(report: ReceiptReport, seconds: float, as_json: bool, verbose: bool) -> int:
    from tallystick.audits.answers.report import receipt_text
    from tallystick.tally.cli.output import print_json

    if as_json:
        print_json(report.to_json())
    else:
        print_verdict(receipt_text(report, seconds), verbose)
    return report.exit_code


def _show_unread(found: UnreadReport, as_json: bool, verbose: bool) -> int:
    from tallystick.tally.cli.output import print_json
    from tallystick.verdicts.words import VerdictText

    if as_json:
        print_json(found.to_json())
    else:
        print_verdict(VerdictText(found.verdict, found.subject), verbose)
    return found.exit_code


def _show_stream(report: StreamReport, seconds: float, as_json: bool, verbose: bool) -> int:
    from tallystick.audits.answers.report import stream_text
    from tallystick.tally.cli.output import print_json

    if as_json:
        print_json(report.to_json())
    else:
        print_verdict(stream_text(report, seconds), verbose)
    return report.exit_code
