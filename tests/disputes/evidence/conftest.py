"""What these tests share: one honest run with a step graph, and honest calls of a small network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def scene(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An honest run and honest calls. Never write into them."""
    pytest.importorskip("torch")
    from tests.support.attacks.disputes.scene import Scene

    return Scene.make(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """Where a rehearsal lays what the prover opens."""
    return tmp_path / "board"
