"""How much of our code each verifier loads, measured by running it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.prefork.commands import commands

REPOSITORY = Path(__file__).resolve().parent.parent
TRUSTED_BASE = runpy.run_path(str(REPOSITORY / "scripts" / "trusted_base.py"))
VERIFIERS = TRUSTED_BASE["VERIFIERS"]
Loaded = Callable[[str], dict[str, int]]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The modules that a verifier loads on its small input, with their lines; each is run once."""
    folder = tmp_path_factory.mktemp("inputs")
    python = str(commands() / "python")
    TRUSTED_BASE["make_inputs"](folder, python)
    return cache(lambda name: TRUSTED_BASE["loaded_by"](VERIFIERS[name], folder, python))


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_verifier_loads_no_more_than_its_budget(loaded: Loaded, name: str) -> None:
    modules = loaded(name)
    lines = sum(modules.values())
    largest = sorted(modules.items(), key=lambda each: -each[1])[:20]
    assert lines <= VERIFIERS[name].budget, f"{lines} lines; `scripts/trusted_base.py {name}` lists them: {largest}"


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_verifier_loads_nothing_that_records_attacks_or_serves(loaded: Loaded, name: str) -> None:
    folders = {module.split(".")[1] for module in loaded(name) if "." in module}
    assert not folders & {"recorders", "attacks", "serving", "calibration"}
    assert "commitments" in folders


def test_the_readme_states_how_many_lines_a_verifier_trusts_at_most() -> None:
    readme = " ".join((REPOSITORY / "README.md").read_text().split())
    assert TRUSTED_BASE["sentence"]() in readme


def test_blank_lines_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text(
        '"""Prose\nover two lines."""\n\n# a comment\nanswer = 42\n\ndef f():\n    """Prose."""\n    return answer\n'
    )
    assert TRUSTED_BASE["code_lines"](source) == 3
