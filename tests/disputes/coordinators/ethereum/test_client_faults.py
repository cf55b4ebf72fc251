"""RPC servers that fail, lag and lie: nothing false is believed, and one honest server now and then is enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.core.errors import UnavailableError
from tallystick.disputes.coordinators.ethereum import endpoints
from tallystick.disputes.coordinators.ethereum.client import EthereumCoordinator
from tallystick.disputes.coordinators.ethereum.endpoints import ANSWER_BYTES_MAX, RetryRules
from tallystick.disputes.game.moves import Move
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.ethereum.chain_game import SMALL, ChainGame, is_settled
from tests.disputes.coordinators.ethereum.chains import (
    KEYS,
    QUICK,
    Ask,
    Chain,
    Proxy,
    claim,
    contest,
    honest,
    running_chain,
)

Spoil = Callable[[str, list[Any], Ask], Any]


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_chain(tmp_path) as found:
        yield found


def through(chain: Chain, stack: ExitStack, role: str, *spoils: Spoil | None, **settings: Any) -> EthereumCoordinator:
    """A connection through proxies that spoil answers; `None` stands for the honest node itself."""
    urls = [stack.enter_context(Proxy(chain.node.url, each)).url if each else chain.node.url for each in spoils]
    return chain.anew(role, replace(chain.settings, **settings), *urls)


def late(seconds: float) -> Spoil:
    def spoil(method: str, parameters: list[Any], ask: Ask) -> Any:
        time.sleep(seconds)
        return ask()

    return spoil


def hang_up(method: str, parameters: list[Any], ask: Ask) -> Any:
    return None


def fail(method: str, parameters: list[Any], ask: Ask) -> Any:
    return {"jsonrpc": "2.0", "id": 0, "error": {"code": -32005, "message": "limit exceeded\x1b[31m"}}


def babble(method: str, parameters: list[Any], ask: Ask) -> Any:
    return b"<html>502 Bad Gateway</html>"


def say_nothing(method: str, parameters: list[Any], ask: Ask) -> Any:
    return {"jsonrpc": "2.0", "id": 0}


def nest(method: str, parameters: list[Any], ask: Ask) -> Any:
    return b"[" * 100_000


def give_wrong_types(method: str, parameters: list[Any], ask: Ask) -> Any:
    return {"jsonrpc": "2.0", "id": 0, "result": [{"number": None, "hash": 7}]}


BROKEN = [hang_up, fail, babble, say_nothing, nest, give_wrong_types]


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda each: each.__name__)
def test_a_broken_server_is_one_clear_line_and_an_honest_one_beside_it_is_enough(chain: Chain, spoil: Spoil) -> None:
    with ExitStack() as stack:
        with pytest.raises(UnavailableError) as failed:
            through(chain, stack, "prover", spoil)
        assert "\x1b" not in str(failed.value)
        assert "\n" not in str(failed.value)
        connection = through(chain, stack, "prover", spoil, None)
        connection.submit(claim(chain))
        chain.final()
        assert len(connection.entries()) == 1


def test_a_server_that_answers_too_late_is_left_alone(chain: Chain) -> None:
    with ExitStack() as stack:
        with pytest.raises(UnavailableError):
            through(chain, stack, "prover", late(1.2), timeout_s=0.4)
        connection = through(chain, stack, "prover", late(1.2), None, timeout_s=0.4)
        assert connection.entries() == ()
        assert through(chain, stack, "prover", late(0.05), timeout_s=60.0).entries() == ()


def test_a_silent_server_is_asked_again_only_after_a_while(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(endpoints, "time", SimpleNamespace(monotonic=lambda: now))
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(chain.node.url))
        connection = chain.anew("prover", None, proxy.url, chain.node.url)
        proxy.spoil = hang_up
        connection.entries()
        asked = len(proxy.asked)
        for _ in range(5):
            connection.submit(claim(chain))
        assert len(proxy.asked) <= asked + 2
        proxy.spoil = honest
        now = 1.1
        connection.entries()
        assert len(proxy.asked) > asked + 2


def test_an_account_without_money_is_one_clear_line(chain: Chain) -> None:
    chain.node.ask("anvil_setBalance", KEYS["prover"].address, "0x1")
    with pytest.raises(UnavailableError, match=r"(?i)insufficient funds"):
        chain.at("prover").submit(claim(chain))
    chain.node.ask("anvil_setBalance", KEYS["prover"].address, hex(10**18))
    chain.at("prover").submit(claim(chain))


def test_an_answer_that_never_ends_is_cut_off(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.disputes.coordinators.ethereum.endpoints.ANSWER_BYTES_MAX", 1 << 20)
    assert ANSWER_BYTES_MAX > 1 << 20

    def flood(method: str, parameters: list[Any], ask: Ask) -> Any:
        return b" " * (1 << 22)

    with ExitStack() as stack, pytest.raises(UnavailableError, match="an answer of more than 1048576 bytes"):
        through(chain, stack, "prover", flood)


# ---- lies


def changed(method: str, change: Callable[[Any], Any]) -> Spoil:
    """Tell the truth, but for one method's results."""

    def spoil(asked: str, parameters: list[Any], ask: Ask) -> Any:
        answer = ask()
        if asked != method or "result" not in answer:
            return answer
        return {**answer, "result": change(deepcopy(answer["result"]))}

    return spoil


def only_moves(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
    """Change what is said about moves, and not about the founding."""
    return lambda logs: change(logs) if logs and len(logs[0]["topics"]) == 3 else logs


def with_field(logs: list[Any], field: str, value: str) -> list[Any]:
    return [{**logs[0], field: value}, *logs[1:]]


def forged(logs: list[Any]) -> list[Any]:
    """The first move by somebody else."""
    topics = logs[0]["topics"]
    return [{**logs[0], "topics": [*topics[:2], "0x" + "00" * 12 + KEYS["guardian"].address[2:]]}, *logs[1:]]


def repeated(logs: list[Any]) -> list[Any]:
    return [logs[0], *logs]


def another_time(logs: list[Any]) -> list[Any]:
    return with_field(logs, "data", "0x" + f"{1:064x}" + logs[0]["data"][66:])


def another_bond(logs: list[Any]) -> list[Any]:
    data = logs[0]["data"]
    return with_field(logs, "data", data[:66] + f"{7:064x}" + data[130:])


LIES: dict[str, Spoil] = {
    "no move": changed("eth_getLogs", only_moves(lambda logs: [])),
    "not the last move": changed("eth_getLogs", only_moves(lambda logs: logs[:-1])),
    "not the first move": changed("eth_getLogs", only_moves(lambda logs: logs[1:])),
    "a move twice": changed("eth_getLogs", only_moves(repeated)),
    "moves in another order": changed("eth_getLogs", only_moves(lambda logs: logs[::-1])),
    "a move by somebody else": changed("eth_getLogs", only_moves(forged)),
    "a move at another time": changed("eth_getLogs", only_moves(another_time)),
    "a move with another bond": changed("eth_getLogs", only_moves(another_bond)),
    "an event of another contract": changed(
        "eth_getLogs", only_moves(lambda logs: with_field(logs, "address", "0x" + "11" * 20))
    ),
    "a block that is no part of the chain": changed(
        "eth_getLogs", only_moves(lambda logs: with_field(logs, "blockHash", "0x" + "11" * 32))
    ),
    "bytes that are no move": changed(
        "eth_getLogs", only_moves(lambda logs: with_field(logs, "data", logs[0]["data"][:200]))
    ),
    "no sense in views": changed("eth_call", lambda data: data[:-2] + "7f" if len(data) > 2 else data),
}


@pytest.fixture(scope="module")
def contested(loopback_only: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """A chain with a claim and its contest, for tests that only read."""
    with running_chain(tmp_path_factory.mktemp("contested")) as chain:
        chain.at("prover").submit(claim(chain))
        chain.at("challenger").submit(contest(chain))
        chain.final()
        yield chain


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_noticed_and_the_truth_is_had_from_another_server(contested: Chain, lie: str) -> None:
    with ExitStack() as stack:
        with pytest.raises(UnavailableError):
            through(contested, stack, "referee", LIES[lie]).entries()
        connection = through(contested, stack, "referee", LIES[lie], None)
        assert [entry.move.kind for entry in connection.entries()] == ["post", "contest"]


def test_the_line_about_a_lie_names_the_number(chain: Chain) -> None:
    chain.at("prover").submit(claim(chain))
    chain.final()
    with ExitStack() as stack, pytest.raises(UnavailableError, match=r"the number of moves, not \(1,\)"):
        through(chain, stack, "referee", LIES["no move"]).entries()


def test_a_server_that_lags_behind_is_passed_over(chain: Chain) -> None:
    stale = chain.height()
    chain.at("prover").submit(claim(chain))
    chain.final()

    def lag(method: str, parameters: list[Any], ask: Ask) -> Any:
        if method == "eth_getBlockByNumber" and parameters[0] in ("finalized", "latest"):
            return {"jsonrpc": "2.0", "id": 0, "result": chain.node.ask(method, hex(stale), False)}
        return ask()

    with ExitStack() as stack:
        assert through(chain, stack, "referee", lag).entries() == ()
        assert len(through(chain, stack, "referee", lag, None).entries()) == 1
        connection = through(chain, stack, "referee", None, lag)
        assert len(connection.entries()) == len(connection.entries()) == 1


def test_one_server_of_three_cannot_make_the_future_up(chain: Chain) -> None:
    """Two agree on a past; what the third one has on top of it, however consistent, is not believed yet."""
    chain.at("prover").submit(claim(chain))
    chain.final()
    past = chain.height()
    chain.at("challenger").submit(contest(chain))
    chain.final()

    def behind(method: str, parameters: list[Any], ask: Ask) -> Any:
        if method == "eth_getBlockByNumber" and parameters[0] in ("finalized", "latest"):
            number = past - (2 if parameters[0] == "finalized" else 0)
            return {"jsonrpc": "2.0", "id": 0, "result": chain.node.ask(method, hex(number), False)}
        return ask()

    with ExitStack() as stack:
        connection = through(chain, stack, "referee", None, behind, behind)
        assert [entry.move.kind for entry in connection.entries()] == ["post"]
        connection = through(chain, stack, "referee", None, behind, None)
        assert [entry.move.kind for entry in connection.entries()] == ["post", "contest"]


def test_a_server_of_another_chain_is_left_out_and_of_two_nobody_is_believed(
    chain: Chain, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_chain(tmp_path / "other", "--chain-id", "7") as other:
        connection = chain.anew("prover", None, chain.node.url, chain.node.url, other.node.url)
        assert "follows another chain than chain 31337" in caplog.text
        connection.submit(claim(chain))
        chain.final()
        assert len(connection.entries()) == 1
        with pytest.raises(UnavailableError, match="not of chain 31337"):
            chain.anew("prover", None, chain.node.url, other.node.url)


def test_of_two_forks_of_one_chain_the_one_that_most_servers_follow_is_read(chain: Chain, tmp_path: Path) -> None:
    chain.at("prover").submit(claim(chain))
    chain.final()
    with running_chain(tmp_path / "fork") as fork:
        for _ in range(2):
            fork.at("prover").submit(claim(fork))
        fork.node.mine(chain.height())
        assert fork.place.contract == chain.place.contract
        connection = chain.anew("referee", None, chain.node.url, fork.node.url, chain.node.url)
        assert len(connection.entries()) == 1
        with pytest.raises(UnavailableError, match="another chain than most"):
            chain.anew("referee", None, chain.node.url, fork.node.url).entries()


def test_a_claimed_refusal_keeps_nobody_from_moving_while_one_server_is_honest(chain: Chain) -> None:
    def refuse(method: str, parameters: list[Any], ask: Ask) -> Any:
        if method in ("eth_call", "eth_estimateGas") and "value" in parameters[0]:
            return {"jsonrpc": "2.0", "id": 0, "error": {"code": 3, "message": "execution reverted", "data": LATE}}
        return ask()

    with ExitStack() as stack:
        through(chain, stack, "prover", refuse, None).submit(claim(chain))
    chain.final()
    assert len(chain.at("prover").entries()) == 1


LATE = "0x08c379a0" + f"{32:064x}" + f"{4:064x}" + b"late".hex().ljust(64, "0")


def test_a_transaction_that_a_server_swallows_goes_through_another(chain: Chain) -> None:
    def swallow(method: str, parameters: list[Any], ask: Ask) -> Any:
        if method == "eth_sendRawTransaction":
            return {"jsonrpc": "2.0", "id": 0, "result": "0x" + "11" * 32}
        return ask()

    with ExitStack() as stack:
        alone = through(chain, stack, "prover", swallow)
        move = claim(chain)
        alone.submit(move)
        chain.final()
        assert alone.entries() == ()
        through(chain, stack, "prover", swallow, None).submit(move)
        chain.final()
        assert [entry.move for entry in chain.at("prover").entries()] == [move]
        assert chain.transactions("prover") == 2


def test_a_receipt_that_is_made_up_does_not_stop_the_sending(chain: Chain) -> None:
    def make_up(method: str, parameters: list[Any], ask: Ask) -> Any:
        if method == "eth_sendRawTransaction":
            return {"jsonrpc": "2.0", "id": 0, "result": "0x" + "11" * 32}
        if method == "eth_getTransactionReceipt":
            block = chain.node.ask("eth_getBlockByNumber", "latest", False)
            made_up = {"transactionHash": parameters[0], "status": "0x1", "blockNumber": block["number"]}
            made_up |= {"blockHash": block["hash"], "gasUsed": "0x5208", "contractAddress": None}
            return {"jsonrpc": "2.0", "id": 0, "result": made_up}
        return ask()

    with ExitStack() as stack:
        through(chain, stack, "prover", make_up, None).submit(claim(chain))
        chain.final()
        assert len(chain.at("treasury").entries()) == 1


def test_a_dispute_is_won_in_time_though_servers_answer_once_in_a_quarter_of_each_window(tmp_path: Path) -> None:
    """After each move nobody answers for nearly a quarter of the shortest window, whatever is asked."""
    with running_chain(tmp_path) as chain, ExitStack() as stack:
        outage = Outage(chain, seconds=chain.at("treasury").rules.extension // 4 - 10)
        game = ChainGame(chain, after=outage.begin)
        game.urls = (stack.enter_context(Proxy(chain.node.url, outage.spoil)).url,)
        state = game.play(game.prover(SMALL), game.challenger(), game.referee(), until=is_settled, waits=outage.pass_by)
        assert state.disputes[0].fault is Fault.PROVER
        kinds = [entry.move.kind for entry in chain.anew("treasury").entries()]
        assert kinds[-1] == "rule"
        assert outage.refused > len(kinds) == 11
        times = [entry.time for entry in chain.anew("treasury").entries()]
        assert times[-1] - times[0] >= 10 * outage.seconds


@dataclass
class Outage:
    """A server that hangs up on everybody from each move on, until time has passed."""

    chain: Chain
    seconds: int
    refused: int = 0
    is_on: bool = False

    def begin(self, move: Move) -> None:
        self.is_on = True

    def spoil(self, method: str, parameters: list[Any], ask: Ask) -> Any:
        if self.is_on:
            self.refused += 1
            return None
        return ask()

    def pass_by(self) -> None:
        """Everybody waits until the outage is over."""
        self.chain.node.advance(self.seconds)
        self.chain.final()
        self.is_on = False


@pytest.mark.parametrize("seed", range(2))
def test_moves_come_through_servers_that_fail_at_random(tmp_path: Path, seed: int) -> None:
    """Every sixth answer is an error, a hang-up or babble: the moves and the money are as if none were."""
    draws = Random(seed)

    def spoil(method: str, parameters: list[Any], ask: Ask) -> Any:
        return ask() if draws.random() > 1 / 6 else draws.choice(BROKEN)(method, parameters, ask)

    with running_chain(tmp_path) as chain, ExitStack() as stack:
        chain.settings = replace(QUICK, patience=RetryRules(rounds=6, pause_s=0.01))
        game = ChainGame(chain)
        game.urls = (stack.enter_context(Proxy(chain.node.url, spoil)).url,) * 2
        state = game.play(game.prover(SMALL), game.challenger(), game.referee(), until=is_settled)
        assert state.disputes[0].fault is Fault.PROVER
        entries = chain.at("treasury").entries()
        assert len({entry.move.to_bytes() for entry in entries}) == len(entries)
        for role in ("challenger", "referee"):
            assert chain.transactions(role) == sum(each.move.actor == KEYS[role].address for each in entries)
