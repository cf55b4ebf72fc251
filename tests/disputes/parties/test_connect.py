"""Coordinators by their names: a database, a URL, a contract; and where data lies."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("fastapi")

from tallystick.core.errors import RuleError, UnavailableError, UsageError
from tallystick.core.http.server import served
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.coordinators.local.server import create_app
from tallystick.disputes.game.moves import Withdraw
from tallystick.disputes.game.state import Rules
from tallystick.disputes.parties.connect import NoBoard, connected
from tallystick.formats.signing import SigningKey

RULES = Rules(treasury="1" * 64)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    SigningKey.generate().write(tmp_path / "key")
    return tmp_path / "key"


@pytest.mark.parametrize("kind", ["database", "url"])
def test_a_coordinator_is_reached_by_its_name(tmp_path: Path, key: Path, kind: str) -> None:
    with closing(LocalCoordinator.create(tmp_path / "x.db", RULES)) as place, served(create_app(place)) as url:
        public = SigningKey.read(key).public
        place.grant(public, 1)
        with connected(url if kind == "url" else str(tmp_path / "x.db"), key) as found:
            assert (found.coordinator.rules, found.coordinator.party) == (RULES, public)
            assert found.identity == place.identity
            assert found.board.get(found.board.put(b"data")) == b"data"
            with pytest.raises(RuleError):
                found.coordinator.submit(Withdraw(actor=public))


def test_without_a_key_one_can_look(tmp_path: Path) -> None:
    LocalCoordinator.create(tmp_path / "x.db", RULES).close()
    with connected(str(tmp_path / "x.db")) as found:
        assert found.coordinator.entries() == []


def test_everybody_has_a_folder_of_their_own(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folders = set()
    for name in ("a.db", "b.db"):
        LocalCoordinator.create(tmp_path / name, RULES).close()
        for who in (key, None):
            with connected(str(tmp_path / name), who) as found:
                folders.add(found.folder())
    assert len(folders) == 4
    assert all(folder.is_relative_to(tmp_path / "state/tallystick/disputes") for folder in folders)


def test_data_may_lie_elsewhere(tmp_path: Path, key: Path) -> None:
    LocalCoordinator.create(tmp_path / "x.db", RULES).close()
    (tmp_path / "board").mkdir()
    with connected(str(tmp_path / "x.db"), key, board=str(tmp_path / "board")) as found:
        name = found.board.put(b"data")
    with connected(str(tmp_path / "x.db"), key, board=str(tmp_path / "board")) as found:
        assert found.board.get(name) == b"data"
    with connected(str(tmp_path / "x.db"), key) as found, pytest.raises(UnavailableError):
        found.board.get(name)


def test_what_cannot_be_reached_is_told(tmp_path: Path, key: Path) -> None:
    with pytest.raises(UnavailableError), connected(str(tmp_path / "none.db"), key):
        pass
    with pytest.raises(UsageError, match="new-key"), connected(str(tmp_path / "none.db"), tmp_path / "none"):
        pass
    with pytest.raises(UsageError), connected("ethereum:nothing", None):
        pass
    with pytest.raises(UsageError, match="--board"):
        NoBoard().put(b"")
    with pytest.raises(UsageError, match="--board"):
        NoBoard().get(RULES.identity)
