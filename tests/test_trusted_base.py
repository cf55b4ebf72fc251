from __future__ import annotations

import runpy
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TRUSTED_BASE = runpy.run_path(str(REPOSITORY / "scripts" / "trusted_base.py"))


def test_the_readme_states_how_many_lines_a_verifier_trusts() -> None:
    stated = TRUSTED_BASE["sentence"](TRUSTED_BASE["measure"]())
    readme = " ".join((REPOSITORY / "README.md").read_text().split())
    assert stated in readme, f"scripts/readme_example.sh brings it up to date: {stated}"


def test_an_audit_rests_on_the_code_that_checks_proofs_and_on_nothing_that_records_or_attacks() -> None:
    modules = TRUSTED_BASE["reachable"]("tallystick.audits")
    assert "tallystick.commitments.tree" in modules
    assert not [name for name in modules if name.startswith(("tallystick.recorders", "tallystick.attacks"))]


def test_blank_lines_comments_and_docstrings_do_not_count(tmp_path: Path) -> None:
    source = tmp_path / "code.py"
    source.write_text(
        '"""Prose\nover two lines."""\n\n# a comment\nanswer = 42\n\ndef f():\n    """Prose."""\n    return answer\n'
    )
    assert TRUSTED_BASE["code_lines"](source) == 3


def test_operators_that_are_loaded_by_name_count_and_types_alone_do_not() -> None:
    reached = TRUSTED_BASE["reachable"]("tallystick.graphs.admission")
    assert {"tallystick.operators.aten.softmax", "tallystick.operators.tally.sampling"} <= reached
    assert "tallystick.graphs.drawing" not in reached
    assert "tallystick.graphs.template" not in reached
