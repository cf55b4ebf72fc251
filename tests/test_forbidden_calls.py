"""Nothing a prover hands over is ever unpickled or run: the package holds no call that could."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_BUILTINS = {"eval", "exec", "compile"}
FORBIDDEN_NAMES = {
    *("torch.load", "torch.serialization.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
    *("numpy.load", "numpy.lib.format.read_array", "pandas.read_pickle"),
}
FORBIDDEN_NAMES |= {f"builtins.{name}" for name in FORBIDDEN_BUILTINS}


def find_forbidden(code: str) -> list[str]:
    """The forbidden modules and names that `code` uses, each with its line, whatever they are called there."""
    tree = ast.parse(code)
    aliases = dict(_aliases(tree))
    return [f"{name}:{line}" for name, line in _uses(tree, aliases) if _is_forbidden(name)]


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _uses(tree: ast.AST, aliases: dict[str, str]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield _dotted(node, aliases), node.lineno
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_BUILTINS:
            yield f"builtins.{node.id}", node.lineno


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, aliases)}.{node.attr}"
    return aliases.get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def _is_forbidden(name: str) -> bool:
    return name in FORBIDDEN_NAMES or name.split(".")[0] in FORBIDDEN_MODULES


def test_no_file_unpickles_or_runs_what_it_reads() -> None:
    found = {str(path): find_forbidden(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    assert len(found) > 300
    assert {path: calls for path, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "import os, shelve as safe",
        "from marshal import loads",
        "from joblib.memory import Memory",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x', weights_only=True)",
        "from torch import load as read",
        "import torch.serialization\ntorch.serialization.load('x')",
        "import numpy as np\nread = np.load",
        "from numpy import load",
        "import yaml\nyaml.load(text)",
        "eval('1')",
        "exec(compile('1', '', 'exec'))",
        "import builtins\nbuiltins.eval('1')",
        "run = exec",
    ],
)
def test_the_check_sees_what_it_forbids(code: str) -> None:
    assert find_forbidden(code)


@pytest.mark.parametrize(
    "code",
    [
        "import re\nre.compile('a')",
        "model.eval()",
        "import tomllib, json\ntomllib.loads(text)\njson.load(file)",
        "import numpy as np\nnp.loadtxt\nnp.frombuffer(data)",
        "import torch\ntorch.compile(model)\nmodel.load_state_dict(state)",
    ],
)
def test_the_check_lets_harmless_namesakes_pass(code: str) -> None:
    assert find_forbidden(code) == []
