"""Options that many commands share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from tallystick.errors import MalformedError, UsageError

if TYPE_CHECKING:
    from tallystick.documents.document import Document
    from tallystick.transcripts.model_card import Dtype

Given = TypeVar("Given", bound="Document")

JSON: Final[Any] = typer.Option(False, "--json", help="Print the result as one JSON object.")
ALWAYS_JSON: Final[Any] = typer.Option(True, "--json", help="Changes nothing: the output is JSON in any case.")

DB: Final[Any] = typer.Option("tally.db", "--db", help="A file (SQLite), or the URL of a PostgreSQL database.")
CORPUS: Final[Any] = typer.Option(None, help="The directory of the shards that the run was trained on.")

SPELLED: Final = {"graphs": "graph"}
"""Options that are given once for each entry of a list."""


def from_options(kind: type[Given], fields: dict[str, Any]) -> Given:
    """A document made of options of the same names; raises `UsageError` that names the option as it is typed."""
    from pydantic import ValidationError

    from tallystick.commitments.encoding import encode

    try:
        return kind.model_validate_json(encode(fields))
    except ValidationError as error:
        from tallystick.documents.explained import explain  # only a refusal has to be put into words

        field, _, why = explain(error, kind).partition(": ")
    except MalformedError:
        from tallystick.documents.explained import refused_field

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
    from tallystick.documents.files import read_document

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
        from tallystick.cli.recording import check_choices

        check_choices(dtype=(given, ("F32", "BF16", "F16")))
        return given  # type: ignore[return-value]
    if model is None:
        return "F32"
    from tallystick.frameworks.model_cards import stated_dtype

    return stated_dtype(model)


def device_option(what: str, default: str | None = "cpu") -> Any:
    """`--device`, refused before any work where there is no such device here."""
    return typer.Option(default, "--device", help=what, callback=_device)


def _device(device: str | None) -> str | None:
    if device is not None and device not in ("cpu", "cuda"):
        from tallystick.documents.suggestions import refusal

        raise UsageError(f"--device: {refusal(device, ('cpu', 'cuda'))}")
    if device == "cuda":
        from tallystick.frameworks.torch.device import require_device

        require_device(device)
    return device
