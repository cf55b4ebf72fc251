"""`docs/serving.md` does what it says: its commands and its program, on the tiny model and a free port."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.core.http.server import served
from tallystick.formats.signing import SigningKey
from tallystick.tally.cli import serve_model
from tallystick.tally.cli.entry import run

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
OWN = PAGE.partition("## vLLM")[0]
"""What needs no vLLM."""
COMMANDS = [shlex.split(line)[1:] for line in OWN.splitlines() if line.startswith("tally ")]
PROGRAM = "".join(re.findall(r"^```python\n(.*?)^```$", OWN, re.MULTILINE | re.DOTALL))
HERE = "http://127.0.0.1:8000"
SHORTER = {"What is a list?": "halves", '"max_tokens": 60': '"max_tokens": 4'}
"""As much as the tiny model has room for."""


def program(url: str) -> str:
    """What the page asks, at another address and of less length."""
    text = PROGRAM.replace(HERE, url)
    for shown, shorter in SHORTER.items():
        assert shown in text
        text = text.replace(shown, shorter)
    return text


def test_the_page_does_what_it_says(
    model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_directory, "model")
    _train, _export, new_key, serve, verify, proxy = COMMANDS
    assert run(new_key) == 0

    def listen(act: Callable[[str], None]) -> Callable[..., int]:
        def instead(host: str, port: int, app: Any, public: str, root: str) -> int:
            assert public == SigningKey.read(Path("provider.key")).public
            with served(app) as url:
                act(url)
            return 0

        return instead

    def ask(url: str) -> None:
        exec(program(url), {})
        monkeypatch.setattr(serve_model, "_listen", listen(ask_through))
        assert run([word.replace(HERE, url) for word in proxy]) == 0

    def ask_through(url: str) -> None:
        shutil.copy("answer.json", "direct.json")
        exec(program(url), {})

    monkeypatch.setattr(serve_model, "_listen", listen(ask))
    assert run(serve) == 0
    direct, through = (json.loads(Path(name).read_text()) for name in ("direct.json", "answer.json"))
    assert direct["choices"] == through["choices"]
    assert through["receipt"]["receipt"]["engine"]["version"] == "token ids by the server"
    shutil.copy("direct.json", "answer.json")
    assert run(verify) in (0, 3), capfd.readouterr()


def test_the_options_on_the_page_are_there(capfd: pytest.CaptureFixture[str]) -> None:
    run(["serve-model", "--help"])
    run(["verify-response", "--help"])
    offered = capfd.readouterr().out
    named = set(re.findall(r"`(--[a-z-]+)[ `]", OWN)) | {"--proxy", "--name", "--port"}
    assert {"--journal", "--private", "--commit", "--max-batch"} < named
    assert [option for option in sorted(named) if option not in offered] == []
