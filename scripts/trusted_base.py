"""Measures the trusted base of each verifier: the code that a person trusts who believes its verdict.

It is the static closure of the verifier's entry module: every module of ours that it can import, whatever the input.
Imports inside functions count, and so do tables that name modules; imports for types alone do not. Left out are the
command line and what puts a verdict into words. Blank lines, comments and docstrings do not count.

Usage: python scripts/trusted_base.py [NAME]    the table of all verifiers, or the modules of one
"""

from __future__ import annotations

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).resolve().parent.parent / "src"
OURS: Final = "tallystick"
AROUND: Final = ("tallystick.tally.cli", "tallystick.verdicts.words")
"""The command line, and what puts a verdict into words: they decide nothing."""


VERIFIERS: Final = {
    "receipt": "tallystick.audits.answers.verify",
    "audit": "tallystick.audits.training",
    "referee": "tallystick.verdicts.leaf.judge",
    "judge": "tallystick.disputes.evidence.judging",
}
"""Each verifier by the module it starts in; budgets.toml holds the most lines of code that it may reach."""
STEP: Final = 100
"""The README rounds the limits of budgets.toml up to this."""


def closure(module: str) -> dict[str, int]:
    """The lines of code of every module of ours that `module` can import, by name."""
    reached, waiting = dict[str, int](), [module]
    while waiting:
        name = waiting.pop()
        if name not in reached and not name.startswith(AROUND):
            reached[name] = code_lines(_file(name))
            waiting += imports_of(name)
    return reached


@cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of ours that a module names in imports or, as whole strings, in tables."""
    named = set[str]()
    for node in _with_effect(parsed(_file(module))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named |= {node.value.partition(":")[0]} - {OURS}  # the distribution's name, in look-ups of its version
    return frozenset(name for name in named if name.partition(".")[0] == OURS and _is_module(name))


def limits() -> dict[str, int]:
    """The most lines of code that each verifier may reach."""
    rows = tomllib.loads((SOURCE.parent / "budgets.toml").read_text())["verifiers"]
    return {name: rows[name][0] for name in VERIFIERS}


def sentence() -> str:
    """What the README says."""
    receipt, audit, referee, judge = (f"{-(-limit // STEP) * STEP:,}" for limit in limits().values())
    return (
        f"at most {receipt} lines of code to verify an answer, {audit} to audit a training, "
        f"{referee} to rule on one operator, and {judge} to judge a dispute"
    )


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax of a file."""
    return ast.parse(path.read_text())


@cache
def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    prose = {line for node in ast.walk(parsed(path)) for line in _docstring_lines(node)}
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in prose
        for number, line in enumerate(path.read_text().splitlines(), 1)
    )


def _with_effect(node: ast.AST) -> list[ast.AST]:
    """A node and all below it, without the blocks of `if TYPE_CHECKING`."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return []
    return [node, *(inner for child in ast.iter_child_nodes(node) for inner in _with_effect(child))]


def _docstring_lines(node: ast.AST) -> range:
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        first = body[0]
        return range(first.lineno, (first.end_lineno or first.lineno) + 1)
    return range(0)


def _is_module(name: str) -> bool:
    return all(part.isidentifier() for part in name.split(".")) and _file(name).is_file()


def _file(module: str) -> Path:
    path = SOURCE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def main(names: list[str]) -> None:
    """Print the table, or the modules of one verifier."""
    if names:
        for module, lines in sorted(closure(VERIFIERS[names[0]]).items()):
            print(f"{lines:6} {module}")
        return
    for name, limit in limits().items():
        modules = closure(VERIFIERS[name])
        print(f"{name:8} {sum(modules.values()):7,} of {limit:,} in {len(modules)} modules   {VERIFIERS[name]}")


if __name__ == "__main__":
    main(sys.argv[1:])
