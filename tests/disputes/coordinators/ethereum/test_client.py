"""A connection to a contract: where it is, how it came to be, its rules, its moves in both directions, its board."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, RuleError, UnavailableError, UsageError
from tallystick.core.http.client import RequestLimits
from tallystick.disputes.coordinators.coordinator import Board
from tallystick.disputes.coordinators.ethereum.board import (
    AttestingBoard,
    FolderBoard,
    RemoteAttester,
    check_attestation,
    create_app,
)
from tallystick.disputes.coordinators.ethereum.client import connect, deploy
from tallystick.disputes.coordinators.ethereum.contract import ContractLocation, contract_address
from tallystick.disputes.coordinators.ethereum.encoding import (
    ARGUMENTS,
    artefact,
    decode_deployment,
    decode_move,
    encode_deployment,
    encode_move,
    refusal,
)
from tallystick.disputes.coordinators.ethereum.keys import ORDER, EthereumKey
from tallystick.disputes.coordinators.local.board import BlobStore
from tallystick.disputes.coordinators.local.coordinator import LocalCoordinator
from tallystick.disputes.game.game import TRANSITIONS
from tallystick.disputes.game.moves import Move, read_move
from tallystick.disputes.game.state import Rules
from tallystick.formats.signing import SigningKey
from tallystick.verdicts.verdict import Fault
from tests.disputes.coordinators.ethereum.chain_game import SMALL, ChainGame, Watched, is_settled
from tests.disputes.coordinators.ethereum.chains import (
    KEYS,
    QUICK,
    Ask,
    Chain,
    Proxy,
    claim,
    contest,
    rules,
    running_chain,
)

ACTOR, HASH, NAME = "0x" + "ab" * 20, "0f" * 32, "sha256:" + "1e" * 32


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_chain(tmp_path) as found:
        yield found


# ---- moves as calls

RECORD = {"node": 4, "operator": "aten.mul.Tensor", "inputs": [["v1", NAME], ["v0", NAME]], "outputs": [["v2", NAME]]}
TENSOR = {"dtype": "F32", "shape": [2], "data": "0000803f00000040"}
WRITER = {"record": RECORD, "index": 3, "proof": [HASH]}
EDGE = {"ground": "edge", "record": RECORD, "writer": WRITER, "tensors": [], "element": 0}
CUT = {"leaf": HASH, "proof": [HASH, "00" * 32]}
FIELDS: dict[str, dict[str, Any]] = {
    "post": {"value": 5, "root": HASH, "size": 1 << 32, "levels": 1, "statement": NAME, "seal": HASH},
    "contest": {"value": 6, "claim": 1, "low": 0, "high": 9},
    "partition": {"dispute": 1, "turn": 2, "cuts": [CUT, CUT], "data": NAME},
    "choose": {"dispute": 1, "turn": 2, "child": 31},
    "protest": {"dispute": 1, "turn": 2, "ground": "budget"},
    "descend": {"dispute": 1, "turn": 2, "leaf": HASH, "proof": [], "root": HASH, "size": 7, "data": NAME},
    "reveal": {"dispute": 1, "turn": 2, "leaf": HASH, "proof": [HASH] * 64, "data": NAME},
    "rule": {"dispute": 1, "fault": "nobody", "reason": NAME},
    "prove": {
        "dispute": 1,
        "evidence": {"ground": "edge", "record": RECORD, "writer": WRITER, "tensors": [], "element": 0},
    },
    "draw": {"dispute": 1, "nonce": HASH},
    "vote": {"dispute": 1, "commitment": HASH},
    "disclose": {"dispute": 1, "vote": "challenger", "salt": HASH},
    "appeal": {"dispute": 1, "value": 7},
    "unseal": {"dispute": 1, "answer": "prover", "salt": HASH},
    "finalise": {"claim": 3},
    "enlist": {"value": 8},
    **{kind: {} for kind in ("retire", "withdraw", "pause", "resume")},
    "pinpoint": {"dispute": 3, "result": 1, "element": (1 << 48) - 1},
    **{kind: {"dispute": (1 << 53) - 1} for kind in ("concede", "timeout", "convene", "tally", "settle", "dismiss")},
}
PRODUCT = {"ground": "product", "record": RECORD, "tensors": [TENSOR, TENSOR, {**TENSOR, "dtype": "F64", "shape": [1]}]}


def move_of(kind: str, **changes: Any) -> Move:
    return read_move(encode({"kind": kind, "actor": ACTOR, **FIELDS[kind], **changes}))


def test_every_move_has_a_call() -> None:
    assert ARGUMENTS.keys() == TRANSITIONS.keys() == FIELDS.keys()
    assert ARGUMENTS.keys() <= artefact().functions.keys()


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_a_move_is_read_back_from_its_call(kind: str) -> None:
    move = move_of(kind)
    assert decode_move(encode_move(move), ACTOR, FIELDS[kind].get("value", 0)) == move


def test_evidence_with_tensors_is_read_back() -> None:
    move = move_of("prove", evidence={**PRODUCT, "element": 1})
    assert decode_move(encode_move(move), ACTOR, 0) == move


@pytest.mark.parametrize("kind", sorted(FIELDS))
def test_bytes_that_are_no_call_are_malformed(kind: str) -> None:
    call = encode_move(move_of(kind))
    for bad in (call[:3], call[:-1] if len(call) > 4 else b"", call + b"\x00", b"\xff" * 4 + call[4:], b""):
        with pytest.raises(MalformedError):
            decode_move(bad, ACTOR, 0)
    for place in range(4, len(call), 31):
        changed = call[:place] + bytes([call[place] ^ 0x81]) + call[place + 1 :]
        try:
            again = decode_move(changed, ACTOR, FIELDS[kind].get("value", 0))
        except MalformedError:
            continue
        assert again != move_of(kind)
        assert encode_move(again) == changed


def test_numbers_that_mean_nothing_are_malformed() -> None:
    call = encode_move(move_of("rule"))
    for fault in (0, 4):
        with pytest.raises(MalformedError, match="rule"):
            decode_move(call[:36] + fault.to_bytes(32) + call[68:], ACTOR, 0)


def test_the_log_never_repeats_an_attestation() -> None:
    with pytest.raises(MalformedError, match="repeats an attestation"):
        decode_move(encode_move(move_of("partition"), b"\x01" * 65), ACTOR, 0)


def test_a_refusal_has_the_code_of_the_rules_and_anything_else_says_that_it_has_none() -> None:
    word = bytes.fromhex("08c379a0") + (32).to_bytes(32) + (4).to_bytes(32) + b"late".ljust(32, b"\0")
    found = refusal(word)
    assert isinstance(found, RuleError)
    assert found.code == "late"
    for other in (
        b"",
        word[:20],
        b"\x4e\x48\x7b\x71" + word[4:],
        word.replace(b"late", b"\x1b[3m"),
        word[:4] + b"\xff" * 96,
    ):
        assert isinstance(refusal(other), UnavailableError)


# ---- rules


def test_rules_are_read_back_from_the_transaction_that_made_the_contract() -> None:
    given = rules()
    assert decode_deployment(encode_deployment(given, None)) == (given, None)
    assert decode_deployment(encode_deployment(given, ACTOR)) == (given, ACTOR)
    bare = rules(referee=None, guardian=None, planter=None, members=())
    assert decode_deployment(encode_deployment(bare, None)) == (bare, None)


@pytest.mark.parametrize("cut", [0, 1, 100])
def test_other_code_and_other_bytes_are_no_founding(cut: int) -> None:
    data = encode_deployment(rules(), None)
    with pytest.raises(MalformedError):
        decode_deployment(data[:cut] + b"\x00" + data[cut + 1 :] if cut else data[:-1])


def test_rules_for_parties_elsewhere_are_no_rules_of_a_contract() -> None:
    with pytest.raises(MalformedError, match="no Ethereum address"):
        encode_deployment(rules(referee="ab" * 32), None)


def test_a_connection_knows_the_rules_without_being_told(chain: Chain) -> None:
    assert chain.at("prover").rules == rules()
    assert connect(str(chain.place), rules=rules()).party == "0x" + "00" * 20
    with pytest.raises(UsageError, match="other rules"):
        connect(str(chain.place), rules=rules(ways=5))


def test_rules_that_make_no_sense_are_refused_by_the_contract_itself(chain: Chain) -> None:
    bad = rules().model_copy(update={"ways": 1})
    with pytest.raises(RuleError) as refused:
        deploy([chain.node.url], bad, KEYS["board"], folder=chain.folder, settings=QUICK)
    assert refused.value.code == "ways"


def test_the_same_deployment_after_a_crash_makes_one_contract(chain: Chain) -> None:
    chain.node.ask("evm_setAutomine", False)
    with pytest.raises(UnavailableError, match="ask again"):
        deploy([chain.node.url], rules(), KEYS["board"], folder=chain.folder, settings=QUICK)
    chain.node.mine()
    place = deploy([chain.node.url], rules(), KEYS["board"], folder=chain.folder, settings=QUICK)
    assert chain.transactions("board") == 1
    assert connect(str(place)).rules == rules()


def test_an_address_without_the_contract_is_one_clear_line(chain: Chain) -> None:
    for address in (KEYS["prover"].address, "0x" + "77" * 20):
        with pytest.raises(UnavailableError, match="there is no contract at"):
            connect(f"{chain.node.url}:{address}", settings=QUICK)
    chain.node.ask("anvil_setCode", "0x" + "77" * 20, "0x6001600055")
    with pytest.raises(UnavailableError, match="is no coordinator"):
        connect(f"{chain.node.url}:0x" + "77" * 20, settings=QUICK)


def test_a_contract_that_another_code_made_is_not_played_with(chain: Chain) -> None:
    def other(method: str, parameters: list[Any], ask: Ask) -> Any:
        answer = ask()
        if method == "eth_getTransactionByHash":
            answer["result"]["input"] = answer["result"]["input"].replace("60", "61", 1)
        return answer

    with Proxy(chain.node.url, other) as proxy, pytest.raises(UnavailableError, match="from other code"):
        connect(f"{proxy.url}:{chain.place.contract}", settings=QUICK)


def test_an_address_is_the_hash_of_its_maker_and_nonce(chain: Chain) -> None:
    assert contract_address(KEYS["prover"].address, 0) == chain.place.contract
    # the example of Ethereum's own documentation of CREATE
    sender = "0x6ac7ea33f8831ea9dcc53393aaa88b25a785dbf0"
    assert contract_address(sender, 0) == "0xcd234a471b72ba2f1ccf0a70fcaba648a5eecd8d"
    assert contract_address(sender, 1) == "0x343c43a37d37dff08ae8c4a11544c718abb4fcf8"


# ---- places and keys


@pytest.mark.parametrize(
    "text",
    [
        "ethereum:http://localhost:8545:0x" + "ab" * 20,
        "ethereum:https://a.example/v3/key,http://b.example:8545:0x" + "ab" * 20 + "@123",
        "ethereum:http://a.example:0x" + "ab" * 20 + "@9#https://board.example:8443",
    ],
)
def test_a_place_is_one_line(text: str) -> None:
    place = ContractLocation.parse(text)
    assert str(place) == text
    assert place.contract == ACTOR
    assert ContractLocation.parse(text.removeprefix("ethereum:").replace("abab", "ABab")) == place


@pytest.mark.parametrize(
    "text", ["", "ethereum:", "http://a:1:0x12", "ws://a:1:0x" + "ab" * 20, "http://a,b:0x" + "ab" * 20]
)
def test_no_place_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        ContractLocation.parse(text)


def test_messages_never_show_the_whole_url_of_a_server() -> None:
    with pytest.raises(UnavailableError) as failed:
        connect("http://user:secret@127.0.0.1:9/v3/key:0x" + "ab" * 20, settings=QUICK)
    assert "127.0.0.1:9" in str(failed.value)
    assert "secret" not in str(failed.value)
    assert "v3" not in str(failed.value)


def test_a_key_is_kept_for_its_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    key, path = EthereumKey.generate(), tmp_path / "key"
    key.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert EthereumKey.read(path) == key
    assert key.secret.hex() not in repr(key)
    with pytest.raises(UsageError, match="never overwritten"):
        key.write(path)
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        EthereumKey.read(path)


@pytest.mark.parametrize("text", ["", "12", "zz" * 32, "00" * 32, f"{ORDER:064x}", "ab" * 33])
def test_a_file_that_is_no_key_is_malformed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(MalformedError):
        EthereumKey.read(path)
    path.write_text("0x" + f"{ORDER - 1:064x}\n")
    assert EthereumKey.read(path).address.startswith("0x")


def test_a_known_key_has_its_known_address() -> None:
    """The first account of the usual development mnemonic."""
    key = EthereumKey(bytes.fromhex("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"))
    assert key.address == "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"


# ---- time


def test_the_time_is_that_of_the_latest_block(chain: Chain) -> None:
    before = chain.at("prover").now()
    chain.node.advance(1000)
    assert chain.at("prover").now() >= before + 1000
    assert chain.at("prover").now() == int(chain.node.ask("eth_getBlockByNumber", "latest", False)["timestamp"], 16)


def test_a_last_second_move_is_taken_and_leaves_the_extension(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    game = ChainGame(chain)
    prover, challenger = game.prover(SMALL), game.challenger()
    game.play(prover, until=lambda state: bool(state.claims))
    game.play(challenger, until=lambda state: bool(state.disputes))
    given, end = chain.at("prover").rules, chain.at("prover").state.disputes[0].clocks.since + given_clock(chain)
    game.advance(end - 60)

    def submit_in_the_last_second(move: Move) -> None:
        chain.node.ask("evm_setNextBlockTimestamp", end - 1)
        chain.at("prover").submit(move)
        chain.final()

    monkeypatch.setattr(Watched, "submit", lambda connection, move: submit_in_the_last_second(move))
    assert prover.step()
    monkeypatch.undo()
    assert chain.anew("treasury").entries()[-1].time == end - 1
    clocks = chain.anew("treasury").state.disputes[0].clocks
    assert (clocks.prover, clocks.challenger) == (given.extension, given.clock)
    final = game.play(prover, challenger, game.referee(), until=is_settled)
    assert final.disputes[0].fault is Fault.PROVER


def given_clock(chain: Chain) -> int:
    return chain.at("prover").rules.clock


# ---- boards


def test_a_folder_keeps_blobs_and_gives_no_others(tmp_path: Path) -> None:
    board = FolderBoard(tmp_path)
    name = board.put(b"data")
    assert name == digest("blob", b"data")
    assert FolderBoard(tmp_path).get(name) == b"data"
    with pytest.raises(UnavailableError):
        board.get(digest("blob", b"other"))
    with pytest.raises(MalformedError):
        board.get("sha256:../../etc/passwd")  # type: ignore[arg-type]
    next(path for path in tmp_path.rglob("*") if path.is_file()).write_bytes(b"dat4")
    with pytest.raises(UnavailableError, match="other bytes"):
        board.get(name)


def manifest(board: Board, *files: bytes, missing: bytes = b"") -> Any:
    names = {f"{number}.bin": board.put(data) for number, data in enumerate(files)}
    if missing:
        names["missing.bin"] = digest("blob", missing)
    return board.put(encode({"files": dict(names), "kind": "manifest", "version": 1}))


def test_a_board_signs_what_it_keeps_and_nothing_else(tmp_path: Path) -> None:
    folder = FolderBoard(tmp_path)
    board = AttestingBoard(folder, KEYS["board"], 5, ACTOR)
    data = manifest(folder, b"one", b"two")
    signature = board.attest(1, 2, data)
    check_attestation(signature, KEYS["board"].address, 5, ACTOR, 1, 2, data)
    for wrong in ((5, ACTOR, 1, 3, data), (6, ACTOR, 1, 2, data), (5, "0x" + "00" * 20, 1, 2, data)):
        with pytest.raises(ProofError):
            check_attestation(signature, KEYS["board"].address, *wrong)
    with pytest.raises(UnavailableError):
        board.attest(1, 2, manifest(folder, b"one", missing=b"three"))
    with pytest.raises(UnavailableError):
        board.attest(1, 2, digest("blob", b"never put there"))
    with pytest.raises(MalformedError):
        board.attest(1, 2, folder.put(b"no manifest"))


def test_a_board_reads_the_manifest_alone_and_once_to_give_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = SigningKey(bytes(32))
    place = LocalCoordinator.create(tmp_path / "board.db", Rules(treasury=key.public), key)
    with closing(place):
        kept, read, get = place.board(key), [], BlobStore.get
        monkeypatch.setattr(BlobStore, "get", lambda self, name: read.append(name) or get(self, name))
        board = AttestingBoard(place.blobs, KEYS["board"], 5, ACTOR)
        data, lacking = manifest(kept, b"one", b"two"), manifest(kept, b"one", missing=b"three")
        assert board.attest(1, 2, data) == board.attest(1, 2, data) != board.attest(1, 3, data)
        assert read == [data]
        with pytest.raises(UnavailableError, match="1 of the 2 blobs"):
            board.attest(1, 4, lacking)
        kept.put(b"three")
        board.attest(1, 4, lacking)


def test_a_folder_with_other_bytes_in_it_gets_no_word(tmp_path: Path) -> None:
    folder = FolderBoard(tmp_path)
    data, name = manifest(folder, b"one"), digest("blob", b"one").removeprefix("sha256:")
    (tmp_path / name[:2] / name).write_bytes(b"other")
    with pytest.raises(UnavailableError, match="1 of the 1 blobs"):
        AttestingBoard(folder, KEYS["board"], 5, ACTOR).attest(1, 2, data)
    (tmp_path / name[:2] / name).write_bytes(b"one")
    AttestingBoard(folder, KEYS["board"], 5, ACTOR).attest(1, 2, data)


def test_a_contract_with_a_board_takes_moves_whose_data_is_there_alone(tmp_path: Path) -> None:
    with running_chain(tmp_path, board=KEYS["board"].address) as chain:
        game = ChainGame(chain, board=FolderBoard(tmp_path / "board"))
        prover = game.prover(SMALL)
        game.play(prover, until=lambda state: bool(state.claims))
        game.play(game.challenger(), until=lambda state: bool(state.disputes))
        assert prover.step() is False
        assert any("the contract requires the attestation of its board" in line for line in game.said)
        connection = prover.coordinator.coordinator  # type: ignore[attr-defined]
        connection.attester = AttestingBoard(
            FolderBoard(tmp_path / "empty"), KEYS["board"], connection.chain_id, connection.contract
        )
        prover.backoffs.clear()
        assert prover.step() is False
        connection.attester = Forger()
        prover.backoffs.clear()
        assert prover.step() is False
        assert any("refuses this move: attestation" in line for line in game.said)
        connection.attester = AttestingBoard(game.board, KEYS["board"], connection.chain_id, connection.contract)
        prover.backoffs.clear()
        assert prover.step() is True
        assert chain.anew("treasury").entries()[-1].move.kind == "partition"


class Forger:
    """A board that signs with another key."""

    def attest(self, dispute: int, turn: int, data: Any) -> bytes:
        return AttestingBoard(Everything(), KEYS["prover"], 31337, ACTOR).attest(dispute, turn, data)


class Everything:
    """A board that has whatever is asked for."""

    def put(self, data: bytes) -> Any:
        return digest("blob", data)

    def get(self, name: Any) -> bytes:
        return encode({"files": {}, "kind": "manifest", "version": 1})

    def missing(self, names: Any) -> list[Any]:
        return []


def test_a_board_gives_its_word_over_http(tmp_path: Path) -> None:
    from tallystick.core.http.server import served

    folder = FolderBoard(tmp_path)
    data, effort = manifest(folder, b"one"), RequestLimits(attempts=1)
    with served(create_app(AttestingBoard(folder, KEYS["board"], 5, ACTOR))) as url:
        board = RemoteAttester(url, KEYS["board"].address, 5, ACTOR, effort)
        assert board.attest(1, 2, data) == AttestingBoard(folder, KEYS["board"], 5, ACTOR).attest(1, 2, data)
        with pytest.raises(UnavailableError, match="does not attest"):
            board.attest(1, 2, digest("blob", b"not there"))
        with pytest.raises(UnavailableError, match="about another contract"):
            replace(board, chain=6).attest(1, 2, data)
        with pytest.raises(UnavailableError, match="not one of the board"):
            replace(board, board=KEYS["prover"].address).attest(1, 2, data)
    with pytest.raises(UnavailableError):
        board.attest(1, 2, data)


# ---- the command


def run(*words: str) -> int:
    from tallystick.tally.cli.application import application

    return int(application().main(words, "tally", standalone_mode=False) or 0)


def test_a_contract_is_made_and_shown_by_commands(
    chain: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run("contract", "new-key", str(tmp_path / "key")) == 0
    address = capsys.readouterr().out.strip()
    chain.node.ask("anvil_setBalance", address, hex(10**18))
    (tmp_path / "members").write_text("0x" + "AB" * 20 + "\n")
    (tmp_path / "rules.json").write_text(json.dumps({"ways": 7}))
    words = ["--rpc", chain.node.url, "--key", str(tmp_path / "key"), "--rules", str(tmp_path / "rules.json")]
    assert run("contract", "deploy", *words, "--members", str(tmp_path / "members")) == 0
    place = capsys.readouterr().out.strip()
    chain.node.mine(3)
    assert run("contract", "show", place) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rules"]["ways"] == 7
    assert shown["rules"]["members"] == [ACTOR]
    assert shown["rules"]["treasury"] == address
    assert (shown["moves"], shown["claims"]) == (0, [])


def test_a_signed_move_is_relayed_by_the_command(chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    relayed = chain.at("prover").sign_relayed(claim(chain), 1 << 40)
    (tmp_path / "move.json").write_bytes(relayed.to_bytes())
    KEYS["treasury"].write(tmp_path / "key")
    assert run("contract", "relay", str(tmp_path / "move.json"), str(chain.place), "--key", str(tmp_path / "key")) == 0
    chain.final()
    assert len(chain.at("prover").entries()) == 1
    chain.at("challenger").submit(contest(chain))


def test_rules_said_twice_are_a_usage_error(tmp_path: Path) -> None:
    KEYS["treasury"].write(tmp_path / "key")
    (tmp_path / "rules.json").write_text(json.dumps({"treasury": ACTOR}))
    words = ["--rpc", "http://127.0.0.1:9", "--key", str(tmp_path / "key"), "--rules", str(tmp_path / "rules.json")]
    with pytest.raises(UsageError, match="--treasury"):
        run("contract", "deploy", *words, "--treasury", ACTOR)
