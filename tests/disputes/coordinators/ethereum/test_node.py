"""A local node starts, can be moved in time and back, and is gone with its context."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.core.errors import UnavailableError
from tests.support import ethereum_node as module
from tests.support.ethereum_node import ENVIRONMENT_NAME, LocalNode, find_anvil, running_node


def test_time_passes_and_blocks_can_be_undone(anvil: LocalNode) -> None:
    before, start = anvil.web3.eth.get_block("latest"), anvil.snapshot()
    anvil.advance(1000)
    anvil.mine(3)
    after = anvil.web3.eth.get_block("latest")
    assert after["number"] == before["number"] + 4
    assert after["timestamp"] >= before["timestamp"] + 1000
    anvil.revert(start)
    assert anvil.web3.eth.block_number == before["number"]


def test_a_refused_question_is_one_line(anvil: LocalNode) -> None:
    with pytest.raises(UnavailableError, match="refuses tally_nothing"):
        anvil.ask("tally_nothing")


def test_the_node_ends_with_its_context(anvil: LocalNode, loopback_only: None) -> None:
    with running_node("--accounts", "3") as node:
        assert len(node.web3.eth.accounts) == 3
        assert node.process.poll() is None
    assert node.process.poll() is not None
    assert not node.web3.is_connected()


def test_a_node_that_does_not_start_is_one_line(anvil: LocalNode) -> None:
    with pytest.raises(UnavailableError, match="did not start"), running_node("--no-such-option"):
        pass


def test_the_environment_names_the_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = tmp_path / "anvil"
    binary.touch()
    monkeypatch.setenv(ENVIRONMENT_NAME, str(binary))
    assert find_anvil() == binary


def test_without_a_binary_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ENVIRONMENT_NAME, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "__file__", str(tmp_path / "a/b/c/node.py"))
    with pytest.raises(UnavailableError, match="npm ci"):
        find_anvil()
