"""Anchors in other stores: read like local ones, verified like them, and never replaced by anything."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard

from tallystick.audits.policy import Policy
from tallystick.audits.report import Report
from tallystick.audits.training import audit_training
from tallystick.core.errors import UnavailableError
from tallystick.core.tensor_digests import digest_state, state_digest
from tallystick.formats.store.keeping import AnchorCopies, AnchorKeeping, AnchorWriter
from tallystick.formats.store.remote_anchors import RemoteAnchors
from tallystick.formats.store.run import Anchors, RunDirectory
from tallystick.recording.training import Config, train
from tallystick.verdicts.replayer import VerifierStack

KINDS = ("memory", "file")
Audit = Callable[[Path, str], Report]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty folder of a store."""
    if request.param == "file":
        yield f"file://{tmp_path}/elsewhere"
        return
    name = f"memory://{uuid.uuid4().hex}"
    yield name
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def audit(one_thread: None) -> Audit:
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import TorchReplayer

    stack = VerifierStack(describe_environment("cpu"), TorchReplayer)
    return lambda run, url: audit_training(RunDirectory(run, url), Policy(full=True), bytes(32), stack)


def move_anchors(run: Path, url: str) -> None:
    """Put the anchors of a run into a store, and leave none in the run."""
    store, folder = fsspec.core.url_to_fs(url)
    store.makedirs(folder, exist_ok=True)
    for path in (run / "anchors").iterdir():
        store.pipe_file(f"{folder}/{path.name}", path.read_bytes())
    shutil.rmtree(run / "anchors")


def change(url: str, name: str, edit: Callable[[bytes], bytes] | None) -> None:
    store, folder = fsspec.core.url_to_fs(url)
    path = f"{folder}/{name}"
    if edit is None:
        store.rm_file(path)
    else:
        store.pipe_file(path, edit(store.cat_file(path)))


def test_a_run_is_audited_with_its_anchors_elsewhere(run: Path, url: str, audit: Audit) -> None:
    move_anchors(run, url)
    report = audit(run, url)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 12)
    assert not (run / "anchors").exists()


def test_what_is_damaged_there_is_rejected_and_what_is_missing_is_open(run: Path, url: str, audit: Audit) -> None:
    move_anchors(run, url)
    name = "step_00000008.safetensors"
    change(url, name, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    assert [finding.name for finding in audit(run, url).verdict.objections] == ["anchor"]
    change(url, name, None)
    report = audit(run, url)
    assert report.verdict.outcome == "inconclusive"
    assert any("anchor of step 8: " in line and "not there" in line for line in report.verdict.unavailable)


def test_anchors_in_parts_are_read_from_there(tmp_path: Path, plain: Path, url: str) -> None:
    writer = AnchorWriter(tmp_path / "run", least_saved=0, least_share=0.0)
    states = {mark: Anchors(plain).read(mark) for mark in (0, 4, 8)}
    for mark, state in states.items():
        writer.write(mark, state, digest_state(state))
    assert list((tmp_path / "run/anchors").glob("*.json"))
    move_anchors(tmp_path / "run", url)
    anchors = Anchors(tmp_path / "run", RemoteAnchors(url))
    assert anchors.present([0, 4, 6, 8]) == (0, 4, 8)
    for mark, state in states.items():
        assert state_digest(anchors.read(mark)) == state_digest(state)


def test_what_the_run_holds_itself_is_not_fetched(run: Path, url: str) -> None:
    move_anchors(Path(shutil.copytree(run, run.parent / "copy")), url)
    change(url, "step_00000004.safetensors", lambda _: b"other")
    anchors = Anchors(run, RemoteAnchors(url))
    assert state_digest(anchors.read(4)) == state_digest(Anchors(run).read(4))


def test_a_file_is_fetched_up_to_what_the_reader_allows(run: Path, url: str) -> None:
    move_anchors(run, url)
    with pytest.raises(UnavailableError, match=r"step_00000004.safetensors: larger than the 100 bytes"):
        Anchors(run, RemoteAnchors(url)).read(4, 100)


@pytest.mark.parametrize("wrong", ["nosuchkind://bucket/anchors", "memory://nowhere/at/all"])
def test_a_store_that_holds_nothing_is_told(run: Path, wrong: str) -> None:
    shutil.rmtree(run / "anchors")
    with pytest.raises(UnavailableError):
        Anchors(run, RemoteAnchors(wrong)).read(4)


def test_a_copy_of_every_anchor_goes_to_the_store_and_the_run_keeps_some(
    one_thread: None, source: Path, recipe_of: Callable[..., Any], url: str, tmp_path: Path, audit: Audit
) -> None:
    train(Config(recipe_of(), source), tmp_path / "run", keeping=AnchorKeeping.of("1", url))
    assert {path.name for path in (tmp_path / "run/anchors").iterdir()} < set(RemoteAnchors(url).names)
    report = audit(tmp_path / "run", url)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 12)


def test_a_store_that_refuses_ends_the_training(
    one_thread: None, source: Path, recipe_of: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnavailableError, match="could not be written"):
        train(
            Config(recipe_of(), source), tmp_path / "run", keeping=AnchorKeeping(url=f"file://{tmp_path}/file/anchors")
        )


def test_a_loop_of_ones_own_keeps_one_anchor_and_copies_all(one_thread: None, url: str, tmp_path: Path) -> None:
    import torch

    from tallystick.recording.loop.own_loop import record_training

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record_training(tmp_path / "run", model, optimizer, anchor_stride=2, keep="1", anchors=url) as recorder:
        for step in range(8):
            optimizer.zero_grad()
            batch = torch.full((2, 4), float(step))
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)
    assert {path.name for path in (tmp_path / "run/anchors").iterdir()} < set(RemoteAnchors(url).names)
    assert len(RemoteAnchors(url).names) == 5


def test_a_store_of_no_known_kind_is_refused_at_once() -> None:
    with pytest.raises(UnavailableError, match="nope://x: no store"):
        AnchorKeeping.of(None, "nope://x")


def compress_anchors(run: Path, url: str) -> None:
    """Put compressed copies of the anchors of a run into a store, and leave none in the run."""
    copies = AnchorCopies(f"zstd::{url}")
    for path in (run / "anchors").glob("*.safetensors"):
        copies.put(run, int(path.stem.removeprefix("step_")))
    shutil.rmtree(run / "anchors")


def test_a_run_is_audited_with_compressed_anchors(run: Path, url: str, audit: Audit) -> None:
    bytes_before = sum(path.stat().st_size for path in (run / "anchors").iterdir())
    compress_anchors(run, url)
    store, folder = fsspec.core.url_to_fs(url)
    files = store.ls(folder, detail=True)
    assert all(each["name"].endswith(".safetensors.zst") for each in files)
    assert sum(each["size"] for each in files) < bytes_before
    report = audit(run, url)
    assert (report.verdict.outcome, report.replayed_steps) == ("accepted", 12)


def test_a_damaged_compressed_anchor_is_never_a_pass(run: Path, url: str, audit: Audit) -> None:
    compress_anchors(run, url)
    name = "step_00000008.safetensors.zst"
    change(url, name, lambda data: data[: len(data) // 2])
    assert audit(run, url).verdict.outcome != "accepted"
    change(url, name, lambda data: b"no frame")
    report = audit(run, url)
    assert report.verdict.outcome == "inconclusive"
    assert any("could not be read: ZstdError" in line for line in report.verdict.unavailable)


def test_what_a_compressed_file_becomes_is_limited(run: Path, url: str) -> None:
    compress_anchors(run, url)
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    change(url, "step_00000004.safetensors.zst", lambda _: bomb)
    with pytest.raises(UnavailableError, match=r"step_00000004.safetensors: larger than the 1000000 bytes"):
        Anchors(run, RemoteAnchors(url)).read(4, 1_000_000)


def test_of_two_forms_of_an_anchor_the_later_stays(run: Path, url: str) -> None:
    for prefix in ("", "zstd::", ""):
        AnchorCopies(prefix + url).put(run, 4)
        anchors = Anchors(run.parent / "none", RemoteAnchors(url))
        assert state_digest(anchors.read(4)) == state_digest(Anchors(run).read(4))
        store, folder = fsspec.core.url_to_fs(url)
        assert len(store.ls(folder)) == 1
