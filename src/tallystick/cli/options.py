"""Options that many commands share."""

from __future__ import annotations

from typing import Any, Final

import typer

JSON: Final[Any] = typer.Option(False, "--json", help="Print the result as one JSON object.")
ALWAYS_JSON: Final[Any] = typer.Option(True, "--json", help="Changes nothing: the output is JSON in any case.")
