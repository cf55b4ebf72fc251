"""Every remedy that a message of a recorder, a capture or an audit names stands in a test that applies it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "src" / "tallystick"
SOURCES: Final = (
    *("recording", "audits"),
    *(f"engines/torch/{part}" for part in ("capture", "watching", "training", "optimizers.py")),
)
ELSEWHERE: Final = ("audits/answers", "audits/differences", "audits/report_page.py", "recording/serving")
"""Judges of answers, differences and pages, and servers: their messages name what a customer or an operator does."""
TESTS: Final = ("recording", "audits", "tally", "engines", "formats/data", "research")
VERBS: Final = (
    "add|approve|ask|call|change|choose|clip|compute|convert|divide|draw|end|give|install|keep|leave|load|make|multiply|"
    "name|pad|pass|put|read|record|replay|resume|run|scale|select|set|state|step|take|tell|train|turn|use|write"
)
CLAUSE: Final = re.compile(rf"(?:^|; |: |, or |, and |\(|— )((?:{VERBS}) [^;()]+)")
APPLIED: Final = {
    "train in one": "recording/test_huggingface.py::test_a_trainer_is_recorded_and_replayed_from_its_graph_bit_for_bit",
    "turn dropout off": "recording/test_seeded_draws.py::test_a_step_that_draws_from_a_seed_is_replayed",
    "turn that off, or": "recording/test_seeded_draws.py::test_a_step_that_draws_from_a_seed_is_replayed",
    "give the corpus with": "audits/test_rows.py::test_the_rows_are_made_again_from_the_corpus",
    "give the directory of": "audits/test_first_weights.py::test_a_recipe_goes_on_from_an_earlier_run",
    "replay on the stack": "audits/test_training.py::test_an_honest_run_is_accepted_whatever_the_nonce",
    "resume it on the": "recording/test_resume.py::test_only_the_claim_is_missing",
    "read `tally graph diff": "tally/cli/test_graph.py::test_diff",
}
"""Remedies that a test applies without their words."""
NOT_APPLIED: Final = {
    "load the model with": "attention of kernels that no graph holds, on CUDA alone",
    "add disable_compile=True": "generation with compiled passes, on CUDA alone",
    "name it": "a corpus that the command asks for before the recorder does",
    "name the file to": "data that the command asks for before the recorder does",
    "name their directory": "weights that the command asks for before the recorder does",
    "replay the recipe": "libraries of another version that capture another graph",
}
"""Remedies that no test applies, and why."""
NO_REMEDY: Final = frozenset({"end of the run", "state exact", "state names", "step graph of the", "step order"})
"""The beginnings of what only looks like one."""


@cache
def text_of_tests() -> str:
    """What stands in the tests, without how lines are broken and characters are escaped."""
    files = (path for part in TESTS for path in sorted((ROOT / "tests" / part).rglob("*.py")))
    text = " ".join(path.read_text("utf-8") for path in files)
    return re.sub(r"\s+", " ", re.sub(r"\\([.()\[\]])", r"\1", re.sub(r'"\s*\n\s*[rf]?"', "", text)))


def clauses() -> Iterator[tuple[str, str]]:
    """The remedies in the literals of our sources, each with its place."""
    for part in SOURCES:
        for path in sorted((PACKAGE / part).rglob("*.py")) or [PACKAGE / part]:
            if path.relative_to(PACKAGE).as_posix().startswith(ELSEWHERE):
                continue
            tree = ast.parse(path.read_text("utf-8"))
            within = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
            within |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in within:
                    for clause in CLAUSE.findall(words_of(node)):
                        yield clause, f"{path.relative_to(ROOT)}:{node.lineno}"


def words_of(node: ast.Constant | ast.JoinedStr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = ("{}" if not isinstance(part, ast.Constant) else str(part.value) for part in parts)
    return "".join(words) if isinstance(node, ast.JoinedStr) or isinstance(node.value, str) else ""


def beginning(clause: str) -> str:
    """As much of a remedy as no number and no name interrupts, four words at most."""
    return " ".join(re.split(r"[{…]", clause)[0].rstrip(" ,.").split()[:4])


FOUND: Final = sorted(
    {
        first: place for clause, place in clauses() if " " in clause and (first := beginning(clause)) not in NO_REMEDY
    }.items()
)


@pytest.mark.parametrize(("remedy", "place"), FOUND, ids=[remedy for remedy, _ in FOUND])
def test_a_remedy_that_is_named_stands_in_a_test(remedy: str, place: str) -> None:
    assert remedy in APPLIED or remedy in NOT_APPLIED or remedy in text_of_tests(), place


def test_what_is_said_of_remedies_is_so() -> None:
    assert len(FOUND) > 60
    assert {*APPLIED, *NOT_APPLIED, *NO_REMEDY} <= {beginning(clause) for clause, _ in clauses()}
    for file, _, name in (each.partition("::") for each in APPLIED.values()):
        assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8")
