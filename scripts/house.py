"""Prints how large the house is, beside its budgets and its goals.

Usage: python scripts/house.py            every figure: what it is, its limit, its goal
       python scripts/house.py --lower    lower each limit in budgets.toml to the figure

A limit is what main may not exceed; `tests/test_budgets.py` holds it. Limits only fall: who raises one writes a page in
docs/decisions. A goal is where the figure has to go.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from trusted_base import VERIFIERS, closure, code_lines, parsed  # noqa: E402

PACKAGE: Final = ROOT / "src" / "tallystick"
BUDGETS: Final = ROOT / "budgets.toml"
MOST_PARAMETERS, MOST_FIELDS = 8, 12
LEAST_COMMENTS: Final = 0.02
"""Of lines of code."""
STEP: Final = 50
"""Limits of thousands of lines are multiples of this."""
OUTSIDE: Final = {
    "parameters": ("formats/", "tally/cli/", "programs/operators/"),
    "fields": ("formats/", "database/rows.py"),
}
"""A format has the fields of its page, a row those of its table, a command the parameters of its options, and an
operator those that ATen or StableHLO gives it."""

EXCEPTIONS: Final = {
    "engines/torch/capture/training_step.py: capture_training_step": "a public name keeps its keywords",
    "recording/loop/own_loop.py: record_training": "a public name keeps its keywords",
    "tally/answers.py: verify": "a public name keeps its keywords",
    "tally/audit_over_http.py: audit_over_http": "a public name keeps its keywords",
    "tally/training.py: train": "a public name keeps its keywords",
    "audits/answers/report.py: ReceiptReport": "thousands are kept: its parts would hold states",
    "disputes/economics/costs.py: ClaimKind": "a field for each option of `tally economics`",
    "disputes/game/state.py: Dispute": "a dispute is served field by field",
}
"""Functions with more parameters, and dataclasses with more fields, than others may have; and why."""


class Budget(NamedTuple):
    """The limit of a figure today, and the goal."""

    limit: float
    goal: float


def budgets() -> dict[str, Budget]:
    """The rows of budgets.toml by their names, such as `doors.core`."""
    tables = tomllib.loads(BUDGETS.read_text())
    return {f"{table}.{name}": Budget(*row) for table, rows in tables.items() for name, row in rows.items()}


def figures() -> dict[str, float]:
    """Every figure that has a budget, measured now."""
    lines = {path: len(path.read_text().splitlines()) for path in sources()}
    doors = sorted({door_of(path) for path in lines})
    code = sum(map(code_lines, lines))
    return {
        "house.lines": sum(lines.values()),
        "house.files": sum(not is_empty_package(path) for path in lines),
        "house.public_classes": sum(not node.name.startswith("_") for _, node in classes()),
        "house.imports_in_functions": sum(map(imports_in_functions, lines)),
        "house.long_signatures": sum(name not in EXCEPTIONS for name in long_signatures()),
        "house.wide_dataclasses": sum(name not in EXCEPTIONS for name in wide_dataclasses()),
        "house.missing_comments": max(0, round(LEAST_COMMENTS * code) - sum(map(comments, lines))),
        **{f"doors.{door}": sum(count for path, count in lines.items() if door_of(path) == door) for door in doors},
        **{f"verifiers.{name}": sum(closure(module).values()) for name, module in VERIFIERS.items()},
    }


def sources() -> list[Path]:
    """Every file of the package but examples."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "examples" not in path.parts]


def door_of(path: Path) -> str:
    """The door behind which a file stands; `public` for the front pages of the package."""
    inside = path.relative_to(PACKAGE).parts
    return inside[0] if len(inside) > 1 else "public"


def is_empty_package(path: Path) -> bool:
    """Whether the file is the page of a package that holds a docstring alone."""
    return path.name == "__init__.py" and len(parsed(path).body) == 1


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    """Every class with its file."""
    for path in sources():
        yield from ((path, node) for node in ast.walk(parsed(path)) if isinstance(node, ast.ClassDef))


def comments(path: Path) -> int:
    """Lines that hold a comment, alone or behind code."""
    return sum(bool(re.search(r"(^|\s\s)#\s", line)) for line in path.read_text().splitlines())


def imports_in_functions(path: Path) -> int:
    """Imports of our own modules inside functions."""
    functions = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)}
    return sum((node.module or "").startswith("tallystick") for node in inner)


def long_signatures() -> list[str]:
    """Functions with more than `MOST_PARAMETERS` parameters, the exceptions included."""
    names = []
    for path in sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _counts(path, "parameters"):
                parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if sum(parameter.arg not in ("self", "cls") for parameter in parameters) > MOST_PARAMETERS:
                    names.append(f"{path.relative_to(PACKAGE)}: {node.name}")
    return names


def wide_dataclasses() -> list[str]:
    """Dataclasses with more than `MOST_FIELDS` fields, the exceptions included."""
    return [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path, node in classes()
        if any("dataclass" in ast.unparse(each) for each in node.decorator_list) and _counts(path, "fields")
        if sum(isinstance(each, ast.AnnAssign) for each in node.body) > MOST_FIELDS
    ]


def _counts(path: Path, what: str) -> bool:
    return not path.relative_to(PACKAGE).as_posix().startswith(OUTSIDE[what])


def room_for(figure: float) -> float:
    """The limit of a figure: lines have room for a small repair."""
    return float(figure if figure < STEP**2 else -(-figure // STEP) * STEP)


def lower(measured: dict[str, float]) -> str:
    """The text of budgets.toml with each limit as low as its figure allows."""
    lines, table = [], ""
    for line in BUDGETS.read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            table = match[1]
        elif match := re.fullmatch(r"(\w+) = \[([\d_.]+), (.+)\]", line):
            limit = min(float(match[2]), room_for(measured.get(f"{table}.{match[1]}", 0)))
            line = f"{match[1]} = [{limit:{'_.0f' if limit.is_integer() else 'g'}}, {match[3]}]"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main(options: list[str]) -> None:
    """Print the table, or lower the limits."""
    measured, limits = figures(), budgets()
    if options == ["--lower"]:
        BUDGETS.write_text(lower(measured))
        return
    print(f"{'figure':36} {'now':>9} {'limit':>9} {'goal':>9}")
    for name, figure in measured.items():
        limit, goal = limits.get(name, Budget(0, 0))
        print(f"{name:36} {figure:9,g} {limit:9,g} {goal:9,g}{'' if figure <= limit else '   beyond its limit'}")
    for name in (*long_signatures(), *wide_dataclasses()):
        print(f"    {name}   {EXCEPTIONS.get(name, 'too long')}")


if __name__ == "__main__":
    main(sys.argv[1:])
