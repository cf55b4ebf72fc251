"""How much of our code each verifier can reach, whatever its input."""

from __future__ import annotations

import runpy
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TRUSTED_BASE = runpy.run_path(str(REPOSITORY / "scripts" / "trusted_base.py"))


def test_the_readme_states_how_many_lines_a_verifier_trusts_at_most() -> None:
    readme = " ".join((REPOSITORY / "README.md").read_text().split())
    assert TRUSTED_BASE["sentence"]() in readme


def test_imports_inside_functions_and_tables_count_and_those_for_types_do_not() -> None:
    graph = TRUSTED_BASE["imports_of"]("tallystick.audits.checked_run")
    assert "tallystick.audits.step_graphs" in graph
    assert "tallystick.audits.tolerant" not in TRUSTED_BASE["imports_of"]("tallystick.audits.replay")  # for types
    assert "tallystick.programs.operators.aten.activation" in TRUSTED_BASE["imports_of"](
        "tallystick.programs.operators.definition"
    )


def test_blank_lines_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text(
        '"""Prose\nover two lines."""\n\n# a comment\nanswer = 42\n\ndef f():\n    """Prose."""\n    return answer\n'
    )
    assert TRUSTED_BASE["code_lines"](source) == 3
