"""What is wrong with a command line, in one form: the word as it is typed, and the one that was meant."""

from __future__ import annotations

from typing import Any

import typer

from tallystick.documents.suggestions import suggestion

NO_COMMAND = "No such command"
UNEXPECTED = "Got unexpected extra argument(s) "


def usage_line(error: typer.TyperException, app: typer.Typer, arguments: list[str]) -> str:
    """What is wrong, and which help says more; the whole help, in lines, where only a group was named."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return error.format_message()
    named = _named(app, arguments)
    wrong = _wrong(error, arguments[len(named) :]).rstrip(".")
    return f"{wrong}; see `{' '.join(['tally', *named, '--help'])}`"


def _wrong(error: Any, rest: list[str]) -> str:
    """The words of typer's errors, by their classes; those have no public names."""
    kind, message = type(error).__name__, str(error.format_message())
    if kind == "NoSuchOption":
        return _no_such_option(error)
    if kind == "MissingParameter":
        return f"missing {error.param.param_type_name} {_typed(error.param)}"
    if kind == "BadParameter" and error.param is not None:
        return f"{_typed(error.param)}: {_refused(error)}"
    if kind == "BadOptionUsage":
        return f"{error.option_name}: " + ("takes no value" if "does not take" in message else "needs a value")
    if message.startswith(NO_COMMAND) and rest:
        return f"no such command {rest[0]}{suggestion(rest[0], error.ctx.command.commands)}"
    if message.startswith(UNEXPECTED):
        return f"unexpected argument {message.removeprefix(UNEXPECTED).strip('()')}"
    return message[:1].lower() + message[1:]


def _no_such_option(error: Any) -> str:
    names = [name for each in error.ctx.command.params for name in (*each.opts, *each.secondary_opts)]
    options = sorted({"--help", *(name for name in names if name.startswith("--"))})
    return f"no such option {error.option_name}{suggestion(error.option_name, options)}"


def _refused(error: Any) -> str:
    """What a value must be; typer reads values by pydantic."""
    from pydantic import ValidationError

    from tallystick.documents.explained import complaint

    if isinstance(error.__cause__, ValidationError):
        return complaint(error.__cause__.errors(include_url=False)[0])
    return str(error.message)


def _typed(parameter: Any) -> str:
    """An option by its longest name, an argument as the usage line shows it."""
    is_argument = parameter.param_type_name == "argument"
    return str(parameter.name).upper() if is_argument else str(max(parameter.opts, key=len))


def _named(group: typer.Typer, arguments: list[str]) -> list[str]:
    """The leading arguments that name a command, or a group and a command in it."""
    commands = {
        each.name or getattr(each.callback, "__name__", "").replace("_", "-") for each in group.registered_commands
    }
    groups = {each.name: each.typer_instance for each in group.registered_groups}
    name = arguments[0] if arguments else None
    inner = groups.get(name)
    if inner is not None:
        return [*arguments[:1], *_named(inner, arguments[1:])]
    return arguments[:1] if name in commands else []
