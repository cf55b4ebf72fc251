"""`tally commit`, `verify-data`, `prove-data`, `targets`, `digest`, `open` and `fsck`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.formats.data.corpus import read_corpus_commit
from tallystick.formats.data.openings import ChunkOpening, check_chunk

Tally = Callable[..., Any]


def test_a_folder_is_committed_to_and_checked(tally: Tally, tmp_path: Path) -> None:
    folder, commitment = tmp_path / "folder", tmp_path / "commit.json"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    told = tally("commit", folder, "--out", commitment)
    assert told.code == 0
    assert tally("commit", folder, "--verify", commitment)[:2] == (0, told.out)
    (folder / "a.txt").write_text("two")
    told = tally("commit", folder, "--verify", commitment)
    assert told.code == 1
    assert "'a.txt' differs from the one committed to, first in chunk 0" in told.complaint
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("two")
    assert "'a.txt' is missing" in tally("commit", folder, "--verify", commitment).complaint


def test_a_chunk_of_a_corpus_is_proven_at_its_position(tally: Tally, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    digest = tally("commit", folder).out.strip()
    told = tally("prove-data", folder, "--shard", "a.txt", "--index", 0)
    assert told.code == 0
    corpus = read_corpus_commit(tmp_path / "commit.json")
    assert corpus.corpus == digest
    assert check_chunk(ChunkOpening.from_json(json.loads(told.out), "opening"), corpus.commit).name == "a.txt"
    assert tally("prove-data", folder, "--shard", "b.txt", "--index", 0).code == 2
    assert tally("prove-data", folder, "--commit", tmp_path / "commit.json", "--index", 0).code == 2


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_a_file_is_committed_to_and_checked(tally: Tally, tmp_path: Path, suffix: str) -> None:
    path, commitment = tmp_path / f"data{suffix}", tmp_path / "commit.json"
    path.write_text('{"text":"one"}\n{"text":"two"}\n')
    assert tally("commit", path, "--out", commitment).code == 0
    assert tally("commit", path, "--verify", commitment).code == 0
    path.write_text('{"text":"one"}\n{"text":"six"}\n')
    assert tally("commit", path, "--verify", commitment).code == 1


def test_a_commit_of_something_else_is_never_overwritten(tally: Tally, tmp_path: Path) -> None:
    folder, file, commitment = tmp_path / "folder", tmp_path / "data.txt", tmp_path / "commit.json"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    file.write_text("one\n")
    assert tally("commit", folder).code == 0
    held = commitment.read_bytes()
    told = tally("commit", file)
    assert (told.code, told.out) == (2, "")
    assert told.complaint == f"tally: {commitment} holds another commit: remove it or choose another file with --out"
    assert commitment.read_bytes() == held
    assert tally("commit", file, "--out", tmp_path / "file.json").code == 0
    assert tally("commit", file, "--out", tmp_path / "file.json").code == 0  # the same once more
    file.write_text("two\n")
    assert tally("commit", file, "--out", tmp_path / "file.json").code == 2
    assert tally("commit", folder, "--out", tmp_path / "file.json").code == 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a":NaN}', "\x00", "{" * 3000])
def test_a_commitment_that_is_none_exits_with_4(tally: Tally, tmp_path: Path, text: str) -> None:
    path, commitment = tmp_path / "data.txt", tmp_path / "commit.json"
    path.write_text("one\n")
    commitment.write_text(text)
    told = tally("commit", path, "--verify", commitment)
    assert (told.code, told.out) == (4, "")
    assert "commit.json" in told.complaint


@pytest.mark.parametrize("kind", ["symlink", "pipe"])
def test_a_folder_with_links_or_devices_is_refused(tally: Tally, tmp_path: Path, kind: str) -> None:
    import os

    folder = tmp_path / "folder"
    folder.mkdir()
    if kind == "symlink":
        (folder / "link").symlink_to("/etc/hostname")
    else:
        os.mkfifo(folder / "pipe")
    told = tally("commit", folder, "--out", tmp_path / "commit.json")
    assert told.code == 4
    assert "a link, device, pipe or socket" in told.complaint


def test_tokens_are_derived_again_from_the_source(tally: Tally, run: Path) -> None:
    assert tally("verify-data", run).code == 0
    path = run / "data/tokens.bin"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    told = tally("verify-data", run)
    assert told.code == 1
    assert "tokens.bin" in told.complaint


def test_one_record_of_the_data_is_proven_at_its_position(tally: Tally, honest: Path) -> None:
    told = tally("prove-data", honest, "--index", 0)
    assert told.code == 0
    assert json.loads(told.out)["index"] == 0
    assert tally("prove-data", honest, "--index", 10**6).code in (1, 2)


def test_the_targets_of_all_steps_are_counted(tally: Tally, honest: Path) -> None:
    account = json.loads(tally("targets", honest, "--json").out)
    assert account
    assert "windows were targets" in tally("targets", honest).out


def test_an_anchor_has_the_digest_of_its_record(tally: Tally, honest: Path) -> None:
    told = tally("digest", honest / "anchors/step_00000012.safetensors", "--canonical")
    assert told.out.strip() == json.loads((honest / "claim.json").read_bytes())["final_state"]
    tensors = json.loads(tally("digest", honest / "anchors/step_00000012.safetensors", "--json").out)
    assert tensors["state"] == told.out.strip()
    assert "weights.model.norm.weight" in tensors["tensors"]


def test_a_damaged_anchor_has_another_digest_or_none(tally: Tally, run: Path) -> None:
    path = run / "anchors/step_00000012.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    told = tally("digest", path)
    assert (told.code, told.out) == (4, "")
    assert path.name in told.complaint


def test_records_are_opened_by_place_and_by_step(tally: Tally, honest: Path) -> None:
    header = json.loads(tally("open", honest, "--record", 0).out)
    assert header["record"]["kind"] == "header"
    for step in (1, 4, 5, 12):
        told = json.loads(tally("open", honest, "--step", step).out)
        assert (told["record"]["kind"], told["record"]["index"]) == ("step", step)


def test_a_record_that_is_not_there_is_refused(tally: Tally, honest: Path) -> None:
    told = tally("open", honest, "--record", 17)
    assert (told.code, told.complaint) == (2, "tally: --record 17: there are 17 records, counted from 0")
    told = tally("open", honest, "--step", 13)
    assert (told.code, told.complaint) == (2, "tally: --step 13: the transcript ends at step 12")


def test_an_edited_record_does_not_open(tally: Tally, run: Path) -> None:
    path = run / "transcript.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"split":"train"', b'"split":"trial"', 1))
    assert tally("open", run, "--record", 2).code in (1, 4)


def test_fsck_agrees_with_an_honest_run_and_rejects_an_edited_one(tally: Tally, run: Path) -> None:
    assert tally("fsck", run).code == 0
    path = run / "transcript.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"loss":5.', b'"loss":4.', 1))
    told = tally("fsck", run)
    assert told.code == 1
    assert "transcript root" in told.complaint


def test_fsck_writes_derived_files_anew(tally: Tally, run: Path) -> None:
    shutil.rmtree(run / "tiles")
    (run / "transcript.index").unlink()
    assert tally("fsck", run).code == 4
    assert tally("fsck", run, "--repair").code == 0
    assert tally("open", run, "--step", 7).code == 0


def test_fsck_does_not_mend_a_torn_record_of_a_finished_run(tally: Tally, run: Path) -> None:
    path = run / "transcript.jsonl"
    damaged = path.read_bytes() + b'{"kind'
    path.write_bytes(damaged)
    assert tally("fsck", run, "--repair").code == 4
    assert path.read_bytes() == damaged
