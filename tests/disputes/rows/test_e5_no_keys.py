"""E5: nobody holds a key that changes the rules: what can be asked of the contract are the moves, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tallystick.disputes.game.game import TRANSITIONS

ROOT = Path(__file__).parents[3]
ABI = json.loads((ROOT / "src/tallystick/disputes/coordinators/ethereum/Coordinator.json").read_text())["abi"]
SOURCES = {path.name: path.read_text() for path in sorted((ROOT / "contracts" / "src").glob("*.sol"))}
ESCAPES = re.compile(r"\b(delegatecall|callcode|selfdestruct|suicide|tx\.origin|SELFDESTRUCT|DELEGATECALL)\b")


def changing(abi: list[dict[str, Any]]) -> set[str]:
    """The functions of a contract that can change something."""
    functions = (each for each in abi if each["type"] == "function")
    return {each["name"] for each in functions if each["stateMutability"] not in ("view", "pure")}


def test_e5_the_contract_takes_moves_and_moves_that_were_signed_for_it() -> None:
    assert changing(ABI) == {*TRANSITIONS, "relay"}


def test_e5_twin_a_contract_with_another_door_is_noticed() -> None:
    door = {"type": "function", "name": "setReferee", "stateMutability": "nonpayable"}
    assert changing([*ABI, door]) - {*TRANSITIONS, "relay"} == {"setReferee"}


@pytest.mark.parametrize("name", SOURCES)
def test_e5_no_code_runs_in_the_place_of_the_contracts_own(name: str) -> None:
    assert ESCAPES.findall(SOURCES[name]) == []


def test_e5_rules_are_set_when_the_contract_is_made() -> None:
    declared = re.findall(r"^\s+\w+ (?:internal|public|private) (\w+)?.*;", SOURCES["Rulebook.sol"], re.MULTILINE)
    assert declared
    assert {each for each in declared if each in ("immutable", "constant")} == {"immutable"}
