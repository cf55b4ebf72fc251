"""`tally serve-model` as a process: it says where it listens, answers, and ends cleanly at Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tallystick.formats.signing import SigningKey, verify_receipt_signature
from tallystick.formats.store.receipts import read_receipts
from tallystick.tally.cli.entry import run
from tests.support.prefork.commands import commands

BODY = {"model": "promised", "prompt": "the stick", "max_tokens": 3}


@contextmanager
def started(*arguments: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The address and what else the command prints; in the end it is interrupted, and ends well."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([commands() / "tally", "serve-model", *arguments], env=environment, **pipes) as process:
        try:
            address, *told = [process.stdout.readline() for _ in range(3)]
            yield address.strip(), dict(line.split() for line in told)
        finally:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "stopped\n")


def test_a_served_model_and_a_proxy_before_it(model_directory: Path, language_model: Any, tmp_path: Path) -> None:
    key, other, auditors = tmp_path / "key", tmp_path / "other", tmp_path / "auditors"
    SigningKey(bytes(32)).write(key)
    SigningKey(bytes(range(32))).write(other)
    auditors.write_text("seen-by-auditors\n")
    named = ["--name", "promised", "--auditor-keys", str(auditors)]
    with started(str(model_directory), "--key", str(key), "--journal", str(tmp_path / "log"), *named) as (url, told):
        assert told == {"key": SigningKey(bytes(32)).public, "model": language_model.card.identity}
        answer = httpx.post(f"{url}/completions", json=BODY, timeout=120).json()
        assert len(answer["receipt"]["receipt"]["fingerprints"]) == 1
        with started("--proxy", url, "--key", str(other), *named) as (front, told_in_front):
            assert told_in_front["model"] != told["model"]
            passed = httpx.post(f"{front}/completions", json=BODY, timeout=120).json()
            assert passed["receipt"]["key"] == SigningKey(bytes(range(32))).public
            assert passed["upstream_receipt"]["key"] == told["key"]
    kept = list(read_receipts(tmp_path / "log" / "receipts.jsonl"))
    assert [each.to_json() for each in kept] == [answer["receipt"], passed["upstream_receipt"]]
    for each in kept:
        verify_receipt_signature(each)


def test_a_proxy_loads_no_weights(model_directory: Path, language_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tallystick.engines.torch.generation import language_models
    from tallystick.recording.serving import proxy
    from tallystick.tally.cli.serve_model import Provider, _proxy

    seen: list[Any] = []
    monkeypatch.setattr(language_models, "load_language_model", None)
    monkeypatch.setattr(proxy, "create_proxy", lambda upstream, *_: seen.append(upstream))
    provider = Provider("m", SigningKey(bytes(32)), None, frozenset(), frozenset(), False)
    _, _, root = _proxy("http://127.0.0.1:1", model_directory, "F32", provider)
    assert root == seen[0].card.identity == language_model.card.identity
    assert seen[0].tokenizer.encode_text("the stick") == language_model.encode_text("the stick")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a model directory is needed"),
        (("--proxy", "http://127.0.0.1:1"), "at least the --name"),
        (("--proxy", "ftp://a", "--name", "m"), "no URL of a server"),
        (("--proxy", "http://a", "--name", "m", "--api-keys", "k"), "the server that asks for keys"),
        (("MODEL", "--journal", "log"), "--journal: a journal goes on under one key"),
        (("MODEL", "--key", "nowhere"), "tally new-key"),
        (("MODEL", "--fingerprint", "thumb"), "projection, toploc or none"),
        (("MODEL", "--layers", "9"), "layers are from 0 to 3"),
        (("MODEL", "--host", "192.0.2.1"), "cannot listen there"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    model_directory: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    named = [str(model_directory) if each == "MODEL" else each for each in arguments]
    assert run(["serve-model", *named]) in (2, 4)
    assert said in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model_directory: Path
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(["serve-model", str(model_directory)]) == 4
    assert "pip install 'tallystick[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "two words\n"])
def test_a_file_of_keys_without_keys_is_refused(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(content)
    assert run(["serve-model", str(model_directory), "--api-keys", str(keys)]) == 2
    assert "one a line" in capsys.readouterr().err
