"""What a message tells a user to type can be typed: whatever it fills into a command is quoted as a shell needs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "tallystick"
WORDS = {"word", "real"}
"""Names of commands, which need no quotes."""


def unquoted(code: str) -> Iterator[str]:
    """What is put between `` `tally `` and the next backtick of an f-string without being quoted."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            yield from _unquoted(node)


def _unquoted(text: ast.JoinedStr) -> Iterator[str]:
    is_command = False
    for part in text.values:
        if isinstance(part, ast.Constant):
            tail = str(part.value).rpartition("`")[2] if "`" in str(part.value) else None
            is_command = is_command if tail is None else tail.startswith("tally ")
        elif is_command and isinstance(part, ast.FormattedValue) and not _is_safe(part.value):
            yield ast.unparse(part.value)


def _is_safe(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in {"quote", "join"}
    is_number = isinstance(value, ast.BinOp)
    return is_number or (isinstance(value, ast.Name) and (value.id in WORDS or value.id.isupper()))


def test_what_is_filled_into_a_command_is_quoted() -> None:
    found = {str(path.relative_to(PACKAGE)): list(unquoted(path.read_text())) for path in PACKAGE.rglob("*.py")}
    assert {name: values for name, values in found.items() if values} == {}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("f'`tally judge {path}` judges it'", ["path"]),
        ("f'{run}: `tally judge {quote(str(path))}` judges {path}'", []),
        ("f'{a} `tally graph diff {x} {y.z}` or {b}'", ["x", "y.z"]),
        ("f'see `{path}`'", []),
    ],
)
def test_the_check_sees_what_it_forbids(code: str, found: list[str]) -> None:
    assert list(unquoted(code)) == found
