"""`tally verify-response` as a person runs it: exit codes, tables, and one line for bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest
from tallystick.formats.receipt import SIGNED, tokens_digest
from tallystick.formats.signing import SigningKey, sign_receipt
from tallystick.tally.cli.entry import run

LAX = """
[sampler]
dishonest = 0.3
beta = 0.05

[[fingerprints.rows]]
dtype = "F32"
layers = 64
width = 4096
place = "block"
largest = 1e-4

[[fingerprints.rows]]
dtype = "F32"
layers = 64
width = 4096
place = "final"
largest = 1e-4

[[fingerprints.rows]]
dtype = "F32"
layers = 64
width = 4096
place = "logits"
largest = 1e-4
"""
NONCE = "07" * 16
PROMPT = "The stick is"


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey(bytes(range(32)))


@pytest.fixture(scope="module")
def answers(language_model: Any, key: SigningKey, one_thread: None) -> list[Any]:
    """Three answers under one key."""
    from tallystick.formats.fingerprints import FingerprintSettings
    from tallystick.formats.receipt import Sampler
    from tallystick.recording.generation import AnswerRequest, generate_plain
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    settings = RecordSettings((FingerprintSettings(layers=(2, 3)),), committed=(0, 1, 2), block=8, prompt=True)
    issuer = ReceiptIssuer(language_model, key, settings)
    prompt = language_model.encode_text(PROMPT)
    asked = [AnswerRequest(f"r{seed}", f"{seed:02x}", Sampler(seed=seed, temperature=0.8)) for seed in range(3)]
    return [generate_plain(language_model, [prompt], 16, [each], issuer)[0] for each in asked]


@pytest.fixture
def files(answers: list[Any], language_model: Any, tmp_path: Path) -> Path:
    """A folder with a policy, a receipt, a response, a request, a stream and an opening."""
    signed = answers[0].issued.signed
    (tmp_path / "policy.toml").write_text(LAX)
    (tmp_path / "receipt.json").write_bytes(signed.to_bytes())
    (tmp_path / "receipts.jsonl").write_bytes(b"".join(each.issued.signed.to_bytes() + b"\n" for each in answers))
    response = {
        "id": "r0",
        "choices": [{"text": language_model.decode(answers[0].tokens), "finish_reason": "length"}],
        "usage": {"prompt_tokens": len(answers[0].prompt), "completion_tokens": 16},
        "receipt": signed.to_json(),
    }
    (tmp_path / "response.json").write_text(json.dumps(response))
    body = {"prompt": PROMPT, "temperature": 0.8, "seed": 0, "tally_nonce": "00", "max_tokens": 16}
    (tmp_path / "request.json").write_text(json.dumps(body))
    opening = answers[0].issued.states.open(bytes.fromhex(NONCE), 1024)
    (tmp_path / "opening.json").write_bytes(opening.to_bytes())
    return tmp_path


@pytest.fixture
def tally(
    files: Path, model_directory: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`tally verify-response FILE… --model … --policy …`: exit code, stdout and stderr."""

    def verify(name: str, *options: str, model: Path = model_directory) -> tuple[int, str, str]:
        paths = [str(files / each) for each in name.split()]
        code = run(["verify-response", *paths, "--model", str(model), "--policy", str(files / "policy.toml"), *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return verify


def test_an_honest_receipt_is_exit_0_and_a_table_is_shown_on_request(tally: Callable[..., Any]) -> None:
    code, out, _ = tally("receipt.json")
    assert code == 0, out
    assert out.startswith("ACCEPTED  All ")
    assert " answer tokens were computed again with the promised model, and all agreed." in out.splitlines()[0]
    assert "seconds: " in out
    assert "prefill" not in out
    _, out, _ = tally("receipt.json", "--verbose")
    for word in (
        "signature",
        "sampler",
        "evidence",
        "fingerprint",
        "prefill",
        "seconds",
        "bytes",
        "rung 1: token test",
    ):
        assert word in out
    assert "not checked: " in out


def test_a_response_with_its_request_answers_every_question(tally: Callable[..., Any], files: Path) -> None:
    code, out, _ = tally("response.json", "--request", str(files / "request.json"), "--json")
    assert code == 0, out
    replies = json.loads(out)["answers"]
    assert replies == {**dict.fromkeys(replies, "fits"), "same token count": "yes"}


def test_a_trusted_key_is_named_without_a_policy(
    tally: Callable[..., Any], files: Path, key: SigningKey, language_model: Any
) -> None:
    assert (
        "not checked: whose key signed the receipt: name the keys that you trust with --trust-key"
        in tally("receipt.json")[1]
    )
    other = SigningKey(bytes(32)).public
    (files / "keys").write_text(f"{other}\n{key.public}\n")
    (files / "keys").chmod(0o644)
    for keys in (key.public, str(files / "keys")):
        code, out, _ = tally("receipt.json", "--trust-key", keys)
        assert code == 0, out
        assert "whose key" not in out
    assert tally("receipts.jsonl", "--trust-key", other, "--trust-key", key.public)[0] == 0
    for name in ("receipt.json", "receipts.jsonl"):
        code, out, _ = tally(name, "--trust-key", other)
        assert (code, "is not a key that the policy trusts" in out) == (1, True)
    code, _, told = tally("receipt.json", "--trust-key", "nowhere")
    assert (code, told.startswith("tally: nowhere: neither a public key")) == (2, True)


def test_other_settings_than_asked_are_exit_1(tally: Callable[..., Any], files: Path) -> None:
    body = json.loads((files / "request.json").read_text())
    (files / "request.json").write_text(json.dumps(body | {"temperature": 0.5}))
    code, out, _ = tally("response.json", "--request", str(files / "request.json"))
    assert code == 1
    assert "objection: settings at temperature" in out


def test_a_forged_receipt_is_exit_1(
    tally: Callable[..., Any], files: Path, answers: list[Any], key: SigningKey
) -> None:
    receipt = answers[0].issued.signed.receipt
    forged = receipt.model_copy(update={"sampler": receipt.sampler.model_copy(update={"seed": 9})})
    (files / "receipt.json").write_bytes(sign_receipt(forged, key).to_bytes())
    code, out, _ = tally("receipt.json")
    assert code == 1
    assert "same sampler: no" in out


def test_too_few_tokens_are_exit_3_until_a_higher_rung(tally: Callable[..., Any], files: Path) -> None:
    (files / "policy.toml").write_text(LAX.replace("dishonest = 0.3\nbeta = 0.05\n", ""))
    code, out, _ = tally("receipt.json", "--rung", "2")
    assert code == 3
    assert "could not check: evidence" in out
    code, out, _ = tally("receipt.json", "--verbose")
    assert code == 0, out
    assert "rung 4: exact replay" in out


def test_a_provider_that_holds_the_states_no_longer_leaves_the_verdict_open(
    tally: Callable[..., Any], files: Path
) -> None:
    said = {"error": {"message": "the hidden states of request r0 are not held", "code": "states_gone"}}
    (files / "gone.json").write_text(json.dumps(said))
    given = ("--nonce", NONCE, "--count", "4", "--rung", "2")
    code, out, _ = tally("receipt.json", "--opening", str(files / "gone.json"), *given)
    assert code == 3
    assert "could not check: states: the provider does not open its states: the hidden states of request r0" in out
    assert "objection" not in out


def test_one_layer_is_judged_from_an_opening(tally: Callable[..., Any], files: Path) -> None:
    opened = ("--opening", str(files / "opening.json"), "--nonce", NONCE, "--count", "1024")
    code, out, _ = tally("receipt.json", *opened, "--rung", "3", "--layer", "1", "--verbose")
    assert code == 0, out
    assert "rung 3: one layer by operators" in out
    assert "layer" in out
    code, _, _ = tally("receipt.json", *opened[:2], "--nonce", "00" * 16, "--count", "1024")
    assert code == 1


def test_a_stream_is_judged_together(tally: Callable[..., Any], files: Path) -> None:
    code, out, _ = tally("receipts.jsonl")
    assert code == 0, out
    assert "3 receipts, 3 computed, 48 tokens" in out
    assert "repeat with --nonce" in out
    code, out, _ = tally("receipts.jsonl receipt.json")
    assert code == 1
    assert "replayed" in out
    code, out, _ = tally("receipts.jsonl", "--audit-sample", "0")
    assert code == 3
    code, out, _ = tally("receipts.jsonl", "--audit-sample", "0.5", "--nonce", NONCE, "--json")
    assert json.loads(out)["audit_sample"] == 0.5


def test_requests_of_a_stream_go_line_by_line(tally: Callable[..., Any], files: Path) -> None:
    bodies = [{"prompt": PROMPT, "temperature": 0.8, "seed": seed, "tally_nonce": f"{seed:02x}"} for seed in range(3)]
    path = files / "requests.jsonl"
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    assert tally("receipts.jsonl", "--request", str(path))[0] == 0
    path.write_text("".join(json.dumps(body) + "\n" for body in reversed(bodies)))
    assert tally("receipts.jsonl", "--request", str(path))[0] == 1
    path.write_text(json.dumps(bodies[0]) + "\n")
    code, _, err = tally("receipts.jsonl", "--request", str(path))
    assert code == 2
    assert "1 requests for 3 receipts" in err


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda held: held["answer"]["tokens"].update(count=-1), "receipt.answer.tokens.count"),
        (lambda held: held["answer"]["tokens"].update(count=1 << 40), "receipt.answer.tokens.count"),
        (lambda held: held["answer"]["tokens"].update(count=3), "ids, count and digest do not belong together"),
        (lambda held: held["request"].update(max_tokens="many"), "receipt.request.max_tokens"),
        (lambda held: held.update(unknown=1), "receipt.unknown"),
        (lambda held: held["fingerprints"][0].update(tokens=3), "fingerprints.0.tokens"),
    ],
)
@pytest.mark.parametrize("is_signed", [True, False])
def test_a_receipt_that_cannot_be_is_rejected_with_a_report(
    tally: Callable[..., Any],
    files: Path,
    change: Callable[[Any], Any],
    field: str,
    is_signed: bool,
    key: SigningKey,
) -> None:
    held = json.loads((files / "receipt.json").read_text())
    change(held["receipt"])
    if is_signed:
        held["signature"] = key.sign(SIGNED + encode(held["receipt"]))
    (files / "receipt.json").write_text(json.dumps(held))
    code, out, _ = tally("receipt.json")
    assert code == 1, out
    assert field in out
    assert ("objection: signature" in out) is not is_signed
    code, out, _ = tally("receipt.json", "--json")
    assert (code, json.loads(out)["verdict"]) == (1, "rejected")


def test_a_signed_token_that_the_model_lacks_is_rejected_with_a_report(
    tally: Callable[..., Any], files: Path, key: SigningKey
) -> None:
    held = json.loads((files / "receipt.json").read_text())
    held["receipt"]["answer"]["tokens"] = tokens_of(15, 1 << 20)
    held["signature"] = key.sign(SIGNED + encode(held["receipt"]))
    (files / "receipt.json").write_text(json.dumps(held))
    code, out, _ = tally("receipt.json")
    assert code == 1, out
    assert "objection: numbers: receipt.answer.tokens.ids: 1048576 is outside the vocabulary" in out


@pytest.mark.parametrize("requests", [False, True])
def test_an_altered_receipt_of_a_file_is_rejected_by_name_and_the_others_are_judged(
    tally: Callable[..., Any], files: Path, requests: bool
) -> None:
    lines = (files / "receipts.jsonl").read_text().splitlines()
    altered = json.loads(lines[1])
    altered["receipt"]["answer"]["tokens"]["ids"][0] ^= 1  # no longer those of the digest
    name = digest("receipt", encode(altered["receipt"]))
    (files / "altered.jsonl").write_text("\n".join([lines[0], json.dumps(altered), lines[2]]) + "\n")
    body = json.loads((files / "request.json").read_text())
    asked = [json.dumps(body | {"seed": seed, "tally_nonce": f"{seed:02x}"}) for seed in range(3)]
    (files / "asked.jsonl").write_text("\n".join(asked) + "\n")
    options = ("--request", str(files / "asked.jsonl")) if requests else ()
    code, out, _ = tally("altered.jsonl", *options)
    assert code == 1, out
    assert f"single receipts: 2 accepted, 1 rejected (receipt {name})" in out
    assert f"objection: form at receipt {name}" in out
    assert f"objection: signature at receipt {name}" in out
    assert out.count("objection: ") == 2
    assert out.splitlines()[1].startswith("3 receipts, 2 computed")
    report = json.loads(tally("altered.jsonl", *options, "--json")[1])
    assert [each["verdict"] for each in report["reports"]] == ["accepted", "accepted"]
    assert [(each["verdict"], each["subject"]) for each in report["unread"]] == [("rejected", f"receipt {name}")]
    code, out, _ = tally("receipts.jsonl", *options)
    assert (code, "single receipts: 3 accepted\n" in out) == (0, True)


def test_two_altered_receipts_alone_are_both_named(tally: Callable[..., Any], files: Path) -> None:
    altered = [json.loads(each) for each in (files / "receipts.jsonl").read_text().splitlines()[:2]]
    for each in altered:
        each["receipt"]["answer"]["tokens"]["count"] += 1
    (files / "altered.jsonl").write_text("".join(json.dumps(each) + "\n" for each in altered))
    code, out, _ = tally("altered.jsonl")
    assert code == 1, out
    assert all(f"form at receipt {digest('receipt', encode(each['receipt']))}" in out for each in altered)


def tokens_of(count: int, last: int) -> dict[str, Any]:
    ids = [*range(count), last]
    return {"ids": ids, "count": len(ids), "digest": str(tokens_digest(ids))}


def test_a_receipt_of_a_later_version_is_inconclusive_and_so_is_a_stream_with_one(
    tally: Callable[..., Any], files: Path
) -> None:
    lines = (files / "receipts.jsonl").read_text().splitlines()
    later = json.loads(lines[1])
    later["receipt"]["receipt"] = 2
    (files / "later.json").write_text(json.dumps(later))
    (files / "receipts.jsonl").write_text("\n".join([lines[0], json.dumps(later), lines[2]]) + "\n")
    (files / "response.json").write_text(json.dumps({"id": "r1", "receipt": later}))
    for name in ("later.json", "response.json", "receipts.jsonl"):
        code, out, _ = tally(name)
        assert code == 3, out
        assert "form: a receipt of version 2, and version 1 is known here" in out
    assert "single receipts: 2 accepted, 1 inconclusive (receipt sha256:" in out
    assert json.loads(tally("later.json", "--json")[1])["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda held: held.pop("receipt"), "receipt"),
        (lambda held: held.pop("signature"), "receipt"),
        (lambda held: held.update(receipt=[]), "receipt"),
        (lambda held: held.update(key="no key"), "key"),
    ],
)
def test_what_is_no_signed_receipt_is_exit_4_and_names_the_field(
    tally: Callable[..., Any], files: Path, change: Callable[[Any], Any], field: str
) -> None:
    held = json.loads((files / "receipt.json").read_text())
    change(held)
    (files / "receipt.json").write_text(json.dumps(held))
    code, out, err = tally("receipt.json")
    assert code == 4, out
    assert field in err
    assert err.count("\n") == 1


def test_bytes_that_are_no_json_are_exit_4(tally: Callable[..., Any], files: Path) -> None:
    for data in (b"", b"{", b"\xff\xfe", b"[" * 5000):
        (files / "receipt.json").write_bytes(data)
        assert tally("receipt.json")[0] == 4
    (files / "receipts.jsonl").write_bytes(b"{}\n")
    code, _, err = tally("receipts.jsonl")
    assert code == 4
    assert "line 1" in err


def test_a_directory_that_is_no_model_is_exit_4_and_another_precision_exit_3(
    tally: Callable[..., Any], files: Path, model_directory: Path, tmp_path: Path
) -> None:
    assert tally("receipt.json", model=files)[0] == 4
    assert tally("receipt.json", model=files / "nowhere")[0] == 4
    code, out, _ = tally("receipt.json", "--dtype", "BF16")
    assert code == 3
    assert "could not check: model: the receipt is for the model in F32" in out
    assert "--dtype F32" in out


@pytest.mark.parametrize(
    "options",
    [
        ("--dtype", "F64"),
        ("--rung", "5"),
        ("--attention", "none"),
        ("--nonce", "xyz"),
        ("--audit-sample", "2"),
    ],
)
def test_wishes_that_make_no_sense_are_exit_2(tally: Callable[..., Any], options: tuple[str, ...]) -> None:
    assert tally("receipt.json", *options)[0] == 2


def test_an_opening_needs_the_verifiers_nonce(tally: Callable[..., Any], files: Path) -> None:
    code, _, err = tally("receipt.json", "--opening", str(files / "opening.json"))
    assert code == 2
    assert "--nonce" in err
    code, _, err = tally("receipts.jsonl", "--opening", str(files / "opening.json"), "--nonce", NONCE)
    assert code == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [({}, 0), ({"dtype": "BF16"}, 3), ({"layers": 1}, 3), ({"width": 1}, 3)],
    ids=["measured", "another precision", "deeper", "wider"],
)
def test_limits_measured_for_a_model_hold_for_it(
    tally: Callable[..., Any], files: Path, change: dict[str, Any], code: int
) -> None:
    model = {"dtype": "F32", "layers": 2, "width": 64, **change}
    rows = [{**model, "place": place, "largest": 1e-4} for place in ("block", "final", "logits")]
    table = {"machine": "here", "software": "here", "stacks": [], "rows": rows}
    (files / "limits.json").write_text(json.dumps(table))
    found, out, err = tally("receipt.json", "--limits", str(files / "limits.json"), "--rung", "2")
    assert found == code, out + err
    assert ("no limits were measured for 2 layers" in out) is (code == 3)


def test_one_request_is_that_of_all_the_answers_to_it(
    tally: Callable[..., Any], files: Path, answers: list[Any], key: SigningKey
) -> None:
    """Two choices with a receipt each, as a server delivers them: the seeds count upward."""
    signed = []
    for number, each in enumerate(answers[:2]):
        request = each.issued.signed.receipt.request.model_copy(update={"id": f"r-{number}", "nonce": "00"})
        previous = signed[0].receipt.identity if signed else None
        receipt = each.issued.signed.receipt.model_copy(update={"request": request, "previous": previous})
        signed.append(sign_receipt(receipt, key))
    response = {"id": "r", "receipts": [each.to_json() for each in signed]}
    (files / "two.json").write_text(json.dumps(response))
    asked = json.loads((files / "request.json").read_text())
    (files / "request.json").write_text(json.dumps(asked | {"n": 2}))
    code, out, _ = tally("two.json", "--request", str(files / "request.json"))
    assert code == 0, out
    (files / "request.json").write_text(json.dumps(asked | {"n": 2, "seed": 5}))
    assert tally("two.json", "--request", str(files / "request.json"))[0] == 1
    assert tally("two.json receipt.json", "--request", str(files / "request.json"))[0] == 2


@pytest.fixture(scope="module")
def stored_in_halves(model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a directory whose weights are stored in BF16, as most models are published."""
    import torch
    from safetensors.torch import load_file, save_file

    out = Path(shutil.copytree(model_directory, tmp_path_factory.mktemp("halves") / "model"))
    weights = load_file(out / "model.safetensors")
    halves = {name: value.to(torch.bfloat16) for name, value in weights.items()}
    save_file(halves, out / "model.safetensors", {"format": "pt"})
    configuration = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(configuration | {"dtype": "bfloat16"}))
    return out


@pytest.mark.parametrize(("made_in", "checked_in"), [("BF16", "F32"), ("F32", "BF16")])
def test_a_receipt_of_a_model_stored_in_halves_is_never_rejected_for_its_precision(
    tally: Callable[..., Any],
    files: Path,
    stored_in_halves: Path,
    key: SigningKey,
    made_in: Any,
    checked_in: str,
) -> None:
    from tallystick.engines.torch.generation.language_models import load_language_model
    from tallystick.formats.receipt import Sampler
    from tallystick.recording.generation import AnswerRequest, generate_plain
    from tallystick.recording.receipts import ReceiptIssuer, RecordSettings

    served = load_language_model(stored_in_halves, made_in)
    asked = [AnswerRequest("r", "00", Sampler(seed=1, temperature=0.8))]
    issuer = ReceiptIssuer(served, key, RecordSettings())
    (answer,) = generate_plain(served, [served.encode_text(PROMPT)], 16, asked, issuer)
    (files / "halves.json").write_bytes(answer.issued.signed.to_bytes())
    given = () if checked_in == "BF16" else ("--dtype", checked_in)  # by default as the directory states
    code, out, _ = tally("halves.json", *given, "--rung", "2", model=stored_in_halves)
    assert code == 3, out
    assert "objection" not in out
    assert f"it was loaded in {checked_in}: give --dtype {made_in} if that is what was promised" in out
    given = () if made_in == "BF16" else ("--dtype", made_in)
    code, out, _ = tally("halves.json", *given, "--rung", "2", model=stored_in_halves)
    assert "objection" not in out
    assert "give --dtype" not in out


@pytest.mark.parametrize("forged", [False, True])
def test_of_several_receipts_the_share_that_the_policy_names_is_opened(
    tally: Callable[..., Any], files: Path, answers: list[Any], monkeypatch: pytest.MonkeyPatch, forged: bool
) -> None:
    """States that were committed before the nonce was drawn cannot be made to fit it."""
    from dataclasses import replace

    from tallystick.audits.answers.subject import StatesChallenge
    from tallystick.formats.hidden_states import drawn_layer, judged_layers
    from tallystick.tally import answers as challenges

    asked: list[str] = []

    def opened(subject: Any, url: str, nonce: bytes, count: int | None) -> Any:
        assert count is None, "a layer is opened, not parts"
        asked.append(subject.receipt.request.id)
        held = next(each for each in answers if each.issued.signed.receipt == subject.receipt)
        states = answers[0].issued.states if forged else held.issued.states
        layer = drawn_layer(nonce, states.statement, judged_layers(states.statement))
        return replace(subject, challenge=StatesChallenge(nonce, 1, states.open(nonce, layer=layer), layer)), b""

    monkeypatch.setattr(challenges, "challenge_provider", opened)
    told = ("--challenge", "http://127.0.0.1:1/v1", "--nonce", NONCE)
    (files / "policy.toml").write_text("open_sample = 1.0\n" + LAX)
    code, out, _ = tally("receipts.jsonl", *told)
    assert len(asked) == 3
    assert (code, "objection: states" in out) == ((1, True) if forged else (0, False)), out
    asked.clear()
    (files / "policy.toml").write_text("open_sample = 0.0\n" + LAX)
    code, out, _ = tally("receipts.jsonl", *told)
    assert (code, asked) == (0, [])
    assert "the hidden states that the receipt commits to: challenge the provider" in out


def test_several_files_are_one_test_and_the_text_says_what_fits(tally: Callable[..., Any], files: Path) -> None:
    lines = (files / "receipts.jsonl").read_bytes().splitlines()
    for name, line in zip("abc", lines, strict=True):
        (files / f"{name}.json").write_bytes(line)
    code, out, _ = tally("a.json b.json c.json", "--json")
    found = json.loads(out)
    assert code == 0, out
    assert [each["sequence"] for each in found["reports"]] == [1, 2, 3]
    assert any("none left out for what it showed" in each for each in found["assumptions"])
    assert found["power_unknown"].startswith("not measured for a model of 2 layers")
    code, out, _ = tally("a.json b.json c.json")
    assert "model, precision, prompt, sampler: nothing speaks against them; what would is not measured" in out


def test_two_passes_are_the_default_without_a_policy(files: Path, model_directory: Path) -> None:
    from tallystick.tally.cli.verify_response import _policy

    assert [_policy(None, [], None, None, each).fingerprints.wide for each in (None, False, True)] == [
        True,
        False,
        True,
    ]
    held = files / "policy.toml"
    assert [_policy(held, [], None, None, each).fingerprints.wide for each in (None, False, True)] == [
        False,
        False,
        True,
    ]


def test_a_kept_pass_gives_the_same_verdict(
    tally: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.engines.torch.generation import kept_pass

    def unless_timed(text: str) -> list[str]:
        return [each for each in text.splitlines() if "seconds" not in each]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, out, err = tally("receipt.json", "--rung", "2", "--keep-pass")
    assert code == 0
    assert "kept the graph of the model's pass" in err
    monkeypatch.setattr(kept_pass, "load_language_model", None)  # nothing but the kept pass can answer
    again, same, silence = tally("receipt.json", "--rung", "2", "--keep-pass")
    assert (again, unless_timed(same), silence) == (0, unless_timed(out), "")


def test_a_pass_that_cannot_be_kept_costs_no_verdict(
    tally: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.core.errors import UnavailableError
    from tallystick.engines.torch.generation import kept_pass

    def refuse(*_: object) -> Path:
        raise UnavailableError("aten.nonzero cannot be captured")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_pass, "keep_pass", refuse)
    code, _, err = tally("receipt.json", "--rung", "2", "--keep-pass")
    assert code == 0
    assert "the graph of the model's pass is not kept: aten.nonzero" in " ".join(err.split())
