"""The glossary defines every name that a report prints, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from tallystick.audits.tolerant import GROUPS
from tallystick.disputes.game.state import Phase, Status
from tallystick.formats.records import StateSummary
from tallystick.verdicts.leaf.request import Ground
from tallystick.verdicts.properties import PROPERTIES
from tallystick.verdicts.verdict import Fault, Outcome

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tallystick"
PAGE = ROOT / "docs" / "glossary.md"
NAMED_AT = {
    "check": (0, "name"),  # of Findings
    "note": (1, "check"),
    "Finding": (2, "name"),
    "agrees": (0, "check"),
    "differs": (0, "check"),
    "compare": (1, "name"),  # of a receipt
    "timing": (0, "check"),
    "judging": (0, "check"),
    "read_named": (3, "noun"),  # of a file that a claim names
    "_noted": (1, "name"),  # of a leaf
    "_worst": (0, "name"),  # of a residual
    "compared": (2, "check"),  # of fingerprints and states
    "typical": (2, "name"),
}
"""The calls that name a check: the function, and the place and the keyword of the name."""
JUDGES = (
    *("audits", "disputes/evidence", "engines/torch/generation", "tally/cli/models.py"),
    *("verdicts/operator", "verdicts/opening", "verdicts/leaf"),
    *("verdicts/verdict.py", "verdicts/properties.py", "verdicts/first_weights.py"),
)
"""What makes findings that are printed under the name that they were given; tolerances are named by who asks them."""
COMPOSED = {
    "f'{name} summary'",
    "f'{mode} summary'",
    "f'{group} {finding.name}'",
    "f'state {tolerance.name}'",
    "finding.name.replace('-', ' ')",
}
"""The expressions that put a name together; `composed` says which names they give."""
RENAMED = {"undetermined"}
"""What is noted under another name than it was given, so that no report prints it."""


def files(*places: str) -> Iterator[Path]:
    for place in places:
        yield from [PACKAGE / place] if place.endswith(".py") else sorted((PACKAGE / place).rglob("*.py"))


def expressions(code: str) -> Iterator[ast.expr]:
    """The expressions with which `code` names checks."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in NAMED_AT:
                place, keyword = NAMED_AT[called]
                yield from node.args[place : place + 1]
                yield from (each.value for each in node.keywords if each.arg == keyword)


def constants(code: str) -> dict[str, str]:
    """The texts that `code` gives a name to."""
    return {
        ast.unparse(node.target): node.value.value
        for node in ast.parse(code).body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def names_in(code: str) -> set[str]:
    """The names of checks that `code` writes out, or keeps in a constant."""
    kept = constants(code)
    found = {
        kept.get(each.id) if isinstance(each, ast.Name) else getattr(each, "value", "") for each in expressions(code)
    }
    return {name for name in found if isinstance(name, str) and name}


def named_in(*places: str) -> set[str]:
    return {name for path in files(*places) for name in names_in(path.read_text())} - RENAMED


def composed() -> set[str]:
    """The names that are put together when they are printed."""
    residuals = named_in("verdicts/distances.py") - {"bias", "projection"}
    screens = named_in("verdicts/reach.py")
    return {
        *(f"{name} summary" for name in StateSummary.model_fields),
        *(f"{group} {name}" for group in GROUPS for name in residuals),
        *(name.replace("-", " ") for name in screens),
        *PROPERTIES,
        "state NAME",
    }


def entries(heading: str, page: str) -> set[str]:
    """The names that the sections under such headings define."""
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    lines = [
        line for each in sections if re.match(heading, each) for line in re.findall(r"^\* (.*)$", each, re.MULTILINE)
    ]
    return {name for line in lines for name in re.findall(r"\*\*([^*]+)\*\*", line)}


def test_every_check_is_in_the_glossary_and_nothing_else_is() -> None:
    assert entries("Checks", PAGE.read_text()) == named_in(*JUDGES) | composed()


def test_no_name_is_put_together_in_a_way_that_is_not_known_here() -> None:
    found = {
        ast.unparse(each)
        for path in files(*JUDGES)
        for each in expressions(path.read_text())
        if isinstance(each, ast.JoinedStr) or "name.replace" in ast.unparse(each)
    }
    assert found <= COMPOSED


@pytest.mark.parametrize(
    ("heading", "names"),
    [("Verdicts", get_args(Outcome)), ("Disputes", [*Status, *Phase, *Fault, *Ground])],
)
def test_every_outcome_is_in_the_glossary_and_nothing_else_is(heading: str, names: list[str]) -> None:
    assert entries(heading, PAGE.read_text()) == set(map(str, names))


def test_the_page_of_a_report_says_where_its_names_are_defined() -> None:
    template = (PACKAGE / "audits" / "templates" / "report.html").read_text()
    assert PAGE.relative_to(ROOT).as_posix() in template


def test_a_name_that_is_missing_or_made_up_is_seen() -> None:
    page = "## Checks of x\n\n* **a**, **b**: both.\n  And **c**.\n\n## Other\n\n* **d**: no.\n"
    assert entries("Checks", page) == {"a", "b"}
    code = 'ONE: Final = "one"\nwith notes.check("two"):\n    notes.note(Finding(1.0, 0.0, ONE), check="three")\n'
    assert names_in(code) == {"one", "two", "three"}
