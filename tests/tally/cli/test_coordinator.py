"""`tally coordinator`: what is shown of a database, and what is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from tests.tally.cli.test_parties import DisputeSetup

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


def test_a_coordinator_for_trying_comes_with_keys_money_and_what_to_paste(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tally("coordinator", "init", "--demo")
    assert (result.code, len(result.out.splitlines())) == (0, 2)
    assert "For trying only" in result.err
    assert "keys of all parties lie in court/" in result.err
    for line in result.err.splitlines():
        for option in ("--key", "--coordinator"):
            assert option not in line or (tmp_path / line.split(f"{option} ")[1].split()[0]).is_file()
    purses = json.loads(tally("coordinator", "show", "--db", "court/court.db", "--json").out)["purses"]
    assert list(purses.values()) == [2_000_000] * 3
    assert {(each.stat().st_mode & 0o777) for each in (tmp_path / "court").glob("*.key")} == {0o600}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--demo", "--referee", "ab" * 32), "--referee: --demo brings its own rules and keys"),
        (("--demo", "--db", "postgresql://somewhere/court"), "kept in a file"),
        ((), "--demo sets one up for trying"),
    ],
    ids=["rules", "server", "nothing"],
)
def test_a_coordinator_for_trying_is_set_up_by_one_option(
    tally: Tally, tmp_path: Path, options: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tally("coordinator", "init", *options)
    assert (result.code, said in result.complaint) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_what_was_set_up_for_trying_is_not_overwritten(tally: Tally, tmp_path: Path) -> None:
    assert tally("coordinator", "init", "--demo", "--db", tmp_path / "a" / "court.db").code == 0
    kept = (tmp_path / "a" / "lab.key").read_text()
    result = tally("coordinator", "init", "--demo", "--db", tmp_path / "a" / "other.db")
    assert (result.code, result.complaint) == (
        2,
        f"tally: {tmp_path}/a/lab.key: there is a file already; choose another folder with --db FOLDER/court.db",
    )
    assert (tmp_path / "a" / "lab.key").read_text() == kept
