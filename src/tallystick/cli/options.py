"""Options that many commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from tallystick.errors import MalformedError, UsageError

if TYPE_CHECKING:
    from tallystick.documents.document import Document

Given = TypeVar("Given", bound="Document")

JSON: Final[Any] = typer.Option(False, "--json", help="Print the result as one JSON object.")
ALWAYS_JSON: Final[Any] = typer.Option(True, "--json", help="Changes nothing: the output is JSON in any case.")


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
    option = f"--{field.replace('_', '-')}: " if field in fields else ""
    raise UsageError(f"{option}{why}")


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
