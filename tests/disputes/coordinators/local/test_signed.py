"""The vectors of `spec/signed-move.md`, which were made without this package: read, and refused, as the page says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, ProofError, RuleError
from tallystick.disputes.coordinators.local.signed import (
    Accepted,
    ChainState,
    Charter,
    MoveReceipt,
    SignedMove,
    check_nonce,
    put_message,
    read_signed_move,
)
from tallystick.formats.signing import check_signature

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "vectors" / "signed-move"


def cases(name: str) -> list[Any]:
    found: list[Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def charter() -> Charter:
    return Charter.from_bytes(cases("charters")[0]["text"].encode(), "charter")


def test_the_script_writes_these_vectors(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_signed_move_vectors.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FOLDER.iterdir()}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), path.name


def test_a_charter_has_the_identity_of_its_bytes() -> None:
    case = cases("charters")[0]
    assert (charter().identity, charter().to_bytes().decode()) == (case["identity"], case["text"])


def test_a_charter_under_a_key_that_anybody_has_is_refused() -> None:
    text = cases("charters")[0]["text"].replace(f'"key":"{charter().key}"', f'"key":"01{62 * "0"}"')
    with pytest.raises(MalformedError, match=r"charter: key: .* small order"):
        Charter.from_bytes(text.encode(), "charter")


@pytest.mark.parametrize("case", cases("signed"), ids=lambda case: str(case["what"]))
def test_a_signed_move_is_read_and_its_signature_holds(case: Any) -> None:
    signed = read_signed_move(case["text"].encode())
    signed.check()
    assert (signed.identity, signed.coordinator) == (case["identity"], charter().identity)


@pytest.mark.parametrize("case", cases("refused"), ids=lambda case: str(case["what"]))
def test_a_malformed_signed_move_is_refused_by_the_name_of_its_field(case: Any) -> None:
    with pytest.raises(MalformedError, match=case["field"] or "signed move"):
        read_signed_move(case["text"].encode())


@pytest.mark.parametrize("case", cases("forged"), ids=lambda case: str(case["what"]))
def test_a_forged_move_is_well_formed_and_does_not_hold(case: Any) -> None:
    with pytest.raises(ProofError):
        SignedMove.from_bytes(case["text"].encode(), "signed move").check()


def test_a_chain_of_accepted_moves_leads_to_its_heads() -> None:
    chain = ChainState.empty(charter())
    for number, case in enumerate(cases("accepted")[:1]):
        chain, move = chain.read(Accepted.from_bytes(case["text"].encode(), "entry"))
        assert (chain.head, chain.count, move.kind) == (case["head"], number + 1, "post")


def test_every_link_of_the_chain_names_the_one_before() -> None:
    previous: Digest = charter().identity
    for case in cases("accepted"):
        accepted = Accepted.from_bytes(case["text"].encode(), "entry")
        accepted.receipt.check(charter())
        entry = accepted.receipt.entry
        assert (entry.previous, entry.move) == (previous, accepted.signed.identity)
        previous = entry.identity
        assert previous == case["head"]


def test_entries_out_of_order_are_no_chain() -> None:
    second = Accepted.from_bytes(cases("accepted")[1]["text"].encode(), "entry")
    with pytest.raises(ProofError, match="chain"):
        ChainState.empty(charter()).read(second)


@pytest.mark.parametrize("case", cases("false_receipts"), ids=lambda case: str(case["what"]))
def test_a_receipt_that_the_coordinator_never_gave_does_not_hold(case: Any) -> None:
    with pytest.raises(ProofError):
        MoveReceipt.from_bytes(case["text"].encode(), "receipt").check(charter())


def test_nonces_of_the_beacon_hang_on_the_charter() -> None:
    previous = charter().beacon
    for case in cases("beacon"):
        assert case["previous"] == previous
        check_nonce(case["nonce"], previous)
        with pytest.raises(RuleError):
            check_nonce(previous, case["nonce"])
        previous = case["nonce"]


def test_the_page_shows_the_last_of_these_moves_and_the_first_of_these_receipts() -> None:
    page = (ROOT / "spec" / "signed-move.md").read_text()
    first, last = (Accepted.from_bytes(cases("accepted")[number]["text"].encode(), "entry") for number in (0, -1))
    assert json.dumps(last.signed.move.replace(last.signed.key, "d75a…"), ensure_ascii=False) in page
    for digest in (last.signed.coordinator, first.receipt.entry.move):
        assert f'"{digest[:11]}…"' in page
    for text in (last.signed.key, last.signed.signature, first.receipt.key, first.receipt.signature):
        assert f'"{text[:4]}…"' in page


def test_a_put_is_signed_over_coordinator_digest_and_size() -> None:
    case = cases("put")[0]
    check_signature(case["key"], case["signature"], put_message(case["coordinator"], case["digest"], case["size"]))
    with pytest.raises(ProofError):
        check_signature(case["key"], case["signature"], put_message(case["coordinator"], case["digest"], 6))
