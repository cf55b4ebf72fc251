"""Several conversations in a row: how they are laid, read from every kind of shard, trained on and made again."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tallystick
from tallystick.core.errors import MalformedError, ProofError
from tallystick.formats.data.rows import order_of, read_rows
from tests.support.chat_scene import WORDS, record_rows, talk, write_conversations, write_model_directory

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

FULL = tallystick.Policy(full=True)
LENGTH = 48


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("data") / "corpus", 30)


@pytest.fixture(scope="module", params=["apart", "joined"])
def packed(
    request: pytest.FixtureRequest, corpus: Path, model_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("rows") / "rows"
    tallystick.write_rows(corpus, model_directory, out, length=LENGTH, packing=request.param)
    return out


def conversations(row: dict[str, Any]) -> list[str]:
    """The texts in a row, by the first turn with which each begins anew."""
    shown = "".join(WORDS[token] for token in row["input_ids"]).replace("<pad>", "")
    return [f"{each}!<eos>" for each in shown.split("!<eos>") if each]


def text_of(number: int) -> str:
    turns = talk(10 * (number // 15) + number % 15)
    return "".join(f"<{each['role']}>{each['content']}{'<eos>' * (each['role'] == 'assistant')}" for each in turns)


def test_a_row_holds_as_many_conversations_as_fit_in_their_order(packed: Path) -> None:
    rows, recipe = tallystick.rows(packed), read_rows(packed).recipe
    laid = [conversations(rows[number]) for number in range(len(rows))]
    wanted = [text_of(int(number)) for number in order_of(recipe)]
    assert [each for row in laid for each in row] == wanted
    assert (recipe.count, recipe.conversations) == (len(laid), 30)
    sizes = [len(each.replace("<user>", "u").replace("<assistant>", "a").replace("<eos>", "e")) for each in wanted]
    place = 0
    for row in laid[:-1]:
        used = sum(sizes[place : place + len(row)])
        place += len(row)
        assert used <= LENGTH < used + sizes[place]


def test_labels_stand_on_the_turns_of_the_assistant_of_every_conversation(packed: Path) -> None:
    rows = tallystick.rows(packed)
    for number in range(len(rows)):
        row = rows[number]
        trained = "".join(WORDS[token] for token in row["labels"] if token >= 0)
        wanted = [f"{each.split('<assistant>')[1].split('<user>')[0]}!<eos>" for each in conversations(row)]
        assert trained == "".join(wanted)


def test_positions_begin_anew_in_rows_that_are_packed_apart_and_a_mask_covers_joined_ones(packed: Path) -> None:
    rows = tallystick.rows(packed)
    for row in (rows[number] for number in range(len(rows))):
        filled = int((row["input_ids"] != 0).sum())
        if rows.recipe.packing == "joined":
            assert row.keys() == {"input_ids", "labels", "attention_mask"}
            assert row["attention_mask"].tolist() == [1] * filled + [0] * (LENGTH - filled)
            continue
        assert row.keys() == {"input_ids", "labels", "position_ids"}
        begins = (row["position_ids"] == 0).nonzero().flatten().tolist()
        assert len(begins) == len(conversations(row)) + (filled < LENGTH)
        assert all(WORDS[row["input_ids"][at]] == "<user>" for at in begins if at < filled)


def test_the_first_token_of_a_conversation_is_not_asked_of_the_one_before_it(
    corpus: Path, model_directory: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"length": LENGTH, "trained": "all"}
    apart = tallystick.write_rows(corpus, model_directory, tmp_path / "apart", packing="apart", **settings)[0]
    joined = tallystick.write_rows(corpus, model_directory, tmp_path / "joined", packing="joined", **settings)[0]
    begins = apart["position_ids"] == 0
    assert set(apart["labels"][begins].tolist()) == {-100}
    assert torch.equal(apart["labels"][~begins], joined["labels"][~begins])
    assert (joined["labels"][begins] >= 0).any()


def packed_by(kind: str) -> Callable[[Path, list[Any]], None]:
    def write(folder: Path, talks: list[Any]) -> None:
        lines = "".join(json.dumps({"messages": each}) + "\n" for each in talks).encode()
        if kind == ".parquet":
            arrow, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            pq.write_table(arrow.table({"n": list(range(len(talks))), "messages": talks}), folder / "a.parquet")
        elif kind == ".jsonl.zst":
            (folder / "a.jsonl.zst").write_bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(lines))
        else:
            (folder / f"a{kind}").write_bytes(gzip.compress(lines) if kind.endswith(".gz") else lines)

    return write


@pytest.mark.parametrize("kind", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_every_kind_of_shard_gives_the_same_conversations(kind: str, model_directory: Path, tmp_path: Path) -> None:
    from tallystick.formats.data.texts import read_conversations

    (tmp_path / "good").mkdir()
    packed_by(kind)(tmp_path / "good", [talk(1), talk(2)])
    assert list(read_conversations(tmp_path / "good", "messages")) == [talk(1), talk(2)]
    rows = tallystick.write_rows(tmp_path / "good", model_directory, tmp_path / "rows", length=LENGTH, packing="apart")
    assert sorted(conversations(rows[0])) == [
        "<user>1+1?<assistant>2<eos><user>ok<assistant>!<eos>",
        "<user>2+1?<assistant>3<eos><user>ok<assistant>!<eos>",
    ]
    (tmp_path / "bad").mkdir()
    packed_by(kind)(tmp_path / "bad", [talk(1), [{"role": "user", "content": None}]])
    with pytest.raises(MalformedError, match=r"(line|row) 2: 'messages' is no list of turns"):
        list(read_conversations(tmp_path / "bad", "messages"))


def test_a_shard_of_texts_is_no_shard_of_conversations(model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("one")
    with pytest.raises(MalformedError, match=r"'a\.txt': a shard with conversations ends with one of \.jsonl, "):
        tallystick.write_rows(tmp_path / "corpus", model_directory, tmp_path / "rows", length=LENGTH)


def test_conversations_are_held_on_the_disk_and_rows_written_one_by_one(
    corpus: Path, model_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.formats.data.rows import Labelled
    from tallystick.recording import rows as writing

    alive, most = set[int](), 0
    read = writing.RowSpool.__getitem__

    class Counted(Labelled):
        def __init__(self, one: Labelled) -> None:
            super().__init__(one.tokens, one.labels)
            nonlocal most
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(id(self))

    monkeypatch.setattr(writing.RowSpool, "__getitem__", lambda spool, number: Counted(read(spool, number)))
    rows = tallystick.write_rows(corpus, model_directory, tmp_path / "rows", length=LENGTH, packing="apart")
    assert rows.recipe.conversations == 30
    assert most <= 2 * max(len(conversations(rows[number])) for number in range(len(rows))) < 10


def test_starts_that_are_not_those_of_the_recipe_are_refused(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path / "rows")
    starts = np.frombuffer((packed / "rows.starts").read_bytes(), "<i8").copy()
    starts[1] += 1
    (tmp_path / "rows" / "rows.starts").write_bytes(starts.tobytes())
    with pytest.raises(ProofError, match=r"rows\.starts: not the .* starts of rows that rows\.json states"):
        tallystick.rows(tmp_path / "rows")
    assert len(tallystick.rows(packed)) > 1


def test_packed_rows_are_trained_on_named_and_made_again(
    packed: Path, corpus: Path, model_directory: Path, tmp_path: Path
) -> None:
    shutil.copytree(model_directory, tmp_path / "model")
    run = record_rows(tmp_path / "run", packed, initial=tmp_path / "model")
    result = tallystick.audit(run, FULL, corpus=corpus, initial=tmp_path / "model")
    assert result.accepted, result.text()
    assert any("rows were made again from the conversations" in line for line in result.verdict.shown)
    forged = forge_starts(packed, tmp_path / "forged")
    run = record_rows(tmp_path / "again", forged, initial=tmp_path / "model")
    result = tallystick.audit(run, FULL, corpus=corpus, initial=tmp_path / "model")
    assert [each.name for each in result.objections] == ["rows of the corpus"]


def forge_starts(rows: Path, out: Path) -> Path:
    """The first row is said to hold one conversation less, which no row then holds as the recipe says."""
    from tallystick.core.digests import digest

    shutil.copytree(rows, out)
    starts = np.frombuffer((rows / "rows.starts").read_bytes(), "<i8").copy()
    starts[1] -= 1
    (out / "rows.starts").write_bytes(starts.tobytes())
    recipe = read_rows(rows).recipe.model_copy(update={"starts": digest("blob", starts.tobytes())})
    (out / "rows.json").write_bytes(recipe.to_bytes())
    return out


def test_a_trainer_on_packed_rows_is_replayed_whether_a_row_holds_one_conversation_or_several(
    model_directory: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    (tmp_path / "corpus").mkdir()
    long = [{"role": "user", "content": "y"}, {"role": "assistant", "content": "x" * LENGTH}]
    lines = [json.dumps({"messages": each}) + "\n" for each in (*map(talk, range(6)), long, long)]
    (tmp_path / "corpus" / "a.jsonl").write_text("".join(lines))
    rows = tallystick.write_rows(
        tmp_path / "corpus", model_directory, tmp_path / "rows", length=LENGTH, packing="apart"
    )
    assert {int((rows[number]["position_ids"] == 0).sum()) == 1 for number in range(len(rows))} == {True, False}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), num_key_value_heads=1, max_position_embeddings=64, attn_implementation="sdpa", **sizes
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"),
        per_device_train_batch_size=1,
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    recorder = tallystick.TallyCallback(tmp_path / "run", data=tmp_path / "rows", anchor_stride=2)
    model = transformers.LlamaForCausalLM(config)
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[recorder]).train()
    result = tallystick.audit(tmp_path / "run", FULL)
    assert result.accepted, result.text()
    assert any(f"the {len(rows)} replayed batches are rows of" in line for line in result.verdict.shown)
