"""The command that repeats an audit: what was typed, with the nonce that was drawn."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tallystick.passwords import without_passwords

if TYPE_CHECKING:
    import typer

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
