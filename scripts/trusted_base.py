"""Counts the lines a verifier has to trust: every module of ours that an audit imports, directly or not.

Printed per folder, with the trainer of the verifier's own counted apart. The README quotes the totals, and a test
holds it to them.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"
AUDIT = "tallystick.audits"
ANSWERS = "tallystick.answers"
REPLAYERS = ("tallystick.frameworks.torch.training.replayer", "tallystick.frameworks.torch.training.graph_replayer")
OPERATORS = "tallystick.operators"


def reachable(start: str) -> set[str]:
    """The modules of ours that `start` imports at any place, itself included."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        module = waiting.pop()
        if module in found or module_path(module) is None:
            continue
        found.add(module)
        waiting.extend(imports_of(module))
    return found


def imports_of(module: str) -> list[str]:
    """The modules of ours that one module imports, those for type checkers left out, and the families it may load."""
    path = module_path(module)
    assert path is not None
    names = []
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tallystick"):
            names.append(node.module)
            names.extend(f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Constant) and str(node.value).startswith(f"{OPERATORS}."):
            names.append(str(node.value))
        waiting.extend(ast.iter_child_nodes(node))
    parents = [module.rsplit(".", depth)[0] for depth in range(1, module.count("."))]
    return [name for name in (*names, *parents) if module_path(name) is not None]


def module_path(module: str) -> Path | None:
    """The file of a module, or `None` where there is none."""
    stem = SOURCE / module.replace(".", "/")
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    return None


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    tree = ast.parse(path.read_text())
    prose = {line for node in ast.walk(tree) for line in _docstring_lines(node)}
    lines = path.read_text().splitlines()
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in prose
        for number, line in enumerate(lines, 1)
    )


def _docstring_lines(node: ast.AST) -> range:
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        first = body[0]
        return range(first.lineno, (first.end_lineno or first.lineno) + 1)
    return range(0)


def measure() -> dict[str, int]:
    """Lines of code: an audit, what judging answers adds, what defines operators, what is replayed with."""
    audit, answers = reachable(AUDIT), reachable(ANSWERS)
    operators = {module for module in audit | answers if module.startswith(OPERATORS)}
    replay = set().union(*map(reachable, REPLAYERS)) - audit
    return {
        "audit": total(audit - operators),
        "answers": total(answers - audit - operators),
        "operators": total(operators),
        "replay": total(replay),
    }


def sentence(figures: dict[str, int]) -> str:
    """What the README says."""
    return (
        f"{figures['audit']:,} lines for an audit, {figures['answers']:,} more for answers, "
        f"{figures['operators']:,} that define operators and {figures['replay']:,} for what it replays with"
    )


def total(modules: set[str]) -> int:
    """Lines of code in these modules."""
    return sum(code_lines(path) for path in map(module_path, modules) if path is not None)


def main() -> None:
    """Print the table."""
    modules = reachable(AUDIT)
    folders: Counter[str] = Counter()
    for module in modules:
        path = module_path(module)
        assert path is not None
        folders[module.split(".")[1] if "." in module else "tallystick"] += code_lines(path)
    for folder, lines in sorted(folders.items()):
        print(f"{folder:14} {lines:6}")
    print(sentence(measure()))


if __name__ == "__main__":
    main()
