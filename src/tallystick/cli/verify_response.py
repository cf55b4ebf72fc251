"""`tally verify-response`: judge receipts of a model's answers against the model that was promised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from tallystick.cli.recording import check_choices
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.answers.ladder import Tools
    from tallystick.answers.layer import LayerProgram
    from tallystick.answers.policy import ReceiptPolicy
    from tallystick.answers.report import ReceiptReport
    from tallystick.answers.request import ExpectedRequest
    from tallystick.answers.response import Response
    from tallystick.answers.stream import StreamReport
    from tallystick.answers.verify import ReceiptContext, Verification
    from tallystick.commitments.encoding import Json
    from tallystick.frameworks.torch.generation.language_models import TorchLanguageModel
    from tallystick.transcripts.environment import Environment

OPENING_BYTES_MAX: Final = 1 << 30
THREADS_MAX: Final = 256
REFUSAL_MAX: Final = 300


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(name="verify-response")(verify_response)


def verify_response(
    receipts: list[Path] = typer.Argument(help="Signed receipts, or responses that carry one, as JSON or JSON lines."),
    model: Path = typer.Option(..., "--model", help="The directory of the promised model."),
    policy: Path | None = typer.Option(None, help="The verifier's policy, as TOML or JSON."),
    limits: Path | None = typer.Option(
        None, help="Limits on distances for this model, by `research/fingerprint_calibration.py --model`."
    ),
    request: Path | None = typer.Option(None, help="What was asked: the JSON of the request, or a line for each."),
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
    dtype: str = typer.Option("F32", help="The promised precision: F32, BF16 or F16."),
    attention: str = typer.Option("sdpa", help="sdpa or eager."),
    device: str = typer.Option("cpu", help="Compute on cpu or cuda."),
    json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> int:
    """Judge answers by their receipts: what they state, one pass over their tokens, and higher rungs where asked.

    A single receipt gets a table of checks with distance, bytes and time. Several, or JSON lines, are a stream of one
    provider: numbers, links and replays are checked for all, and the sampled share is computed and judged together.
    """
    from tallystick.answers.ladder import climb

    check_choices(dtype=(dtype, ("F32", "BF16", "F16")), attention=(attention, ("sdpa", "eager")))
    check_choices(device=(device, ("cpu", "cuda")))
    responses = [response for path in receipts for response in _responses(path)]
    if not responses:
        raise UsageError(f"{receipts[0].name}: no receipt in it")
    asked = _policy(policy, limits, audit_sample)
    subjects = _subjects(responses, request)
    drawn = _nonce(nonce)
    if opening is not None:
        if len(subjects) != 1:
            raise UsageError("--opening: of one receipt; give that one alone")
        subjects = [_challenged(subjects[0], opening, drawn, count or asked.fingerprints.parts)]
    promised = _load(model, dtype, attention, device)
    subjects = [_placed(each, promised) for each in subjects]
    tools = _tools(promised, environment, layer)
    if len(subjects) == 1:
        return _show(climb(subjects[0], promised, asked, rung, tools), json)
    return _show_stream(_stream(subjects, promised, asked, drawn, rung, tools), json)


def _responses(path: Path) -> Iterator[Response]:
    from tallystick.answers.reading import read_responses
    from tallystick.commitments.encoding import parse
    from tallystick.documents.files import read_document

    if path.suffix == ".jsonl":
        from tallystick.store.log import read_lines
        from tallystick.transcripts.receipt import RECEIPT_BYTES_MAX

        for number, line in enumerate(read_lines(path, RECEIPT_BYTES_MAX), 1):
            yield from read_responses(parse(line, f"{path.name}: line {number}"), f"{path.name}: line {number}")
    else:
        yield from read_responses(parse(read_document(path), path.name), path.name)


def _policy(path: Path | None, limits: Path | None, audit_sample: float | None) -> ReceiptPolicy:
    from tallystick.answers.policy import ReceiptPolicy, read_receipt_policy

    held = read_receipt_policy(path) if path is not None else ReceiptPolicy()
    if limits is not None:
        from tallystick.answers.distance_limits import FingerprintCalibration
        from tallystick.commitments.encoding import parse
        from tallystick.documents.files import read_document

        table = FingerprintCalibration.from_json(parse(read_document(limits), limits.name), limits.name)
        own = {"limits": table.limits, "states": table.states, "measured": table.measured or None}
        held = held.model_copy(update={"fingerprints": held.fingerprints.model_copy(update=own)})
    return held if audit_sample is None else held.model_copy(update={"audit_sample": audit_sample})


def _subjects(responses: list[Response], request: Path | None) -> list[ReceiptContext]:
    from tallystick.answers.verify import ReceiptContext

    asked: list[ExpectedRequest | None] = [None] * len(responses)
    if request is not None:
        held = [*_requests(request)]
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
    from tallystick.answers.request import ExpectedRequest, read_request
    from tallystick.commitments.encoding import parse
    from tallystick.store.log import read_lines

    if path.suffix != ".jsonl":
        yield read_request(path)
        return
    for number, line in enumerate(read_lines(path), 1):
        what = f"{path.name}: line {number}"
        yield ExpectedRequest.from_body(parse(line, what), what)


def _nonce(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        found = bytes.fromhex(text)
    except ValueError:
        raise UsageError("--nonce: not hexadecimal") from None
    if not 1 <= len(found) <= 64:
        raise UsageError(f"--nonce: {len(found)} bytes are not from 1 to 64")
    return found


def _challenged(subject: ReceiptContext, opening: Path, nonce: bytes | None, count: int) -> ReceiptContext:
    from dataclasses import replace

    from tallystick.answers.states import StatesChallenge
    from tallystick.commitments.encoding import parse
    from tallystick.documents.files import read_document
    from tallystick.transcripts.states_opening import StatesOpening

    if nonce is None:
        raise UsageError("--opening: give the nonce that you challenged with as --nonce, and the --count of parts")
    data = read_document(opening, OPENING_BYTES_MAX)
    told = parse(data, opening.name, bytes_max=OPENING_BYTES_MAX)
    if (refusal := _refusal(told)) is not None:
        return replace(subject, refusal=refusal)
    held = StatesOpening.from_json(told, opening.name)
    return replace(subject, challenge=StatesChallenge(nonce, count, held))


def _refusal(told: Json) -> str | None:
    """The message of an error of the API: what a server answers that holds the states no longer."""
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message[:REFUSAL_MAX] if isinstance(message, str) else None


def _load(path: Path, dtype: str, attention: str, device: str) -> TorchLanguageModel:
    from tallystick.cli.output import existing
    from tallystick.frameworks.torch.generation.language_models import load_language_model

    return load_language_model(existing(path, "model directory"), dtype, attention, device)  # type: ignore[arg-type]


def _placed(subject: ReceiptContext, model: TorchLanguageModel) -> ReceiptContext:
    from dataclasses import replace

    from tallystick.answers.limits import context_length_of

    return replace(subject, context_length=context_length_of(model))


def _tools(model: TorchLanguageModel, environment: Path | None, layer: int | None) -> Tools:
    from tallystick.answers.ladder import Tools
    from tallystick.cli.exact_replay import PlainReplayer

    def captured(tokens: tuple[int, ...], number: int) -> LayerProgram:
        from tallystick.frameworks.torch.generation.block_replay import capture_layer

        return capture_layer(model, tokens, number)

    stated = None if environment is None else _environment(environment)
    return Tools(layers=captured, replayer=PlainReplayer(model), environment=stated, layer=layer)


def _environment(path: Path) -> Environment:
    """The provider's stack; this process uses as many threads."""
    import torch

    from tallystick.documents.files import read_document
    from tallystick.transcripts.environment import Environment

    stated = Environment.from_bytes(read_document(path).removesuffix(b"\n"), path.name)
    torch.set_num_threads(min(stated.threads, THREADS_MAX))
    return stated


def _stream(
    subjects: list[ReceiptContext],
    model: TorchLanguageModel,
    policy: ReceiptPolicy,
    nonce: bytes | None,
    rung: int | None,
    tools: Tools,
) -> StreamReport:
    from tallystick.answers.ladder import climb_from
    from tallystick.answers.stream import verify_stream
    from tallystick.audits.sampling import draw_nonce
    from tallystick.cli.output import progress_bar

    with progress_bar() as bar:
        task = bar.add_task("verifying", total=len(subjects), seen="")

        def judged(found: Verification) -> ReceiptReport:
            report = climb_from(found, rung or 2, tools)
            bar.update(task, seen=f"receipt {report.sequence}: {report.outcome}")
            return report

        return verify_stream(
            subjects, model, policy, nonce or draw_nonce(), judged, lambda done: bar.update(task, completed=done)
        )


def _show(report: ReceiptReport, as_json: bool) -> int:
    from tallystick.cli.output import page, print_json
    from tallystick.cli.report import COLOURS

    if as_json:
        print_json(report.to_json())
        return report.exit_code
    console = page()
    outcome = report.outcome
    title = f"[bold {COLOURS[outcome]}]{outcome.upper()}[/]  receipt {report.receipt}"
    console.print(f"{title}: number {report.sequence}, {report.tokens} tokens", soft_wrap=True)
    console.print(_table(report))
    console.print("   ".join(f"{question}: {reply}" for question, reply in report.answers.items()), soft_wrap=True)
    for line in _rungs(report):
        console.print(line, soft_wrap=True)
    _print_lines(report.verdict)
    return report.exit_code


def _table(report: ReceiptReport) -> Any:
    """One row for each check: verdict, worst distance, what is allowed, bytes and time."""
    from rich.table import Table

    from tallystick.cli.report import summarise_checks

    table = Table(box=None, pad_edge=False)
    for name in ("check", "verdict", "n", "distance", "allowed", "bytes", "seconds"):
        table.add_column(name, justify="left" if name in ("check", "verdict") else "right")
    seconds, sizes = report.seconds, report.bytes
    summaries = {each.name: each for each in summarise_checks(report.findings)}
    missing = {each.check for each in report.missing}
    for name in dict.fromkeys([*summaries, *missing, *seconds]):
        check = summaries.get(name)
        cells = ["", "", ""] if check is None else [str(check.count), *_distances(check.worst)]
        spent = [str(sizes[name]), f"{seconds[name]:.4f}"] if name in seconds else ["", ""]
        table.add_row(name, _mark(check, name in missing), *cells, *spent)
    return table


def _distances(worst: Any) -> list[str]:
    return [f"{worst.distance:.3g}", f"{worst.allowed:.3g}"]


def _mark(check: Any, is_missing: bool) -> str:
    if check is not None and check.disagreeing and not check.advisory:
        return "[red]no[/]"
    if is_missing:
        return "[yellow]open[/]"
    return "" if check is None else "advisory" if check.advisory else "[green]yes[/]"


def _rungs(report: ReceiptReport) -> Iterator[str]:
    for rung, cost in report.rung_costs.items():
        name = f"rung {rung}" if rung else "no rung"
        yield f"{name}: {cost.check}, {cost.seconds:.4f} s, {cost.bytes} bytes"


def _print_lines(verdict: Any) -> None:
    from rich.markup import escape

    from tallystick.cli.output import page
    from tallystick.cli.report import OBJECTIONS_SHOWN, describe, printable

    console = page()
    for finding in verdict.objections[:OBJECTIONS_SHOWN]:
        console.print(f"[red]objection[/] {escape(describe(finding))}", soft_wrap=True)
    if (more := len(verdict.objections) - OBJECTIONS_SHOWN) > 0:
        console.print(f"… and {more} more; --json lists all of them")
    for title, lines in (
        ("could not check:", verdict.unavailable),
        ("not checked:", verdict.not_checked),
        ("assumed:", verdict.assumptions),
    ):
        for line in lines:
            console.print(f"[bold]{title}[/] {escape(printable(line))}", soft_wrap=True)


def _show_stream(report: StreamReport, as_json: bool) -> int:
    from tallystick.cli.output import page, print_json
    from tallystick.cli.report import COLOURS

    if as_json:
        print_json(report.to_json())
        return report.exit_code
    console, outcome = page(), report.outcome
    console.print(f"[bold {COLOURS[outcome]}]{outcome.upper()}[/]  {report.summary}", soft_wrap=True)
    for line in report.lines:
        console.print(line, soft_wrap=True, markup=False)
    _print_lines(report.verdict)
    console.print(f"repeat with --nonce {report.nonce.hex()}", soft_wrap=True)
    return report.exit_code
