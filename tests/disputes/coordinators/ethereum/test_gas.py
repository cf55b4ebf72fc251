"""No function has become dearer, or cheaper, without the figures saying so; and none can be made too dear to call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.digests import Hash
from tallystick.core.errors import UnavailableError
from tallystick.disputes.coordinators.ethereum.encoding import ARTEFACT
from tallystick.disputes.game.game import TRANSITIONS
from tallystick.disputes.game.state import LEAVES_MAX, WAYS_MAX, Rules
from tests.disputes.coordinators.ethereum.deployed import Deployed
from tests.disputes.coordinators.ethereum.gas import NODE_OPTIONS, SteadyChain, measure
from tests.disputes.coordinators.ethereum.operator_trees import DeepTree
from tests.disputes.coordinators.ethereum.play import Play
from tests.support.ethereum_node import LocalNode, running_node

RECORD = Path(__file__).parents[4] / "docs" / "data" / "gas.json"
TOLERANCE = 0.03
"""Addresses and hashes have more or fewer zero bytes, and a draw takes other members."""
MANY_MEMBERS = 200
"""The rules allow 255, which is more than a contract can be founded with in one transaction of this size."""
TRANSACTION_GAS_MAX = 16_777_216  # EIP-7825


@pytest.fixture(scope="module")
def node(loopback_only: None) -> Iterator[LocalNode]:
    try:
        with running_node(*NODE_OPTIONS) as found:
            yield found
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def record() -> Any:
    return json.loads(RECORD.read_bytes())


def test_the_figures_are_about_this_contract(record: Any) -> None:
    artefact = json.loads(ARTEFACT.read_bytes())
    assert record["contract"] == sha256(bytes.fromhex(artefact["bytecode"])).hexdigest()
    assert {cost["function"] for cost in record["costs"]} == TRANSITIONS.keys() | {"founding"}


def test_every_function_costs_what_is_written_down(node: LocalNode, record: Any) -> None:
    """`python -m research.gas_report` writes it down anew."""
    written = {(cost["function"], cost["case"]): cost["gas"] for cost in record["costs"]}
    found = {(cost.function, cost.case): cost.gas for cost in measure(node)}
    assert found.keys() == written.keys()
    assert differing(written, found) == {}


def test_another_figure_is_noticed() -> None:
    written, found = {("post", ""): 100_000}, {("post", ""): 103_500}
    assert differing(written, found) == found
    assert differing(written, {("post", ""): 102_500}) == {}


def test_the_widest_cut_of_the_deepest_tree_fits_into_a_transaction(node: LocalNode) -> None:
    prover, challenger = (str(each).lower() for each in node.web3.eth.accounts[:2])
    play = Play(Deployed(SteadyChain(node), Rules(treasury=prover, ways=WAYS_MAX)), prover, challenger)
    tree = DeepTree(LEAVES_MAX, Hash(bytes(range(32))))
    dispute = play.contest(play.post(tree, levels=1))
    play.partition(dispute, tree)
    assert len(play.dispute(dispute).cuts) == WAYS_MAX - 1
    assert play.contract.gas < TRANSACTION_GAS_MAX / 4


def test_many_members_can_be_founded_and_drawn_from(node: LocalNode) -> None:
    """All are asked whether they can be drawn, even where none of them has enlisted."""
    prover, challenger = (str(each).lower() for each in node.web3.eth.accounts[:2])
    members = tuple("0x" + (10**9 + number).to_bytes(20).hex() for number in range(MANY_MEMBERS))
    play = Play(Deployed(SteadyChain(node), Rules(treasury=prover, members=members)), prover, challenger)
    assert play.contract.founding_gas < TRANSACTION_GAS_MAX
    dispute = play.contest(play.post(DeepTree(1, Hash(bytes(32))), levels=1))
    play.reveal(dispute, DeepTree(1, Hash(bytes(32))))
    play.convene(dispute)
    assert play.contract.gas < TRANSACTION_GAS_MAX / 4


def differing(written: dict[Any, int], found: dict[Any, int]) -> dict[Any, int]:
    return {name: gas for name, gas in found.items() if abs(gas - written[name]) > TOLERANCE * written[name]}
