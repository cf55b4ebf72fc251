"""`tally generate` and its companions: answers with receipts, and what they say to bad input."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.formats.hidden_states import StatesOpening, check_states_opening
from tallystick.formats.receipt import Sampler, SignedReceipt
from tallystick.formats.signing import verify_receipt_signature
from tallystick.formats.store.receipts import read_receipts

pytest.importorskip("torch")
Tally = Callable[..., Any]


@pytest.fixture
def key(tally: Tally, tmp_path: Path) -> Path:
    assert tally("new-key", tmp_path / "key").code == 0
    return tmp_path / "key"


@pytest.fixture
def generate(tally: Tally, key: Path, model_directory: Path, tmp_path: Path) -> Tally:
    """Run `tally generate` on the tiny model with the given arguments."""

    def call(*arguments: object, model: Path = model_directory) -> Any:
        return tally("generate", model, "--key", key, "--out", tmp_path / "out", *arguments)

    return call


def issued(tmp_path: Path) -> list[SignedReceipt]:
    return list(read_receipts(tmp_path / "out" / "receipts.jsonl"))


def test_a_key_is_made_once(tally: Tally, tmp_path: Path) -> None:
    told = tally("new-key", tmp_path / "key")
    assert (told.code, len(told.out.strip())) == (0, 64)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    held = (tmp_path / "key").read_bytes()
    again = tally("new-key", tmp_path / "key")
    assert (again.code, again.out) == (2, "")
    assert "never overwritten" in again.complaint
    assert (tmp_path / "key").read_bytes() == held


def test_an_answer_is_printed_and_its_receipt_kept(
    generate: Tally, tmp_path: Path, language_model: Any, tally: Tally
) -> None:
    told = generate("--prompt", "Notch 1", "--max-tokens", 6, "--temperature", 0)
    assert told.code == 0
    [signed] = issued(tmp_path)
    verify_receipt_signature(signed)
    receipt = signed.receipt
    assert receipt.answer.tokens.ids is not None
    assert told.out == language_model.decode(receipt.answer.tokens.ids) + "\n"
    assert receipt.request.prompt.ids == tuple(language_model.encode_text("Notch 1"))
    assert receipt.model == language_model.card.identity
    assert receipt.sampler.is_greedy
    assert [each.layers for each in receipt.fingerprints] == [(0, 2, 3)]


def test_every_setting_reaches_the_receipt(generate: Tally, tmp_path: Path) -> None:
    sampler = ("--temperature", 0.5, "--top-k", 9, "--top-p", 0.8, "--min-p", 0.05, "--repetition-penalty", 1.1)
    request = ("--seed", 42, "--nonce", "00ff", "--request-id", "mine", "--max-tokens", 4)
    engine = ("--dtype", "BF16", "--attention", "eager", "--fingerprint", "toploc", "--layers", "all", "--private")
    told = generate("--prompt", "Notch", *sampler, *request, *engine, "--json")
    assert told.code == 0
    signed = SignedReceipt.from_bytes(told.out.rstrip("\n").encode(), "stdout")
    assert issued(tmp_path) == [signed]
    receipt = signed.receipt
    assert receipt.sampler == Sampler(temperature=0.5, top_k=9, top_p=0.8, min_p=0.05, repetition_penalty=1.1, seed=42)
    assert (receipt.request.id, receipt.request.nonce, receipt.request.max_tokens) == ("mine", "00ff", 4)
    assert (receipt.answer.tokens.ids, receipt.answer.tokens.count) == (None, 4)
    assert receipt.engine.attention == "eager"
    assert [(each.method, each.layers) for each in receipt.fingerprints] == [("toploc", (each,)) for each in range(3)]


def test_a_model_that_was_imported_in_bf16_is_used_in_bf16(tally: Tally, model_directory: Path, tmp_path: Path) -> None:
    half, key = tmp_path / "half", tmp_path / "provider.key"
    assert tally("import-model", model_directory, half, "--dtype", "BF16").code == 0
    assert tally("new-key", key).code == 0
    asked = ("--prompt", "Notch 1", "--max-tokens", 6)
    assert tally("generate", half, "--key", key, "--out", tmp_path / "out", *asked).code == 0
    [signed] = issued(tmp_path)
    assert signed.receipt.model == tally("model-root", half).out.strip()
    told = tally("verify-response", tmp_path / "out" / "receipts.jsonl", "--model", half, "--rung", 2)
    assert not {"objection:", "--dtype"} & {*told.out.split()}, told
    told = tally("verify-response", tmp_path / "out" / "receipts.jsonl", "--model", half, "--dtype", "F32")
    assert told.code == 3
    assert "the receipt is for the model in BF16, and it was loaded in F32: give --dtype BF16" in told.out


def test_the_same_seed_gives_the_same_answer(generate: Tally, tmp_path: Path) -> None:
    first, again, other = (generate("--prompt", "Notch", "--max-tokens", 12, "--seed", seed).out for seed in (1, 1, 2))
    assert first == again != other
    drawn = [generate("--prompt", "Notch", "--max-tokens", 2).code for _ in range(2)]
    assert drawn == [0, 0]
    assert len({each.receipt.sampler.seed for each in issued(tmp_path)}) == 4


def test_prompts_and_chats_make_one_batch_and_one_chain(generate: Tally, tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "Hi"}]))
    assert generate("--prompt", "Notch 1", "--prompt", "N", "--chat", chat, "--max-tokens", 3).code == 0
    assert generate("--prompt", "Notch 1", "--max-tokens", 3).code == 0
    receipts = [each.receipt for each in issued(tmp_path)]
    assert [each.batch.largest for each in receipts] == [3, 3, 3, 1]
    assert [each.sequence for each in receipts] == [1, 2, 3, 4]
    assert receipts[3].previous == receipts[2].identity
    assert receipts[2].request.prompt.ids is not None
    assert bytes(receipts[2].request.prompt.ids) == b"user: Hi\nassistant: "


def test_states_are_opened_later(generate: Tally, tally: Tally, tmp_path: Path) -> None:
    assert (
        generate("--prompt", "Notch", "--max-tokens", 5, "--commit", "--layers", "0,2", "--request-id", "a").code == 0
    )
    told = tally("open-states", tmp_path / "out", "a", "--nonce", "beef", "--count", 2)
    assert told.code == 0
    opening = StatesOpening.from_bytes(told.out.rstrip("\n").encode(), "stdout")
    statement = issued(tmp_path)[0].receipt.states
    assert statement is not None
    assert len(check_states_opening(opening, statement, bytes.fromhex("beef"), 2)) == 2


def test_what_cannot_be_opened_is_said(generate: Tally, tally: Tally, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tally("open-states", out, "a", "--nonce", "00").code == 4
    assert generate("--prompt", "Notch", "--max-tokens", 2, "--request-id", "a").code == 0
    assert "no states are kept of request a" in tally("open-states", out, "a", "--nonce", "00").complaint
    assert "no receipt of request b" in tally("open-states", out, "b", "--nonce", "00").complaint
    assert generate("--prompt", "Notch", "--max-tokens", 2, "--request-id", "c", "--commit").code == 0
    for nonce in ("0", "zz", "", "00" * 65):
        told = tally("open-states", out, "c", "--nonce", nonce)
        assert (told.code, told.out) == (2, ""), nonce
        assert "nonce" in told.complaint


BAD: dict[str, tuple[tuple[object, ...], int, str]] = {
    "nothing to answer": ((), 2, "--prompt TEXT or --chat FILE"),
    "an empty prompt": (("--prompt", ""), 2, "--prompt: no tokens"),
    "too many tokens": (("--prompt", "Notch", "--max-tokens", 40), 2, "32 positions"),
    "no tokens": (("--prompt", "Notch", "--max-tokens", 0), 2, "--max-tokens"),
    "a negative temperature": (("--prompt", "Notch", "--temperature", -1), 2, "temperature"),
    "a penalty of nothing": (("--prompt", "Notch", "--repetition-penalty", 0), 2, "--repetition-penalty: must be"),
    "a temperature that is no number": (("--prompt", "Notch", "--temperature", "nan"), 2, "temperature"),
    "a seed beyond all": (("--prompt", "Notch", "--seed", 1 << 53), 2, "seed"),
    "an unknown dtype": (("--prompt", "Notch", "--dtype", "F8"), 2, "--dtype: must be F32, BF16 or F16, not 'F8'"),
    "an unknown attention": (("--prompt", "Notch", "--attention", "flash"), 2, "--attention: must be"),
    "an unknown fingerprint": (("--prompt", "Notch", "--fingerprint", "thumb"), 2, "--fingerprint: must be"),
    "a layer that is not there": (("--prompt", "Notch", "--layers", "0,4"), 2, "layers are from 0 to 3"),
    "layers in words": (("--prompt", "Notch", "--layers", "top"), 2, "--layers top"),
    "a nonce of words": (("--prompt", "Notch", "--nonce", "hello"), 2, "nonce"),
    "an id with a path in it": (("--prompt", "Notch", "--request-id", "../a"), 2, "id"),
    "one id for two": (("--prompt", "a", "--prompt", "b", "--request-id", "a"), 2, "--request-id"),
    "no file of messages": (("--chat", "/nowhere/chat.json"), 4, "chat.json"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_said_in_one_line(generate: Tally, tmp_path: Path, what: str) -> None:
    arguments, code, named = BAD[what]
    told = generate(*arguments)
    assert (told.code, told.out) == (code, ""), told.err
    assert named in told.complaint
    assert not (tmp_path / "out" / "states").exists()


MESSAGES = [
    "{}",
    "[]",
    "[1]",
    '[{"role":"user"}]',
    '[{"role":"user","content":5}]',
    '[{"role":"u","content":"c","x":"y"}]',
]


@pytest.mark.parametrize("text", [*MESSAGES, "", "[{]", '[{"role":"user","role":"user","content":"c"}]', "[" * 100])
def test_messages_that_are_none_are_refused(generate: Tally, tmp_path: Path, text: str) -> None:
    (tmp_path / "chat.json").write_text(text)
    told = generate("--chat", tmp_path / "chat.json")
    assert (told.code, told.out) == (4, "")
    assert told.complaint.startswith("tally: chat.json:")


def test_a_key_or_model_that_is_not_there_is_said(
    tally: Tally, key: Path, tmp_path: Path, model_directory: Path
) -> None:
    more = ("--prompt", "x", "--out", tmp_path / "out")
    told = tally("generate", model_directory, "--key", tmp_path / "none", *more)
    assert (told.code, "tally new-key" in told.complaint) == (2, True)
    (tmp_path / "broken").write_text("no key")
    assert tally("generate", model_directory, "--key", tmp_path / "broken", *more).code == 4
    assert tally("generate", tmp_path / "nowhere", "--key", key, *more).code == 4
    assert tally("generate", tmp_path, "--key", key, *more).code == 4


def test_a_model_is_exported_for_transformers(tally: Tally, plain: Path, tmp_path: Path, language_model: Any) -> None:
    from tallystick.engines.torch.generation.language_models import load_language_model

    assert tally("export-model", plain, tmp_path / "model").code == 0
    assert load_language_model(tmp_path / "model").card == language_model.card
    assert tally("export-model", plain, tmp_path / "model").code == 2
    assert tally("export-model", tmp_path / "nowhere", tmp_path / "other").code == 4


def test_what_can_be_refused_is_refused_before_pytorch_is_loaded(
    plain: Path, model_directory: Path, tmp_path: Path
) -> None:
    taken = tmp_path / "it is taken"
    taken.mkdir()
    (taken / "file").write_bytes(b"x")
    refused = [
        ["export-model", plain, taken],
        ["attack", "record-edited", plain, taken],
        ["serve-model", model_directory, "--key", taken / "no key"],
        ["verify-response", taken, "--model", model_directory],
    ]
    words = [[str(word) for word in each] for each in refused]
    code = "import sys; from tallystick.tally.cli.entry import run; "
    code += f"print([run(each) for each in {words!r}], 'torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[2, 2, 2, 4] False\n"
    exported, forged, served, verified = told.stderr.splitlines()
    assert exported == forged == f"tally: {taken}: not an empty directory; choose another one"
    assert served.endswith(f"`tally new-key '{taken}/no key'` makes one")
    assert verified == f"tally: it is taken: a folder, not a file (looked in {tmp_path})"
