"""`tally train`, `audit` and `verify-data` on a corpus with a tokenizer that was made elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallystick

Tally = Callable[..., Any]

CONFIG = """
[data]
kind = "corpus"
path = "corpus"
[tokenizer]
kind = "huggingface"
path = "tokenizer.json"
end = "<|end|>"
[model]
architecture = "gpt2"
[model.config]
n_embd = 16
n_layer = 1
n_head = 2
n_positions = 16
[training]
steps = 2
batch = 2
sequence = 8
[record]
anchor_stride = 2
"""
LINES = '{"text":"a stick was notched"}\n{"text":"then split: the halves had to match"}\n' * 20


@pytest.fixture
def config(tmp_path: Path) -> Path:
    from tallystick.engines.tokenizers import to_pipeline, train_bpe

    pipeline = to_pipeline(train_bpe(LINES, 280))
    pipeline.add_special_tokens(["<|end|>"])
    (tmp_path / "tokenizer.json").write_text(pipeline.to_str())
    (tmp_path / "corpus").mkdir()
    for name in "ab":
        (tmp_path / "corpus" / f"{name}.jsonl").write_text(LINES)
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path / "config.toml"


def test_a_run_on_a_corpus_is_trained_audited_and_checked(tally: Tally, config: Path) -> None:
    corpus, run = config.parent / "corpus", config.parent / "run"
    assert tally("train", config, "--out", run, "--no-graph").code == 0
    told = tally("audit", run, "--corpus", corpus, "--shards", 1, "--samples", 1)
    assert told.code == 0
    assert f"--corpus {corpus} --shards 1" in told.out.replace("\n", " ")
    assert tally("verify-data", run, "--corpus", corpus).code == 0
    assert json.loads(tally("prove-data", run, "--index", 1).out)["index"] == 1
    told = tally("verify-data", run)
    assert told.code == 2
    assert "--corpus names the directory of the shards" in told.complaint
    (corpus / "b.jsonl").write_text(LINES.replace("split", "cut"))
    told = tally("verify-data", run, "--corpus", corpus)
    assert (told.code, told.complaint[:24]) == (1, "tally: 'b.jsonl' differs")
    (corpus / "b.jsonl").unlink()
    assert tally("verify-data", run, "--corpus", corpus).code == 4
    assert tally("audit", run, "--corpus", config.parent / "none").code == 4


def test_rows_of_conversations_are_made_by_a_command(tmp_path: Path, tally: Tally) -> None:
    pytest.importorskip("jinja2")
    library = pytest.importorskip("tokenizers")
    words = {word: number for number, word in enumerate(["<pad>", "user", "assistant", "hi", "yes"])}
    made = library.Tokenizer(library.models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    for folder in ("model", "talks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text(made.to_str())
    shown = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(
        shown + "{% if add_generation_prompt %}assistant {% endif %}"
    )
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    (tmp_path / "talks" / "a.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    where = ("--model", tmp_path / "model", "--out", tmp_path / "rows", "--length", 6)
    told = tally("rows", tmp_path / "talks", *where)
    assert told.code == 0
    recipe = tallystick.rows(tmp_path / "rows")
    assert told.out.strip() == recipe.recipe.identity
    assert recipe[0]["input_ids"].tolist() == [1, 3, 2, 4, 0, 0]
    assert recipe[0]["labels"].tolist() == [-100, -100, -100, 4, -100, -100]
    assert tally("rows", tmp_path / "talks", *where).code == 2
