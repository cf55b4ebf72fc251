"""kill -9 at every question that a sending program asks its server: started again, it makes its move once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.disputes.coordinators.ethereum.journal import (
    FeeRules,
    GasOffer,
    JournalLockedError,
    Signed,
    TransactionJournal,
    first_offer,
    raised,
)
from tests.disputes.coordinators.ethereum.chains import KEYS, Ask, Chain, Proxy, claim, running_chain

GWEI = 10**9
PROGRAM = """
import json, os, sys
from pathlib import Path
from tallystick.disputes.coordinators.ethereum.keys import EthereumKey
from tallystick.disputes.coordinators.ethereum.client import Settings, connect
from tallystick.disputes.coordinators.ethereum.endpoints import RetryRules
from tallystick.disputes.coordinators.ethereum.sender import SendingRules
from tallystick.disputes.game.moves import read_move

def send(place, secret, folder, move):
    settings = Settings(patience=RetryRules(rounds=1), sending=SendingRules(patience_s=1, poll_s=0.02))
    connection = connect(place, EthereumKey(bytes.fromhex(secret)), Path(folder), settings=settings)
    connection.submit(read_move(move.encode()))

print("ready", flush=True)
for line in sys.stdin:  # one forked program for each line: what it needs is loaded once
    child = os.fork()
    if not child:
        send(*json.loads(line))
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_chain(tmp_path) as found:
        yield found


@contextmanager
def sending_programs() -> Iterator[tuple[TextIO, TextIO]]:
    """The input and output of a process that starts one program for each line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.stdin, process.stdout
    finally:
        process.stdin.close()
        process.stdout.close()
        assert process.wait(120) == 0


class Killer:
    """Kills the program at its n-th question: before the node is asked, or after it has answered."""

    def __init__(self, number: int, is_answered: bool) -> None:
        self.number, self.is_answered = number, is_answered
        self.questions: list[str] = []
        self.child = 0

    def spoil(self, method: str, parameters: list[Any], ask: Ask) -> Any:
        self.questions.append(method)
        if len(self.questions) != self.number:
            return ask()
        if self.is_answered:
            ask()
        os.kill(self.child, signal.SIGKILL)
        return None


def test_a_program_killed_at_any_question_and_started_again_moves_once(chain: Chain) -> None:
    made, number, is_done = 0, 0, False
    with sending_programs() as (orders, answers), Proxy(chain.node.url) as proxy:
        while not is_done:
            number += 1
            for is_answered in (False, True):
                move = claim(chain)
                place, secret = f"{proxy.url}:{chain.place.contract}", KEYS["prover"].secret.hex()
                order = json.dumps([place, secret, str(chain.folder), move.to_bytes().decode()])
                killer = Killer(number, is_answered)
                proxy.spoil = killer.spoil
                orders.write(order + "\n")
                killer.child = int(answers.readline())
                code = int(answers.readline())
                is_done = code == 0
                assert is_done or code == -signal.SIGKILL
                if is_answered:
                    chain.final()  # what was sent is closed as final by the very call that would make it again
                chain.anew("prover").submit(move)
                chain.final()
                made += 1
                entries = chain.anew("prover").entries()
                assert [entry.move for entry in entries[made - 1 :]] == [move]
                assert chain.transactions("prover") == made + 1
    assert number > 8
    assert "eth_sendRawTransaction" in killer.questions


# ---- the journal


def signed(nonce: int, purpose: str = "a move") -> Signed:
    fields = {"to": "0x" + "11" * 20, "data": "0x", "hash": "0x" + "22" * 32, "raw": "0x02"}
    return Signed(nonce=nonce, purpose=purpose, value="0", gas=1, fee_max="2", tip="1", **fields)


def test_a_line_that_was_cut_short_anywhere_was_never_acted_upon(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with TransactionJournal(path).locked(0) as pages:
        pages.sign(signed(1, "first"))
        before = path.read_bytes()
        pages.sign(signed(2, "second"))
    whole = path.read_bytes()
    for length in range(len(before), len(whole)):
        path.write_bytes(whole[:length])
        with TransactionJournal(path).locked(0) as pages:
            assert [pending.last.purpose for pending in pages.pending] == ["first"]
        assert path.read_bytes() == before
    path.write_bytes(whole)
    with TransactionJournal(path).locked(0) as pages:
        assert [pending.last.purpose for pending in pages.pending] == ["first", "second"]


def test_a_journal_that_is_damaged_before_its_last_line_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with TransactionJournal(path).locked(0) as pages:
        pages.sign(signed(1))
        pages.sign(signed(2))
    path.write_bytes(path.read_bytes().replace(b'"nonce":1', b'"nonce":"', 1))
    with pytest.raises(MalformedError, match="journal"), TransactionJournal(path).locked(0):
        pass


def test_one_process_at_a_time_holds_a_journal(tmp_path: Path) -> None:
    journal = TransactionJournal(tmp_path / "journal")
    with (
        journal.locked(0),
        pytest.raises(JournalLockedError, match="another program sends with this key"),
        journal.locked(0.1),
    ):
        pass
    with journal.locked(0) as pages:
        assert pages.pending == ()


def test_a_journal_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UnavailableError, match="journal: "),
        TransactionJournal(tmp_path / "file" / "journal").locked(0),
    ):
        pass


def test_a_closed_number_is_forgotten_and_others_are_kept(tmp_path: Path) -> None:
    with TransactionJournal(tmp_path / "journal").locked(0) as pages:
        for nonce in (1, 2):
            pages.sign(signed(nonce))
        pages.close(1, "final")
    with TransactionJournal(tmp_path / "journal").locked(0) as pages:
        assert [pending.nonce for pending in pages.pending] == [2]
        pages.close(2, "final")
    assert (tmp_path / "journal").read_bytes() == b""


# ---- offers


def test_a_first_offer_lasts_while_the_base_fee_doubles() -> None:
    assert first_offer(10 * GWEI, 2 * GWEI, FeeRules()) == GasOffer(22 * GWEI, 2 * GWEI)
    assert first_offer(10 * GWEI, 0, FeeRules(tip_min=5)) == GasOffer(20 * GWEI + 5, 5)


@pytest.mark.parametrize("tip", [1, 7, GWEI, 3 * GWEI + 1])
def test_a_raised_offer_is_an_eighth_higher_in_both_numbers(tip: int) -> None:
    offer = GasOffer(20 * tip + 3, tip)
    higher = raised(offer, 0, 0, FeeRules())
    assert higher is not None
    assert 8 * higher.tip >= 9 * offer.tip
    assert 8 * higher.fee_max >= 9 * offer.fee_max
    assert higher.tip <= higher.fee_max


def test_offers_stay_below_the_bound_and_follow_the_market() -> None:
    rules = FeeRules(fee_max=30 * GWEI)
    assert first_offer(100 * GWEI, 2 * GWEI, rules) == GasOffer(30 * GWEI, 2 * GWEI)
    assert raised(GasOffer(30 * GWEI, 2 * GWEI), 100 * GWEI, 2 * GWEI, rules) is None
    assert raised(GasOffer(10 * GWEI, GWEI), 12 * GWEI, 2 * GWEI, rules) == GasOffer(26 * GWEI, 2 * GWEI)
