"""Signatures are bound to one chain, one contract and one use (D-15)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from eth_account.messages import encode_typed_data
from eth_utils import keccak

from tallystick.core.digests import digest
from tallystick.core.errors import MalformedError, ProofError, RuleError, UnavailableError, UsageError
from tallystick.disputes.coordinators.ethereum.client import Relayed, sign_relayed
from tallystick.disputes.coordinators.ethereum.keys import ORDER, TYPES, kept_data, relayed_move, signer_of
from tallystick.disputes.game.moves import Enlist, Move
from tests.disputes.coordinators.ethereum.chains import KEYS, Chain, claim, contest, running_chain

HERE, THERE = "0x" + "11" * 20, "0x" + "22" * 20
FAR = 1 << 40


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with running_chain(tmp_path) as found:
        yield found


def enlisting(chain: Chain, role: str = "member0") -> Move:
    return Enlist(actor=KEYS[role].address, value=chain.at(role).rules.stake)


# ---- what is signed


def test_the_types_are_those_of_the_contract() -> None:
    """The strings whose hashes `Signed.sol` holds (EIP-712, `encodeType`)."""
    source = (Path(__file__).parents[4] / "contracts" / "src" / "Signed.sol").read_text()
    for name, fields in TYPES.items():
        assert f'keccak256("{name}({",".join(f"{kind} {field}" for field, kind in fields)})")' in source


def test_the_hash_of_typed_data_is_that_of_eip_712() -> None:
    """Computed here by hand: keccak256(1901 ‖ domain ‖ struct)."""

    def word(value: int) -> bytes:
        return value.to_bytes(32)

    document = kept_data(5, HERE, 3, 4, digest("blob", b"data"))
    kind = keccak(text="EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")
    names = keccak(text="Tallystick") + keccak(text="1")
    domain = keccak(kind + names + word(5) + bytes(12) + bytes.fromhex(HERE[2:]))
    data = bytes.fromhex(digest("blob", b"data")[7:])
    struct = keccak(keccak(text="Kept(uint64 dispute,uint64 turn,bytes32 data)") + word(3) + word(4) + data)
    message = encode_typed_data(full_message=document)
    assert keccak(b"\x19" + message.version + message.header + message.body) == keccak(b"\x19\x01" + domain + struct)


def test_a_signature_is_of_its_signer_over_its_chain_contract_and_message_alone() -> None:
    key = KEYS["prover"]
    document = relayed_move(1, HERE, key.address, 0, FAR, b"call")
    signature = key.sign_typed(document)
    assert signer_of(document, signature) == key.address
    others = [
        relayed_move(2, HERE, key.address, 0, FAR, b"call"),
        relayed_move(1, THERE, key.address, 0, FAR, b"call"),
        relayed_move(1, HERE, key.address, 1, FAR, b"call"),
        relayed_move(1, HERE, key.address, 0, FAR + 1, b"call"),
        relayed_move(1, HERE, key.address, 0, FAR, b"cal1"),
        relayed_move(1, HERE, KEYS["board"].address, 0, FAR, b"call"),
    ]
    assert all(signer_of(other, signature) != key.address for other in others)
    turned = (ORDER - int.from_bytes(signature[32:64])).to_bytes(32)
    assert signer_of(document, signature[:32] + turned + bytes([55 - signature[64]])) is None  # the contract refuses it
    assert signer_of(document, signature[:64] + bytes([signature[64] - 27])) is None
    assert signer_of(document, signature[:-1]) is None
    assert signer_of(document, b"\x00" * 65) is None
    assert signer_of(document, b"\xff" * 65) is None


# ---- moves that others send


def test_a_signed_move_is_sent_and_paid_for_by_another_account(chain: Chain) -> None:
    move = enlisting(chain)
    relayed = chain.at("member0").sign_relayed(move, FAR)
    chain.at("treasury").send_relayed(Relayed.from_bytes(relayed.to_bytes(), "relayed move"))
    chain.final()
    assert [entry.move for entry in chain.at("prover").entries()] == [move]
    assert chain.transactions("member0") == 0
    assert chain.transactions("treasury") == 1


def test_a_signed_move_counts_once(chain: Chain) -> None:
    first = chain.at("prover").sign_relayed(claim(chain), FAR)
    chain.at("treasury").send_relayed(first)
    chain.final()
    chain.at("treasury").entries()
    with pytest.raises(RuleError) as refused:
        chain.at("treasury").send_relayed(first)
    assert refused.value.code == "nonce"
    chain.at("treasury").send_relayed(chain.at("prover").sign_relayed(claim(chain), FAR))
    chain.final()
    assert len(chain.at("prover").entries()) == 2


def test_a_signed_move_expires(chain: Chain) -> None:
    soon = chain.at("member0").now() + 100
    relayed = chain.at("member0").sign_relayed(enlisting(chain), soon)
    chain.node.advance(200)
    with pytest.raises(RuleError) as refused:
        chain.at("treasury").send_relayed(relayed)
    assert refused.value.code == "expired"


def test_a_signature_under_another_name_is_refused_here_and_by_the_contract(chain: Chain) -> None:
    relayed = chain.at("member0").sign_relayed(enlisting(chain), FAR)
    stolen = relayed.model_copy(update={"signer": KEYS["member1"].address})
    with pytest.raises(ProofError, match="not one of the signer"):
        chain.at("treasury").send_relayed(stolen)
    assert refused_by_contract(chain, stolen) == "signature"
    assert refused_by_contract(chain, relayed) is None


def test_a_move_signed_for_another_chain_or_another_contract_is_refused(chain: Chain, tmp_path: Path) -> None:
    """The same rules, the same members, the same address even: only the chain differs, or only the contract."""
    with running_chain(tmp_path / "other", "--chain-id", "7") as other:
        assert other.place.contract == chain.place.contract
        signed_there = other.at("member0").sign_relayed(enlisting(other), FAR)
    check_is_refused(chain, signed_there)
    elsewhere = sign_relayed(KEYS["member0"], 31337, THERE, 0, FAR, bytes.fromhex(signed_there.call), 200_000)
    check_is_refused(chain, elsewhere)
    assert refused_by_contract(chain, chain.at("member0").sign_relayed(enlisting(chain), FAR)) is None


def check_is_refused(chain: Chain, foreign: Relayed) -> None:
    with pytest.raises(ProofError, match="another chain or another contract"):
        chain.at("treasury").send_relayed(foreign)
    relabelled = foreign.model_copy(update={"chain": 31337, "contract": chain.place.contract})
    with pytest.raises(ProofError, match="not one of the signer"):
        chain.at("treasury").send_relayed(relabelled)
    assert refused_by_contract(chain, relabelled) == "signature"


def refused_by_contract(chain: Chain, relayed: Relayed) -> str | None:
    """The code by which the contract itself refuses a relayed move, as a simulation says."""
    from tallystick.disputes.coordinators.ethereum import endpoints as asked
    from tallystick.disputes.coordinators.ethereum.encoding import GWEI, encode_call, refusal

    fields = {"from": KEYS["treasury"].address, "to": chain.place.contract, "value": hex(relayed.value * GWEI)}
    fields["data"] = "0x" + encode_call("relay", relayed.arguments).hex()
    answer = asked.call(chain.at("treasury").endpoints.servers[0], fields)
    if not isinstance(answer, asked.Reverted):
        return None
    error = refusal(answer.data)
    assert isinstance(error, RuleError)
    return error.code


def test_a_signed_transaction_is_refused_on_another_chain(chain: Chain, tmp_path: Path) -> None:
    """The very bytes that one chain took, sent to another one (EIP-155)."""
    raws: list[str] = []
    sender = chain.at("member0")._sender
    assert sender is not None
    broadcast = sender._broadcast
    sender._broadcast = lambda raw, servers: raws.append(raw) or broadcast(raw, servers)  # type: ignore[method-assign, func-returns-value]
    chain.at("member0").submit(enlisting(chain))
    assert chain.transactions("member0") == 1
    with running_chain(tmp_path / "other", "--chain-id", "7") as other:
        with pytest.raises(UnavailableError, match="chain id"):
            other.node.ask("eth_sendRawTransaction", raws[0])
        assert other.transactions("member0") == 0
        other.at("member0").submit(enlisting(other))
        assert other.transactions("member0") == 1


def test_nobody_signs_for_another_and_nothing_is_signed_without_a_key(chain: Chain) -> None:
    with pytest.raises(UsageError, match="only a party itself"):
        chain.at("challenger").sign_relayed(enlisting(chain), FAR)
    with pytest.raises(RuleError, match="nobody moves for another"):
        chain.at("challenger").submit(enlisting(chain))
    from tallystick.disputes.coordinators.ethereum.client import connect

    looking = connect(str(chain.place), settings=chain.settings)
    assert looking.entries() == ()
    with pytest.raises(UsageError, match="only reads"):
        looking.submit(replace_actor(contest(chain), looking.party))


def replace_actor(move: Move, actor: str) -> Move:
    return move.model_copy(update={"actor": actor})


@pytest.mark.parametrize(
    ("field", "value"),
    [("signature", "00"), ("call", "zz"), ("signer", "0xAB"), ("value", -1), ("version", 2), ("extra", 1)],
)
def test_a_malformed_relayed_move_names_its_field(field: str, value: object) -> None:
    good = sign_relayed(KEYS["prover"], 1, HERE, 0, FAR, b"call", 5)
    assert Relayed.from_json(good.to_json(), "relayed move") == good
    bad = {**good.to_json(), field: value}  # type: ignore[dict-item]
    with pytest.raises(MalformedError, match=f"relayed move: {field}"):
        Relayed.from_json(bad, "relayed move")
