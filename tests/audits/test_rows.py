"""Chat data as rows of a corpus: how they are made, recorded, and compared in an audit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tallystick
from tallystick.errors import MalformedError, ProofError
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import read_state, write_state
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.record import Batch, StepRecord, batch_file
from tests.support.chat_scene import (
    LENGTH,
    TEMPLATE,
    WORDS,
    record_rows,
    talk,
    write_conversations,
    write_model_directory,
)

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

FULL = tallystick.Policy(full=True)


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture(scope="module")
def made(corpus: Path, model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rows") / "rows"
    tallystick.write_rows(corpus, model_directory, out, length=LENGTH, seed=3)
    return out


@pytest.fixture(scope="module")
def recorded(made: Path, model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record_rows(tmp_path_factory.mktemp("recorded") / "run", made, initial=model_directory)


def test_the_turns_of_the_assistant_have_labels_and_nothing_else(made: Path) -> None:
    rows = tallystick.rows(made)
    assert len(rows) == 12
    for number in range(12):
        row = rows[number]
        shown = [WORDS[token] for token, kept in zip(row["input_ids"], row["attention_mask"], strict=True) if kept]
        trained = "".join(WORDS[token] for token in row["labels"] if token >= 0)
        text = "".join(shown)
        assert text.startswith("<user>")
        assert trained == f"{text.split('<assistant>')[1].split('<user>')[0]}!<eos>"
        assert set(row["input_ids"][len(shown) :].tolist()) <= {0}


def test_the_same_corpus_gives_the_same_rows_and_another_seed_another_order(
    made: Path, corpus: Path, model_directory: Path, tmp_path: Path
) -> None:
    first = tallystick.rows(made).recipe
    again = tallystick.write_rows(corpus, model_directory, tmp_path / "again", length=LENGTH, seed=3)
    other = tallystick.write_rows(corpus, model_directory, tmp_path / "other", length=LENGTH, seed=4)
    assert again.recipe.identity == first.identity
    assert other.recipe.root != first.root


def test_a_template_that_rewrites_earlier_turns_is_refused(corpus: Path, model_directory: Path, tmp_path: Path) -> None:
    shutil.copytree(model_directory, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages | length }}" + TEMPLATE)
    with pytest.raises(MalformedError, match="shows turn 1 otherwise once another follows it"):
        tallystick.write_rows(corpus, tmp_path / "model", tmp_path / "rows", length=LENGTH)


def test_a_line_that_is_no_conversation_is_named(model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").write_text('{"messages": [{"role": "user"}]}\n')
    with pytest.raises(MalformedError, match=r"a\.jsonl.* line 1: 'messages' is no list of turns"):
        tallystick.write_rows(tmp_path / "corpus", model_directory, tmp_path / "rows", length=LENGTH)


def test_a_conversation_without_a_token_is_left_out_to_pack_rows(model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    kept, empty = ({"messages": [{"role": "user", "content": each}]} for each in ("a b c", ""))
    (tmp_path / "model").mkdir()
    shutil.copytree(model_directory, tmp_path / "model", dirs_exist_ok=True)
    (tmp_path / "model" / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    packed = {"length": LENGTH, "packing": "joined"}
    file = tmp_path / "corpus" / "a.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in (kept, empty)))
    with pytest.raises(MalformedError, match="conversation 1 gives no token: leave it out to pack rows"):
        tallystick.write_rows(tmp_path / "corpus", tmp_path / "model", tmp_path / "rows", **packed)
    file.write_text(json.dumps(kept) + "\n")
    shutil.rmtree(tmp_path / "rows", ignore_errors=True)
    tallystick.write_rows(tmp_path / "corpus", tmp_path / "model", tmp_path / "rows", **packed)
    assert len(tallystick.rows(tmp_path / "rows")) == 1


def test_rows_that_are_not_those_of_the_root_are_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "rows")
    leaves = bytearray((tmp_path / "rows" / "rows.leaves").read_bytes())
    leaves[0] ^= 1
    (tmp_path / "rows" / "rows.leaves").write_bytes(leaves)
    with pytest.raises(ProofError, match="not the 12 rows under the root"):
        tallystick.rows(tmp_path / "rows")


def test_every_step_names_its_rows_and_the_audit_compares_them(recorded: Path, made: Path) -> None:
    recipe = tallystick.rows(made).recipe
    assert RunDirectory(recorded).spec().rows == recipe.identity
    result = tallystick.audit(recorded, FULL)
    assert result.accepted
    assert result.verdict.shown == (
        f"data: the 3 replayed batches are rows of {recipe.identity}, of the corpus {recipe.corpus}",
    )
    assert any("rows are those of the conversations" in line for line in result.verdict.not_checked)


def test_the_rows_are_made_again_from_the_corpus(recorded: Path, corpus: Path, model_directory: Path) -> None:
    result = tallystick.audit(recorded, FULL, corpus=corpus, initial=model_directory)
    assert result.accepted
    assert "data: 12 of 12 rows were made again from the conversations" in result.verdict.shown


def test_another_corpus_leaves_the_rows_open(recorded: Path, model_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": talk(1)}))
    result = tallystick.audit(recorded, FULL, corpus=tmp_path, initial=model_directory)
    assert result.outcome == "inconclusive"
    assert "and the rows are of sha256:" in result.text()


def test_rows_that_their_conversations_do_not_give_are_rejected(
    made: Path, corpus: Path, model_directory: Path, tmp_path: Path
) -> None:
    forged = forge_rows(made, tmp_path / "rows")
    run = record_rows(tmp_path / "run", forged, initial=model_directory)
    assert tallystick.audit(run, FULL).accepted  # the corpus decides
    result = tallystick.audit(run, FULL, corpus=corpus, initial=model_directory)
    assert result.outcome == "rejected"
    assert [each.name for each in result.objections] == ["rows of the corpus"]


def forge_rows(made: Path, out: Path) -> Path:
    """Rows of which one teaches another answer than its conversation holds, under a root that is made anew."""
    from tallystick.commitments.tree import tree_root
    from tallystick.datasets.rows import leaves_bytes, read_rows, row_leaf

    shutil.copytree(made, out)
    held = {name: each.array().copy() for name, each in read_state(made / "rows.safetensors").items()}
    place = int(np.flatnonzero(held["labels"][5] >= 0)[0])
    held["input_ids"][5, place] = held["labels"][5, place] = WORDS.index("z")
    write_state(out / "rows.safetensors", {name: Tensor.of(each) for name, each in held.items()})
    old = read_rows(made).recipe
    leaves = tuple(row_leaf({part: each[row] for part, each in held.items()}, old) for row in range(12))
    (out / "rows.leaves").write_bytes(leaves_bytes(leaves))
    recipe = old.model_copy(update={"root": tree_root(leaves).hex()})
    (out / "rows.json").write_bytes(recipe.to_bytes())
    return out


def test_a_batch_that_is_no_row_is_said_once_and_leaves_only_the_data_open(made: Path, tmp_path: Path) -> None:
    def spoil(step: int, batch: dict[str, Any]) -> None:
        if step:
            batch["labels"][0, 2] = 7

    with pytest.warns(RuntimeWarning, match=r"a row of it is none of them; the audit cannot say") as said:
        run = record_rows(tmp_path / "run", made, spoil)
    assert len(said) == 1
    result = tallystick.audit(run, FULL)
    assert result.outcome == "inconclusive"
    assert result.verdict.coverage is not None
    assert result.verdict.coverage.done == 3
    assert "rows: the batches of 2 of 3 replayed steps name no rows (step 2)" in result.text()


def test_a_record_that_names_other_rows_is_rejected(recorded: Path, tmp_path: Path) -> None:
    from tallystick.attacks.forging import copy_run, read_records, write_records

    forged = copy_run(recorded, tmp_path / "run")
    records = [
        each.model_copy(update={"batch": Batch(digest=each.batch.digest, indices=(0, 1, 2, 3))})
        if isinstance(each, StepRecord) and each.index == 2
        else each
        for each in read_records(forged)
    ]
    write_records(forged, records)
    result = tallystick.audit(forged.path, FULL)
    assert result.outcome == "rejected"
    assert [(each.name, each.where) for each in result.objections] == [("rows", "step 2")]


def test_tokens_beside_the_rows_are_no_rows(recorded: Path, made: Path) -> None:
    from tallystick.datasets.rows import leaves_of_batch, read_rows

    digest = next((recorded / "batches").iterdir())
    batch, recipe = read_state(digest), read_rows(made).recipe
    assert batch_file(state_digest(batch)).endswith(digest.name)
    assert leaves_of_batch(batch, recipe) is not None
    assert leaves_of_batch({**batch, "position_ids": batch["input_ids"]}, recipe) is None
    assert leaves_of_batch({**batch, "num_items_in_batch": Tensor.of(np.asarray(3))}, recipe) is not None
