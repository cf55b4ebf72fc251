"""`tally db store`, `restore`, `collect` and `check --blobs`, as a person runs them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tallystick.formats.store.blobs import Blobs
from tests.support.blob_stores import change_blob, flipped

Tally = Callable[..., Any]


def test_anchors_go_to_a_store_and_come_back_for_an_audit(run: Path, tmp_path: Path, tally: Tally) -> None:
    db, url = ("--db", tmp_path / "tally.db"), tmp_path / "store"
    assert tally("db", "store", "run", "--blobs", url, *db).code == 4, "no such database"
    assert tally("db", "collect", "--blobs", url, "--delete", *db).code == 4
    assert not (tmp_path / "tally.db").exists()
    assert tally("db", "add", run, *db).code == 0
    assert tally("db", "store", "run", "--blobs", url, *db).out == "run: 4 files are in the store\n"
    shutil.rmtree(run / "anchors")
    assert tally("audit", run, "--full").code == 3
    assert tally("db", "restore", "run", "--blobs", url, "--steps", "9..5", *db).code == 2
    told = tally("db", "restore", "run", "--blobs", url, "--steps", "5..6", *db)
    assert told.out == "anchors/step_00000004.safetensors\nanchors/step_00000008.safetensors\n"
    assert tally("db", "restore", "run", "--blobs", url, *db).code == 0
    assert tally("audit", run, "--full").code == 0
    blobs = Blobs(str(url))
    unused = blobs.put(b"nobody")
    listed = json.loads(tally("db", "collect", "--blobs", url, "--delete", "--json", *db).out)
    assert listed["unreferenced"] == [{"blob": unused, "bytes": 6, "fate": "young"}]
    assert "deleted" in tally("db", "collect", "--blobs", url, "--delete", "--young", *db).out
    assert tally("db", "check", "--blobs", url, *db).code == 0
    change_blob(str(url), next(blobs.digests()), flipped)
    assert tally("db", "check", "--blobs", url, *db).code == 1
    shutil.rmtree(run / "anchors")
    told = tally("db", "restore", "run", "--blobs", url, *db)
    assert (told.code, len(told.out.splitlines())) == (1, 3)
    assert "damaged" in told.err
