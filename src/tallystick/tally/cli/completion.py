"""`tally completion`: a script by which a shell completes commands and options.

The script holds all names, so that no Python is started at a press of the key.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import typer

from tallystick.core.errors import UsageError

BASH: Final = """\
_tally() {{
    local words=""
    case "${{COMP_WORDS[*]:1:COMP_CWORD-1}} " in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _tally tally"""
ZSH: Final = """\
#compdef tally
_tally() {{
    local words_=""
    case "${{words[2,CURRENT-1]}} " in
{cases}
    esac
    compadd -- ${{=words_}}
    _files
}}
compdef _tally tally"""


@dataclass(frozen=True)
class Completion:
    """What may follow a command: commands of a group or options, each with its help."""

    path: tuple[str, ...]
    words: Mapping[str, str]


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command()(completion)


def completion(
    context: typer.Context,
    shell: str = typer.Argument(help="bash, zsh or fish."),
) -> None:
    """Print the script that completes commands in a shell.

    In bash: `eval "$(tally completion bash)"`, in ~/.bashrc for every terminal. In zsh the same with zsh, in ~/.zshrc
    after compinit. In fish: `tally completion fish | source`.
    """
    if shell not in SCRIPTS:
        from tallystick.core.errors import refusal

        raise UsageError(f"SHELL: {refusal(shell, [*SCRIPTS])}")
    print(SCRIPTS[shell]([*_completions(context.find_root().command)]))


def _completions(command: Any, path: tuple[str, ...] = ()) -> Iterator[Completion]:
    """A command and all below it, the longest paths first."""
    inner = getattr(command, "commands", {})
    for name, each in sorted(inner.items()):
        yield from _completions(each, (*path, name))
    options = {name: each.help or "" for each in command.params for name in each.opts if name.startswith("--")}
    helps = {name: each.get_short_help_str(80) for name, each in sorted(inner.items())}
    yield Completion(path, {**helps, **options, "--help": "Show this message and exit."})


def _cases(completions: list[Completion], variable: str) -> str:
    lines = (
        f'        "{"".join(f"{name} " for name in each.path) or " "}"*) {variable}="{" ".join(each.words)}" ;;'
        for each in completions
    )
    return "\n".join(lines)


def _bash(completions: list[Completion]) -> str:
    return BASH.format(cases=_cases(completions, "words"))


def _zsh(completions: list[Completion]) -> str:
    return ZSH.format(cases=_cases(completions, "words_"))


def _fish(completions: list[Completion]) -> str:
    return "\n".join(line for each in completions for line in _fish_lines(each))


def _fish_lines(each: Completion) -> Iterator[str]:
    seen = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in each.path)
    condition = shlex.quote(seen or "__fish_use_subcommand")
    for word, told in each.words.items():
        what = f"-l {word.removeprefix('--')}" if word.startswith("--") else f"-a {word}"
        yield f"complete -c tally -n {condition} {what} -d {shlex.quote(told)}"


SCRIPTS: Final[Mapping[str, Callable[[list[Completion]], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
