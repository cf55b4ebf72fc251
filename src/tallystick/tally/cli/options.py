"""Options that many commands share, and how they print a verdict."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_type_hints

import typer

from tallystick.core.errors import MalformedError, UsageError, without_passwords

if TYPE_CHECKING:
    from tallystick.core.digests import Digest
    from tallystick.core.documents import Document
    from tallystick.engines.torch.generation.language_models import TorchLanguageModel
    from tallystick.formats.claims import Dtype, ModelCard
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.formats.signing import SigningKey
    from tallystick.recording.receipts import RecordSettings
    from tallystick.verdicts.verdict import Outcome, Verdict
    from tallystick.verdicts.words import VerdictText


# Options that many commands share.

Given = TypeVar("Given", bound="Document")

JSON: Final[Any] = typer.Option(False, "--json", help="Print the result as one JSON object.")
ALWAYS_JSON: Final[Any] = typer.Option(True, "--json", help="Changes nothing: the output is JSON in any case.")

DB: Final[Any] = typer.Option("tally.db", "--db", help="A file (SQLite), or the URL of a PostgreSQL database.")
CORPUS: Final[Any] = typer.Option(None, help="The directory of the shards that the run was trained on.")

SPELLED: Final = {"graphs": "graph"}
"""Options that are given once for each entry of a list."""


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command that takes one option for each field of a dataclass, in the place of a parameter of that class.

    So options that several commands share stand once, with their defaults and their help.
    """
    hints, parameters = get_type_hints(command, include_extras=True), list[Parameter]()
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
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

    from tallystick.core.canonical_json import encode

    try:
        return kind.model_validate_json(encode(fields))
    except ValidationError as error:
        from tallystick.core.documents import explain  # only a refusal has to be put into words

        field, _, why = explain(error, kind).partition(": ")
    except MalformedError:
        from tallystick.core.documents import refused_field

        field, why = refused_field(fields), "must be finite, and below 2^53"
    name = field.partition(".")[0]  # of a list, an entry may be wrong
    option = f"--{SPELLED.get(name, name).replace('_', '-')}: " if name in fields else ""
    raise UsageError(f"{option}{why}")


def read_marks(segment: str) -> tuple[int, int]:
    """The two anchors that `--segment A..B` names; raises `UsageError` for another text."""
    marks = re.fullmatch(r"([0-9]{1,15})\.\.([0-9]{1,15})", segment)
    if marks is None:
        raise UsageError(f"--segment {segment}: two anchors as A..B, like 20..30")
    return int(marks[1]), int(marks[2])


def read_token(path: Path | None) -> str | None:
    """The token in a file; raises `UsageError` where it holds none, or more."""
    from tallystick.core.files import read_document

    if path is None:
        return None
    tokens = read_document(path, 1 << 16).decode("ascii", "replace").split()
    if len(tokens) != 1:
        raise UsageError(f"--token-file {path}: one token is asked for, and there are {len(tokens)}")
    return tokens[0]


def dtype_option(what: str) -> Any:
    """`--dtype`, which `dtype_of` reads."""
    return typer.Option(
        None, "--dtype", help=f"{what}: F32, BF16 or F16; by default what the model's directory states."
    )


def dtype_of(model: Path | None, given: str | None) -> Dtype:
    """The precision that is asked for, or else the one that the directory of a model states.

    Raises `UsageError` for another word. A model that was imported in BF16 is so generated with, served and verified.
    """
    if given is not None:
        check_choices(dtype=(given, ("F32", "BF16", "F16")))
        return given  # type: ignore[return-value]
    if model is None:
        return "F32"
    from tallystick.engines.model_cards import stated_dtype

    return stated_dtype(model)


def device_option(what: str, default: str | None = "cpu") -> Any:
    """`--device`, refused before any work where there is no such device here."""
    return typer.Option(default, "--device", help=what, callback=_device)


def _device(device: str | None) -> str | None:
    if device is not None and device not in ("cpu", "cuda"):
        from tallystick.core.errors import refusal

        raise UsageError(f"--device: {refusal(device, ('cpu', 'cuda'))}")
    if device == "cuda":
        from tallystick.engines.torch.tensors import require_device

        require_device(device)
    return device


# How every command prints a verdict.

VERBOSE: Final[Any] = typer.Option(False, "--verbose", "-v", help="Show every check, and what the verdict assumes.")
BOLD: Final[dict[Outcome, str]] = {"accepted": "1;32", "rejected": "1;31", "inconclusive": "1;33"}
"""The colours in which a terminal shows the outcome: green, red, yellow."""


def show_verdict(verdict: Verdict, subject: str, as_json: bool, verbose: bool) -> int:
    """Print a verdict as JSON or as text; returns the exit code."""
    from tallystick.tally.cli.output import print_json
    from tallystick.verdicts.words import VerdictText

    if as_json:
        print_json(verdict.to_json())
    else:
        print_verdict(VerdictText(verdict, subject), verbose)
    return verdict.exit_code


def print_verdict(text: VerdictText, verbose: bool) -> None:
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

STANDARD = "standard"
LAYERS_HELP = (
    "Layers to record: standard (one third of the way, and final), final (final norm and logits), all, or numbers such "
    "as 0,3; the logits are the number behind the final norm."
)
GRAPH_HELP = "Capture the step that decodes one token, keep it as graphs/decode.json, and name its root in receipts."
GRAPH_FILE = Path("graphs", "decode.json")
RECEIPTS = "receipts.jsonl"
COMMIT_HELP = "Commit to the states of all these layers but the logits (of every layer, for standard), for challenges."


def check_choices(**given: tuple[str, tuple[str, ...]]) -> None:
    """Raise `UsageError` for an option whose value is none of those allowed."""
    for name, (value, allowed) in given.items():
        if value not in allowed:
            from tallystick.core.errors import refusal

            raise UsageError(f"--{name}: {refusal(value, allowed)}")


def read_key(path: Path) -> SigningKey:
    """The signing key in a file; raises `UsageError` where there is none."""
    from tallystick.formats.signing import SigningKey

    if not path.is_file():
        raise UsageError(f"--key {path}: not there; `tally new-key {quote(str(path))}` makes one")
    return SigningKey.read(path)


def record_settings(method: str, layers: str, commit: bool, private: bool, card: ModelCard) -> RecordSettings:
    """What goes into receipts of a model; raises `UsageError` for layers that it does not have."""
    from tallystick.recording.receipts import RecordSettings

    final = card.layers
    chosen = _layers("all" if layers == STANDARD else layers, final) if commit else ()
    committed = tuple(each for each in chosen if each <= final)
    return RecordSettings(_fingerprints(method, layers, card), committed, prompt=commit, private=private)


def committed_graph(language_model: TorchLanguageModel, folder: Path) -> Digest:
    """Keep the decode graph of a model below `folder`; its root."""
    from tallystick.engines.torch.generation.decoding import commit_decoding

    return commit_decoding(language_model.model, folder / GRAPH_FILE)


def _fingerprints(method: str, layers: str, card: ModelCard) -> tuple[FingerprintSettings, ...]:
    from tallystick.formats.fingerprints import FingerprintSettings, standard_fingerprints

    final = card.layers
    if method == "projection":
        return standard_fingerprints(final, card.dtype, None if layers == STANDARD else _layers(layers, final))
    chosen = [each for each in _layers("final" if layers == STANDARD else layers, final) if each <= final]
    return tuple(FingerprintSettings.toploc(layer) for layer in chosen) if method == "toploc" else ()


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
