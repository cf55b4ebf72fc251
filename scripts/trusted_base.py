"""Measures how much of our code each verifier loads: what a person trusts who believes its verdict.

Each verifier runs on a small real input in a process of its own. Counted are the lines of code of every module of ours
that is loaded when it ends, without blank lines, comments and docstrings, without the command line around it, and
without what puts a verdict into words.

Usage: python scripts/trusted_base.py [NAME]    the table of all verifiers, or the modules of one
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OURS: Final = "tallystick"
AROUND: Final = ("tallystick.cli", "tallystick.presentation")
"""The command line, and what puts a verdict into words: no verifier reaches them."""
TEXT: Final = "\n".join(f"Notch {number}: both halves of the stick show {number * number}." for number in range(90))
RECIPE: Final = """
[data]
kind = "text"
path = "text.txt"
validation = 8
[model]
architecture = "llama"
[model.config]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
max_position_embeddings = 128
tie_word_embeddings = true
[optimizer]
kind = "adamw"
learning_rate = 3e-3
[training]
steps = 4
batch = 2
sequence = 16
seed = 11
[record]
anchor_stride = 2
summaries = ["exact"]
"""
OPERATOR: Final = "aten.mm.default"
"""What the referee rules on: a matrix product, in which nearly all arithmetic of a model lies."""


@dataclass(frozen=True)
class Verifier:
    """A verifier as a person runs it in the folder of inputs, and the most lines it may load, as the README says."""

    name: str
    command: str
    budget: int


VERIFIERS: Final = {
    each.name: each
    for each in (
        Verifier("receipt", "verify-response receipt.json --model model --rung 2", 4100),
        Verifier("recipe", "audit run --replay recipe --samples 1", 5150),
        Verifier("graph", "audit run --replay graph --samples 1", 10_700),
        Verifier("referee", "referee operator.leaf", 5700),
    )
}


def make_inputs(folder: Path, python: str = sys.executable) -> None:
    """A run of four steps, the model that it trained, a receipt of an answer, and the bundle of one operator."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "tiny.toml").write_text(RECIPE)
    _run(folder, python, __file__, "--make")


def loaded_by(verifier: Verifier, folder: Path, python: str = sys.executable) -> dict[str, int]:
    """Run a verifier on the inputs in `folder`; the lines of code of every module of ours that it loads, by name."""
    out = folder / f"{verifier.name}.modules.json"
    _run(folder, python, __file__, "--loaded", str(out), *verifier.command.split())
    return {name: code_lines(Path(path)) for name, path in json.loads(out.read_text()).items()}


def measure(folder: Path) -> dict[str, int]:
    """The lines that each verifier loads, by its name."""
    return {name: sum(loaded_by(verifier, folder).values()) for name, verifier in VERIFIERS.items()}


def sentence() -> str:
    """What the README says."""
    receipt, recipe, graph, referee = (f"{each.budget:,}" for each in VERIFIERS.values())
    return (
        f"at most {receipt} lines to verify an answer up to its fingerprints, {recipe} to audit a run by its recipe, "
        f"{graph} to audit it from its graph, and {referee} to rule on one operator"
    )


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    text = path.read_text()
    prose = {line for node in ast.walk(ast.parse(text)) for line in _docstring_lines(node)}
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in prose
        for number, line in enumerate(text.splitlines(), 1)
    )


def _docstring_lines(node: ast.AST) -> range:
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        first = body[0]
        return range(first.lineno, (first.end_lineno or first.lineno) + 1)
    return range(0)


def _run(folder: Path, *arguments: str) -> None:
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")


def _make() -> None:
    """In a process of its own, which loads PyTorch once: everything that the verifiers of this folder read."""
    _tally("train tiny.toml --out run --threads 1")
    _tally("export-model run model")
    _tally("open run --step 1 --operators --out opening")
    nodes = json.loads(Path("opening", "graph.json").read_bytes())["nodes"]
    number = next(node["number"] for node in nodes if node["operator"] == OPERATOR)
    _tally(f"referee --make opening --node {number} --out operator.leaf")
    _tally("new-key provider.key")
    _tally("generate model --key provider.key --out answers --prompt Notch --max-tokens 48 --seed 7")
    (receipt,) = Path("answers", "receipts.jsonl").read_text().splitlines()
    Path("receipt.json").write_text(receipt)


def _tally(command: str) -> None:
    from tallystick.cli.entry import run

    if code := run(command.split()):
        raise SystemExit(f"{command}: exit code {code}")


def _run_and_list(out: Path, arguments: list[str]) -> int:
    """In a process of its own: run one command, and write down which modules of ours it loaded."""
    from tallystick.cli.entry import run

    code = run(arguments)
    modules = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    ours = {
        name: path
        for name, path in modules.items()
        if path and name.partition(".")[0] == OURS and not name.startswith(AROUND)
    }
    out.write_text(json.dumps(ours))
    return code


def main(names: list[str]) -> None:
    """Print the table, or the modules of one verifier."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_inputs(folder)
        if names:
            for name, lines in sorted(loaded_by(VERIFIERS[names[0]], folder).items()):
                print(f"{lines:6} {name}")
            return
        for name, lines in measure(folder).items():
            print(f"{name:8} {lines:7,} of {VERIFIERS[name].budget:,}   tally {VERIFIERS[name].command}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loaded"]:
        sys.exit(_run_and_list(Path(sys.argv[2]), sys.argv[3:]))
    elif sys.argv[1:] == ["--make"]:
        _make()
    else:
        main(sys.argv[1:])
