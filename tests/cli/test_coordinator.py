"""`tally coordinator`: what is shown of a database, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from tests.cli.test_parties import DisputeSetup

Tally = Callable[..., Any]


def test_a_file_of_somebody_else_is_left_alone_and_no_key_beside_it(tally: Tally, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(b"")
    result = tally("coordinator", "init", "--db", other)
    assert (result.code, result.complaint) == (2, f"tally: {other}: there is a file already")
    assert list(tmp_path.iterdir()) == [other]
    assert tally("coordinator", "init", "--db", tmp_path / "own.db").code == 0


def test_an_interrupted_init_goes_on_with_the_key_that_it_left(tally: Tally, tmp_path: Path) -> None:
    tally("new-key", tmp_path / "setup.db.key")
    (tmp_path / "setup.db").write_bytes(b"")
    assert tally("coordinator", "init", "--db", tmp_path / "setup.db").code == 0
    assert tally("coordinator", "init", "--db", tmp_path / "setup.db").code == 2


def test_purses_and_disputes_are_shown_as_the_parties_see_them(tally: Tally, tmp_path: Path) -> None:
    setup = DisputeSetup(tmp_path, tally)
    page = tally("coordinator", "show", "--db", setup.db).out
    assert f"{setup.keys['prover'].public}  2,000,000" in page
    assert "claim " not in page
