"""The screens let honest states of any size pass, and none of the forged ones; the page is made of the same rows."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("torch")
SCRIPT = runpy.run_path(str(ROOT / "research" / "screens_at_scale.py"))


def check(rows):
    honest = [row.agrees for row in rows if row.state.startswith("honest")]
    forged = [row.agrees for row in rows if not row.state.startswith("honest")]
    assert len(honest) == 5
    assert all(honest)
    assert len(forged) == 4
    assert not any(forged)


def test_a_million_weights(tmp_path):
    check(list(SCRIPT["rows"](tmp_path, 10**6)))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("elements", [10**8, 10**9])
def test_as_many_weights_as_models_have(tmp_path, elements):
    check(list(SCRIPT["rows"](tmp_path, elements)))


def test_the_page_is_made_of_the_figures():
    held = json.loads((ROOT / "docs/data/screens.json").read_text())
    rows = [SCRIPT["Row"](**row) for row in held["rows"]]
    for elements in SCRIPT["SIZES"]:
        check([row for row in rows if row.elements == elements])
    assert (ROOT / "docs/screens.md").read_text() == SCRIPT["page"](rows, held["machine"])
