"""Options that many commands share."""

from __future__ import annotations

from typing import Any, Final

import typer

from tallystick.errors import UsageError

JSON: Final[Any] = typer.Option(False, "--json", help="Print the result as one JSON object.")
ALWAYS_JSON: Final[Any] = typer.Option(True, "--json", help="Changes nothing: the output is JSON in any case.")


def device_option(what: str, default: str | None = "cpu") -> Any:
    """`--device`, refused before any work where there is no such device here."""
    return typer.Option(default, "--device", help=what, callback=_device)


def _device(device: str | None) -> str | None:
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"--device {device}: cpu or cuda")
    if device == "cuda":
        from tallystick.frameworks.torch.device import require_device

        require_device(device)
    return device
