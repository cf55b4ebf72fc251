"""Issuing receipts: their chain survives a crash, one writer at a time, and states are there when somebody asks."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tallystick.attestation.signing import SigningKey, verify_receipt_signature
from tallystick.commitments.digests import digest
from tallystick.errors import MalformedError, ProofError, UnavailableError, UsageError
from tallystick.store.receipts import ReceiptLog, find_receipt, read_receipts, read_states, write_states
from tallystick.tolerances.fingerprints.settings import FingerprintSettings
from tallystick.transcripts.receipt import RECEIPT_BYTES_MAX, Answer, BatchStatement, Request, Tokens
from tallystick.transcripts.sampler import Sampler
from tallystick.workloads.hidden_states import check_states_opening

torch = pytest.importorskip("torch")

from tallystick.recorders.receipts import ReceiptIssuer, RecordSettings, batch_composition  # noqa: E402

KEY = SigningKey(bytes(range(32)))
PROMPT, ANSWER = [5, 6, 7], [8, 9, 10, 11, 12]
FINAL = 2
HELD_BYTES = len(ANSWER) * 32 * 4 + 32
"""One layer of an answer, and the hash of its only leaf."""
FINGERPRINTS = (FingerprintSettings(layers=(0, FINAL), block=2),)


def rows(count: int = len(ANSWER), seed: int = 0) -> dict[int, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {layer: torch.randn(count, 32, generator=generator) for layer in (0, 1, FINAL)}


def issue(issuer: ReceiptIssuer, name: str = "r", **more: Any) -> Any:
    request = Request(id=name, prompt=Tokens.of(PROMPT), max_tokens=9, nonce="00ff")
    answer = Answer(tokens=Tokens.of(ANSWER), finish="end")
    return issuer.issue(request, answer, Sampler(seed=3), more.pop("rows", rows()), BatchStatement(largest=2), **more)


@pytest.fixture
def issuer_of(one_thread: None, language_model: Any, tmp_path: Path) -> Any:
    def make(settings: RecordSettings | None = None, key: SigningKey = KEY, **more: Any) -> ReceiptIssuer:
        return ReceiptIssuer(language_model, key, settings, more.pop("journal", tmp_path / "receipts.jsonl"), **more)

    return make


def test_a_receipt_says_what_was_asked_and_answered_and_by_what(issuer_of: Any, language_model: Any) -> None:
    with issuer_of(RecordSettings(FINGERPRINTS)) as issuer:
        signed = issue(issuer).signed
    verify_receipt_signature(signed)
    receipt = signed.receipt
    assert signed.key == KEY.public
    assert receipt.model == language_model.card.identity
    assert (receipt.request.id, receipt.request.nonce) == ("r", "00ff")
    assert (receipt.request.prompt.ids, receipt.answer.tokens.ids) == (tuple(PROMPT), tuple(ANSWER))
    assert (receipt.sampler.seed, receipt.batch.largest, receipt.states) == (3, 2, None)
    assert torch.__version__ in receipt.engine.version
    assert (receipt.engine.attention, receipt.engine.device, receipt.engine.kv_cache) == ("sdpa", "cpu", "native")
    assert (receipt.sequence, receipt.previous) == (1, None)
    assert [(each.layers, each.tokens, each.block) for each in receipt.fingerprints] == [((0, FINAL), 5, 2)]


def test_another_cache_is_stated(issuer_of: Any) -> None:
    with issuer_of() as issuer:
        assert issue(issuer, kv_cache="quantized").signed.receipt.engine.kv_cache == "quantized"
        assert issue(issuer).signed.receipt.engine.kv_cache == "native"


def test_a_model_that_runs_elsewhere_is_given_as_its_card(language_model: Any, issuer_of: Any) -> None:
    with issuer_of() as issuer:
        engine = issuer.engine.model_copy(update={"name": "vllm"})
    key, card = SigningKey(bytes(32)), language_model.card
    with ReceiptIssuer(card, key, engine=engine) as of_card:
        assert (of_card.model, of_card.engine.name) == (issuer.model, "vllm")
    with pytest.raises(UsageError, match="state what runs it"):
        ReceiptIssuer(card, key)


def test_a_private_receipt_holds_no_token(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of(RecordSettings(private=True)) as issuer:
        receipt = issue(issuer).signed.receipt
    assert (receipt.request.prompt.ids, receipt.answer.tokens.ids) == (None, None)
    assert receipt.answer.tokens.digest == Tokens.of(ANSWER).digest
    assert b'"ids"' not in (tmp_path / "receipts.jsonl").read_bytes()


def test_receipts_are_numbered_and_chained(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of() as issuer:
        issued = [issue(issuer, f"r{place}").signed for place in range(4)]
    assert list(read_receipts(tmp_path / "receipts.jsonl")) == issued
    assert [each.receipt.sequence for each in issued] == [1, 2, 3, 4]
    assert [each.receipt.previous for each in issued] == [None, *(each.receipt.identity for each in issued[:-1])]


def test_a_restarted_provider_goes_on_where_it_was(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of() as issuer:
        last = issue(issuer).signed
    with issuer_of() as issuer:
        assert issuer.sequence == 1
        following = issue(issuer).signed
    assert (following.receipt.sequence, following.receipt.previous) == (2, last.receipt.identity)
    assert len(list(read_receipts(tmp_path / "receipts.jsonl"))) == 2


def test_a_torn_line_is_no_receipt(issuer_of: Any, tmp_path: Path) -> None:
    journal = tmp_path / "receipts.jsonl"
    with issuer_of() as issuer:
        whole = [issue(issuer).signed for _ in range(2)]
    data = journal.read_bytes()
    last_line = len(whole[1].to_bytes()) + 1
    for cut in (1, last_line // 2, last_line - 1):
        journal.write_bytes(data[:-cut])
        with pytest.raises(MalformedError, match="line 2 is truncated"):
            list(read_receipts(journal))
        with issuer_of() as issuer:
            again = issue(issuer).signed
        assert (again.receipt.sequence, again.receipt.previous) == (2, whole[0].receipt.identity)
        assert len(list(read_receipts(journal))) == 2


KILLED = """
import sys
from itertools import pairwise
from pathlib import Path
from tallystick.attestation.signing import SigningKey
from tallystick.commitments.digests import digest
from tallystick.store.receipts import ReceiptLog
from tallystick.transcripts.receipt import Receipt
from tallystick.transcripts.sampler import Sampler
from tallystick.transcripts.receipt import Answer, EngineStatement, Request, Tokens
from tallystick.attestation.signing import sign_receipt

key, log, last = SigningKey(bytes(range(32))), ReceiptLog(Path(sys.argv[1])), None
engine = EngineStatement(name="e", version="1", device="cpu", attention="sdpa", environment=digest("environment", b""))
for sequence in range(1, 100000):
    last = Receipt(
        model=digest("model", b""),
        request=Request(id="r", prompt=Tokens.of([1]), max_tokens=1),
        answer=Answer(tokens=Tokens.of([2]), finish="length"),
        sampler=Sampler(),
        engine=engine,
        sequence=sequence,
        previous=last and last.identity,
    )
    log.append(sign_receipt(last, key))
    print(sequence, flush=True)
"""


def test_a_killed_provider_uses_no_number_twice(issuer_of: Any, tmp_path: Path) -> None:
    journal = tmp_path / "receipts.jsonl"
    process = subprocess.Popen([sys.executable, "-c", KILLED, journal], stdout=subprocess.PIPE)
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(5)][-1]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with issuer_of() as issuer:
        following = issue(issuer).signed.receipt
    chain = [each.receipt for each in read_receipts(journal)]
    assert following.sequence > seen
    assert [each.sequence for each in chain] == list(range(1, following.sequence + 1))
    assert [each.previous for each in chain[1:]] == [each.identity for each in chain[:-1]]


def test_a_receipt_that_was_withheld_leaves_a_gap(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of() as issuer:
        shown = [issue(issuer).signed.receipt for _ in range(4)]
    del shown[1]
    gaps = [
        each.sequence
        for before, each in pairwise(shown)
        if (each.sequence, each.previous) != (before.sequence + 1, before.identity)
    ]
    assert gaps == [3]


def test_one_journal_has_one_writer(issuer_of: Any) -> None:
    with issuer_of(), pytest.raises(UsageError, match="another provider writes"):
        issuer_of()
    issuer_of().close()


def test_a_journal_is_one_keys(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of() as issuer:
        issue(issuer)
    other = SigningKey.generate()
    with pytest.raises(UsageError, match="the journal of another key; give each key its own"):
        issuer_of(key=other)
    issuer_of().close()
    issuer_of(key=other, journal=tmp_path / "other.jsonl").close()


def test_a_journal_that_holds_something_else_is_left_alone(issuer_of: Any, tmp_path: Path) -> None:
    journal = tmp_path / "receipts.jsonl"
    journal.write_bytes(b"{}\n")
    with pytest.raises(MalformedError, match="last line"):
        issuer_of()
    assert journal.read_bytes() == b"{}\n"


def test_a_disk_that_refuses_uses_up_no_number(issuer_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    with issuer_of() as issuer:
        issue(issuer)
        whole = (tmp_path / "receipts.jsonl").read_bytes()
        write = os.write
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda handle, line: write(handle, line[:40]))
            with pytest.raises(OSError, match="whole"):
                issue(issuer)
        assert (tmp_path / "receipts.jsonl").read_bytes() == whole
        assert issue(issuer).signed.receipt.sequence == 2
    assert len(list(read_receipts(tmp_path / "receipts.jsonl"))) == 2


def test_threads_share_one_chain(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of(RecordSettings(FINGERPRINTS)) as issuer:
        threads = [threading.Thread(target=lambda: [issue(issuer) for _ in range(5)]) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert [each.receipt.sequence for each in read_receipts(tmp_path / "receipts.jsonl")] == list(range(1, 21))


def test_rows_that_are_not_the_answers_are_refused(issuer_of: Any) -> None:
    with issuer_of(RecordSettings(FINGERPRINTS)) as issuer:
        for given, what in ((rows(4), "4 rows"), ({0: rows()[0]}, "no rows"), ({}, "no rows")):
            with pytest.raises(UsageError, match=what):
                issue(issuer, rows=given)
        assert issuer.sequence == 0
        issue(issuer)


def test_an_answer_of_no_tokens_has_a_receipt(issuer_of: Any) -> None:
    with issuer_of(RecordSettings(FINGERPRINTS, committed=(0,))) as issuer:
        request = Request(id="r", prompt=Tokens.of(PROMPT), max_tokens=9)
        issued = issuer.issue(request, Answer(tokens=Tokens.of([]), finish="cancelled"), Sampler(), {})
    assert (issued.signed.receipt.fingerprints, issued.signed.receipt.states) == ((), None)


# ---- states
def test_committed_states_are_opened_for_a_nonce(issuer_of: Any) -> None:
    settings = RecordSettings(committed=(0, FINAL), block=2)
    with issuer_of(settings) as issuer:
        statement = issue(issuer).signed.receipt.states
        opening = issuer.challenge("r", b"nonce", 3)
    assert (statement.layers, statement.block, statement.rows, statement.prompt) == ((0, FINAL), 2, 5, False)
    opened = check_states_opening(opening, statement, b"nonce", 3)
    assert len(opened) == 3
    for (block, layer), values in opened.items():
        assert (torch.tensor(values) == rows()[layer][2 * block : 2 * block + 2]).all()
    with pytest.raises(ProofError):
        check_states_opening(opening, statement, b"another", 3)


def test_the_prompts_states_are_committed_with_the_answers(issuer_of: Any) -> None:
    before = rows(len(PROMPT) - 1, seed=1)
    with issuer_of(RecordSettings(committed=(1,), block=4, prompt=True)) as issuer:
        issued = issue(issuer, prompt_rows=before)
        with pytest.raises(UsageError, match="no rows"):
            issue(issuer)
    statement = issued.signed.receipt.states
    assert (statement.rows, statement.prompt) == (len(PROMPT) - 1 + len(ANSWER), True)
    opened = check_states_opening(issued.states.open(b"n", 9), statement, b"n", 9)
    fed = torch.cat([before[1], rows()[1]])
    assert (torch.tensor(opened[1, 1]) == fed[4:8]).all()


def test_states_are_held_for_the_last_answers_only(issuer_of: Any) -> None:
    with issuer_of(RecordSettings(committed=(0,)), held_bytes_max=2 * HELD_BYTES) as issuer:
        for name in ("a", "b", "c"):
            issue(issuer, name)
            assert issuer.held.size_bytes <= 2 * HELD_BYTES
        assert issuer.challenge("b", b"n", 1).parts
        assert issuer.challenge("c", b"n", 1).parts
        for gone in ("a", "never"):
            with pytest.raises(UnavailableError, match=f"request {gone}"):
                issuer.challenge(gone, b"n", 1)


def test_states_kept_on_disk_are_opened_like_those_in_memory(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of(RecordSettings(committed=(0, FINAL), block=2)) as issuer:
        issued, bare = issue(issuer), issue(issuer, "other")
    receipt = issued.signed.receipt
    write_states(tmp_path / "states", receipt, issued.states)
    assert read_states(tmp_path / "states", receipt).open(b"n", 4) == issued.states.open(b"n", 4)
    with pytest.raises(UnavailableError, match="no states are kept"):
        read_states(tmp_path / "states", bare.signed.receipt)


def test_states_on_disk_that_are_others_are_not_opened(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of(RecordSettings(committed=(0,))) as issuer:
        first, second = issue(issuer), issue(issuer, "r", rows=rows(seed=5))
    write_states(tmp_path, first.signed.receipt, second.states)
    with pytest.raises(ProofError, match="not the states"):
        read_states(tmp_path, first.signed.receipt)
    with issuer_of(RecordSettings(committed=(0, 1))) as issuer:
        wider = issue(issuer)
    write_states(tmp_path, first.signed.receipt, wider.states)
    with pytest.raises(MalformedError, match="not the states of layers 0"):
        read_states(tmp_path, first.signed.receipt)


# ---- the file
def test_a_stream_of_receipts_is_read_strictly(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of() as issuer:
        line = issue(issuer).signed.to_bytes()
    bad = {
        "no receipt": b"{}\n",
        "an empty line": b"\n",
        "other spelling": line.replace(b'{"key":', b'{"key": ') + b"\n",
        "unfinished": line,
        "endless": b"0" * (RECEIPT_BYTES_MAX + 1) + b"\n",
    }
    for what, data in bad.items():
        path = tmp_path / "stream.jsonl"
        path.write_bytes(line + b"\n" + data)
        with pytest.raises(MalformedError, match=r"stream\.jsonl: line 2"):
            list(read_receipts(path))
        path.write_bytes(line + b"\n")
        assert len(list(read_receipts(path))) == 1, what


def test_a_receipt_is_found_by_its_request(issuer_of: Any, tmp_path: Path) -> None:
    with issuer_of() as issuer:
        issued = {name: issue(issuer, name).signed for name in ("a", "b")}
    assert find_receipt(tmp_path / "receipts.jsonl", "a") == issued["a"]
    with pytest.raises(UnavailableError, match="request c"):
        find_receipt(tmp_path / "receipts.jsonl", "c")


def test_a_journal_can_wait_for_the_disk(issuer_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with issuer_of() as issuer:
        issue(issuer)
    assert synced == []
    with ReceiptLog(tmp_path / "synced.jsonl", sync=True) as log:
        log.append(find_receipt(tmp_path / "receipts.jsonl", "r"))
    assert len(synced) == 1


def test_the_composition_of_a_batch_is_bound_by_its_digest() -> None:
    spans = [(3, ["a", "b"]), (1, ["a"])]
    assert batch_composition(spans) == digest("batch", b'[{"passes":3,"rows":["a","b"]},{"passes":1,"rows":["a"]}]')
    assert len({batch_composition(each) for each in (spans, [(3, ["b", "a"]), (1, ["a"])], spans[:1])}) == 3
