"""Options that many commands share, and how they print a verdict."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from tallystick.audits import limits
from tallystick.core import digests, documents
from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError, UsageError, refusal, without_passwords
from tallystick.core.files import read_document
from tallystick.core.lazy import require
from tallystick.database import workload_database
from tallystick.engines import model_cards
from tallystick.engines.torch import tensors as torch_tensors
from tallystick.engines.torch.generation import decoding, language_models
from tallystick.formats import claims, fingerprints, signing
from tallystick.formats.store import run as runs
from tallystick.formats.store.folders import RUN, require_folder
from tallystick.recording import receipts as receipt_issuing
from tallystick.tally.cli.output import print_json
from tallystick.verdicts import verdict as verdicts, words

# Options that many commands share.

Given = TypeVar("Given", bound="documents.Document")

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
AlwaysJson = Annotated[bool, typer.Option("--json", help="Changes nothing: the output is JSON in any case.")]
ClaimAsJson = Annotated[bool, typer.Option("--json", help="Print the claim as JSON.")]
VerdictAsJson = Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show every check, and what the verdict assumes.")]
RunFolder = Annotated[Path, typer.Argument(help="A run directory.")]
Db = Annotated[str, typer.Option("--db", help="A file (SQLite), or the URL of a PostgreSQL database.")]
CorpusDirectory = Annotated[Path | None, typer.Option(help="The directory of the shards that the run was trained on.")]
PolicyFile = Annotated[Path | None, typer.Option(help="The verifier's policy, as TOML or JSON.")]
AnchorsUrl = Annotated[str | None, typer.Option(metavar="URL", help="Where anchors are that the run directory lacks.")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="The file of the token for a service.")]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")]

SPELLED: Final = {"graphs": "graph"}
"""Options that are given once for each entry of a list."""


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command that takes one option for each field of a dataclass, in the place of a parameter of that class.

    So options that several commands share stand once, with their defaults and their help.
    """
    hints, parameters = get_type_hints(command, include_extras=True), list[Parameter]()
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    if not groups:
        return command
    for each in signature(command).parameters.values():
        kind = groups.get(each.name)
        if kind is None:
            parameters.append(each.replace(annotation=hints[each.name]))
            continue
        types = get_type_hints(kind, include_extras=True)
        options = ((field.name, field.default, types[field.name]) for field in fields(kind))
        parameters += [Parameter(name, each.kind, default=default, annotation=type) for name, default, type in options]

    @wraps(command)
    def spreading(**given: Any) -> Any:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        return command(**given, **made)

    spreading.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # typer reads the options from it
    return spreading


def from_options(kind: type[Given], fields: dict[str, Any]) -> Given:
    """A document made of options of the same names; raises `UsageError` that names the option as it is typed."""
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(encode(fields))
    except ValidationError as error:
        field, _, why = documents.explain(error, kind).partition(": ")
    except MalformedError:
        field, why = documents.refused_field(fields), "must be finite, and below 2^53"
    name = field.partition(".")[0]  # of a list, an entry may be wrong
    option = f"--{SPELLED.get(name, name).replace('_', '-')}: " if name in fields else ""
    raise UsageError(f"{option}{why}")


@contextmanager
def kept_folder(keep: Path | None, prefix: str) -> Iterator[Path]:
    """The folder `keep`, which is made where it is missing, or a temporary one."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with TemporaryDirectory(prefix=prefix) as folder:
        yield Path(folder)


def open_database(db: str, writable: bool = False) -> workload_database.WorkloadDatabase:
    """The workload database at a place; raises `UnavailableError` that names the extra of a missing library."""
    require("sqlalchemy", "alembic")
    return workload_database.WorkloadDatabase(db, writable=writable)


def run_in(run: Path) -> runs.RunDirectory:
    """The run in a folder; raises `UnavailableError` that says what else it is."""
    return runs.RunDirectory(require_folder(run, RUN))


def read_calibration(path: Path) -> limits.Calibration:
    """The limits of tolerant audits in a file; raises `MalformedError` for anything else."""
    return limits.Calibration.from_bytes(read_document(path).removesuffix(b"\n"), path.name)


def read_marks(segment: str) -> tuple[int, int]:
    """The two anchors that `--segment A..B` names; raises `UsageError` for another text."""
    marks = re.fullmatch(r"([0-9]{1,15})\.\.([0-9]{1,15})", segment)
    if marks is None:
        raise UsageError(f"--segment {segment}: two anchors as A..B, like 20..30")
    return int(marks[1]), int(marks[2])


def read_token(path: Path | None) -> str | None:
    """The token in a file; raises `UsageError` where it holds none, or more."""
    if path is None:
        return None
    tokens = read_document(path, 1 << 16).decode("ascii", "replace").split()
    if len(tokens) != 1:
        raise UsageError(f"--token-file {path}: one token is asked for, and there are {len(tokens)}")
    return tokens[0]


DTYPES: Final = "F32, BF16 or F16; by default what the model's directory states."
PromisedDtype = Annotated[str | None, typer.Option("--dtype", help=f"The promised precision: {DTYPES}")]
ComputedDtype = Annotated[str | None, typer.Option("--dtype", help=f"The precision to compute in: {DTYPES}")]


def dtype_of(model: Path | None, given: str | None) -> claims.Dtype:
    """The precision that is asked for, or else the one that the directory of a model states.

    Raises `UsageError` for another word. A model that was imported in BF16 is so generated with, served and verified.
    """
    if given is not None:
        check_choices(dtype=(given, ("F32", "BF16", "F16")))
        return given  # type: ignore[return-value]
    if model is None:
        return "F32"
    return model_cards.stated_dtype(model)


def device_option(what: str, default: str | None = "cpu") -> Any:
    """`--device`, refused before any work where there is no such device here."""
    return typer.Option(default, "--device", help=what, callback=_device)


def _device(device: str | None) -> str | None:
    if device is not None and device not in ("cpu", "cuda"):
        raise UsageError(f"--device: {refusal(device, ('cpu', 'cuda'))}")
    if device == "cuda":
        torch_tensors.require_device(device)
    return device


ReplayDevice = Annotated[str, typer.Option("--device", help="Replay on cpu or cuda.", callback=_device)]
RunDevice = Annotated[str, typer.Option("--device", help="Run on cpu or cuda.", callback=_device)]


# How every command prints a verdict.

BOLD: Final[dict[verdicts.Outcome, str]] = {"accepted": "1;32", "rejected": "1;31", "inconclusive": "1;33"}
"""The colours in which a terminal shows the outcome: green, red, yellow."""


def show_verdict(verdict: verdicts.Verdict, subject: str, as_json: bool, verbose: bool) -> int:
    """Print a verdict as JSON or as text; returns the exit code."""
    return show_report(verdict, lambda: words.VerdictText(verdict, subject), as_json, verbose)


def show_report(report: Any, text: Callable[[], words.VerdictText], as_json: bool, verbose: bool) -> int:
    """Print a verdict with all that was found, as JSON or as text; returns the exit code."""
    if as_json:
        print_json(report.to_json())
    else:
        print_verdict(text(), verbose)
    exit_code: int = report.exit_code
    return exit_code


def print_verdict(text: words.VerdictText, verbose: bool) -> None:
    """Print the verdict and why, what was not checked, and what passed; with `verbose`, every check."""
    first, *others = text.lines(verbose)
    outcome = text.verdict.outcome
    print(first.replace(outcome.upper(), coloured(outcome.upper(), BOLD[outcome]), 1), *others, sep="\n")


def coloured(word: str, code: str) -> str:
    """`word` in a colour, where stdout is a terminal that shows colours."""
    is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return word if is_plain else f"\x1b[{code}m{word}\x1b[0m"


# The command that repeats an audit: what was typed, with the nonce that was drawn.

OUTPUTS: Final = frozenset({"html", "db", "json", "verbose"})
"""Options that say where results go, and nothing about the verdict."""
NONCE: Final = "nonce"


def repeated(context: typer.Context, nonce: bytes) -> str:
    """The command line of `context` without the options for its output, and with `nonce` where one chose something.

    Every option that was typed is in it, so that none can be forgotten. Passwords of URLs are not.
    """
    words = [word for each in context.command.params for word in _typed(each, context)]
    drawn = ("--nonce", nonce.hex()) if nonce else ()
    return shlex.join([*context.command_path.split(), *map(without_passwords, words), *drawn])


def _typed(parameter: Any, context: typer.Context) -> Iterator[str]:
    """How an argument or option was given; nothing where it has its default."""
    source = context.get_parameter_source(parameter.name)
    if source is None or source.name != "COMMANDLINE" or parameter.name in OUTPUTS or parameter.name == NONCE:
        return
    value = context.params[parameter.name]
    if parameter.param_type_name == "argument":
        yield str(value)
        return
    name = max(parameter.opts, key=len)
    for each in value if isinstance(value, list | tuple) else [value]:
        yield from (name,) if each is True else (name, str(each))


# The options that say what is recorded of answers, shared by the commands that give answers.

Attention = Annotated[str, typer.Option(help="sdpa or eager.")]
Fingerprint = Annotated[str, typer.Option(help="projection, toploc or none.")]
ProviderKey = Annotated[
    Path | None, typer.Option("--key", help="The signing key; without one, a key for this process only.")
]
Journal = Annotated[Path | None, typer.Option(help="A directory of receipts; new ones are appended.")]
AuditorKeys = Annotated[Path | None, typer.Option("--auditor-keys", help="Who may list all receipts, one key a line.")]
Private = Annotated[bool, typer.Option("--private", help="Leave token ids out of receipts.")]
STANDARD = "standard"
Layers = Annotated[
    str,
    typer.Option(
        help="Layers to record: standard (one third of the way, and final), final (final norm and logits), all, or "
        "numbers such as 0,3; the logits are the number behind the final norm."
    ),
]
GRAPH_HELP = "Capture the step that decodes one token, keep it as graphs/decode.json, and name its root in receipts."
GRAPH_FILE = Path("graphs", "decode.json")
RECEIPTS = "receipts.jsonl"
Commit = Annotated[
    bool,
    typer.Option(
        "--commit",
        help="Commit to the states of all these layers but the logits (of every layer, for standard), for challenges.",
    ),
]


def check_choices(**given: tuple[str, tuple[str, ...]]) -> None:
    """Raise `UsageError` for an option whose value is none of those allowed."""
    for name, (value, allowed) in given.items():
        if value not in allowed:
            raise UsageError(f"--{name}: {refusal(value, allowed)}")


def read_key(path: Path) -> signing.SigningKey:
    """The signing key in a file; raises `UsageError` where there is none."""
    if not path.is_file():
        raise UsageError(f"--key {path}: not there; `tally new-key {quote(str(path))}` makes one")
    return signing.SigningKey.read(path)


def record_settings(
    method: str, layers: str, commit: bool, private: bool, card: claims.ModelCard
) -> receipt_issuing.RecordSettings:
    """What goes into receipts of a model; raises `UsageError` for layers that it does not have."""
    final = card.layers
    chosen = _layers("all" if layers == STANDARD else layers, final) if commit else ()
    committed = tuple(each for each in chosen if each <= final)
    return receipt_issuing.RecordSettings(
        _fingerprints(method, layers, card), committed, prompt=commit, private=private
    )


def committed_graph(language_model: language_models.TorchLanguageModel, folder: Path) -> digests.Digest:
    """Keep the decode graph of a model below `folder`; its root."""
    return decoding.commit_decoding(language_model.model, folder / GRAPH_FILE)


def _fingerprints(method: str, layers: str, card: claims.ModelCard) -> tuple[fingerprints.FingerprintSettings, ...]:
    final = card.layers
    if method == "projection":
        return fingerprints.standard_fingerprints(
            final, card.dtype, None if layers == STANDARD else _layers(layers, final)
        )
    chosen = [each for each in _layers("final" if layers == STANDARD else layers, final) if each <= final]
    return tuple(fingerprints.FingerprintSettings.toploc(layer) for layer in chosen) if method == "toploc" else ()


def _layers(text: str, final: int) -> tuple[int, ...]:
    logits = final + 1
    if text in ("final", "all"):
        return tuple(range(logits + 1)) if text == "all" else (final, logits)
    try:
        chosen = sorted({int(each) for each in text.split(",")})
    except ValueError:
        raise UsageError(f"--layers {text}: standard, final, all, or numbers such as 0,3") from None
    if not 0 <= chosen[0] <= chosen[-1] <= logits:
        raise UsageError(f"--layers {text}: layers are from 0 to {logits}")
    return tuple(chosen)
