"""`tally train`: from a TOML file to a finished run, and what it says to a bad one."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.tally.cli.entry import Terminated
from tests.support.prefork.commands import commands

Tally = Callable[..., Any]

CONFIG = """
[data]
kind = "text"
path = "text.txt"
[model]
architecture = "gpt2"
[model.config]
n_embd = 16
n_layer = 1
n_head = 2
n_positions = 16
[optimizer]
kind = "adamw"
learning_rate = 0.003
[training]
steps = 4
batch = 2
sequence = 8
[record]
anchor_stride = 2
"""


@pytest.fixture(scope="module", autouse=True)
def captured_once(one_thread: None) -> Iterator[None]:
    """The step of a recipe is the same graph in every training by it."""
    from tallystick.recording import training

    capture, kept = training.capture_recipe_step, dict[Any, Any]()

    def capture_once(recipe: Any, vocabulary: int, trail: Any) -> Any:
        name = recipe.to_bytes(), vocabulary
        if name not in kept:
            kept[name] = capture(recipe, vocabulary, trail)
        return kept[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "capture_recipe_step", capture_once)
        yield


@pytest.fixture
def config(source: Path, tmp_path: Path) -> Path:
    shutil.copy(source, tmp_path / "text.txt")
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def test_a_run_is_trained_recorded_and_drawn(tally: Tally, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    told = tally("train", config, "--out", out)
    assert told.code == 0
    assert told.out.startswith("sha256:")
    assert "recording" in told.err
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert tally("audit", out, "--claim", told.out.strip()).code == 0
    assert tally("fsck", out).code == 0


def test_json_gives_claim_and_root(tally: Tally, config: Path, tmp_path: Path) -> None:
    told = tally("train", config, "--out", tmp_path / "run", "--json")
    report = json.loads(told.out)
    assert report["transcript"]["size"] == 1 + 3 + 4
    assert report["claim"].startswith("sha256:")


def test_a_directory_that_is_not_empty_is_refused(tally: Tally, config: Path, tmp_path: Path) -> None:
    told = tally("train", config, "--out", tmp_path)
    assert told.code == 2
    assert "not empty" in told.complaint


def test_an_interrupted_run_is_resumed(tally: Tally, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    claim = tally("train", config, "--out", out, "--json")
    (out / "claim.json").unlink()
    lines = (out / "transcript.jsonl").read_bytes().splitlines(keepends=True)
    (out / "transcript.jsonl").write_bytes(b"".join(lines[:6]))
    told = tally("train", "--resume", out, "--json")
    assert told.code == 0
    assert json.loads(told.out)["transcript"] == json.loads(claim.out)["transcript"]
    assert tally("train", "--resume", out).code == 2


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("steps = 4", "steps = 0", "training.steps"),
        ("steps = 4", "steps = -1", "training.steps"),
        ("steps = 4", "steps = 1.5", "training.steps"),
        ("steps = 4", 'steps = "four"', "training.steps"),
        ("steps = 4", "steps = 99999999999999999999", "training.steps"),
        ("steps = 4", "", "training.steps"),
        ("steps = 4", "steps = 4\nstepps = 4", "training.stepps"),
        ("learning_rate = 0.003", "learning_rate = nan", "optimizer.learning_rate"),
        ("learning_rate = 0.003", "learning_rate = inf", "optimizer.learning_rate"),
        ("learning_rate = 0.003", "learning_rate = -1.0", "optimizer.learning_rate"),
        ("learning_rate = 0.003", "learning_rate = 1979-05-27", "optimizer.learning_rate"),
        ('kind = "adamw"', 'kind = "lion"', "optimizer.kind"),
        ('architecture = "gpt2"', 'architecture = "../gpt2"', "model.architecture"),
        ('architecture = "gpt2"', 'architecture = "no-such-model"', "model.architecture"),
        ('architecture = "gpt2"', 'architecture = "cnn"', "digits"),
        ("n_embd = 16", "n_embd = 15", "model.config"),
        ("n_embd = 16", "n_embd = 99999999999", "n_embd"),
        ("n_layer = 1", "n_layer = 100000", "n_layer"),
        ("n_layer = 1", 'auto_map = "evil.Model"', "auto_map"),
        ("n_layer = 1", "dtype = 'float64'", "dtype"),
        ("[data]", "[data", "TOML"),
        ("[data]", "[datum]", "data"),
        ('path = "text.txt"', 'path = "missing.txt"', "missing.txt"),
        ('path = "text.txt"', 'path = "."', "not a file"),
        ("[record]", "[record]\nbucket_mode = 'fp8'", "record.bucket_mode"),
        ("[training]", "[training]\nseed = -1", "training.seed"),
        ("[training]", "[training]\ndevice = 'tpu'", "training.device"),
    ],
)
def test_a_bad_config_exits_with_4_and_one_line_that_names_the_field(
    tally: Tally, config: Path, tmp_path: Path, old: str, new: str, named: str
) -> None:
    assert old in CONFIG
    config.write_text(CONFIG.replace(old, new, 1))
    told = tally("train", config, "--out", tmp_path / "run")
    assert (told.code, told.out) == (4, "")
    assert named in told.complaint


def test_a_config_without_a_source_exits_with_2(tally: Tally, config: Path, tmp_path: Path) -> None:
    config.write_text(CONFIG.replace('path = "text.txt"', ""))
    told = tally("train", config, "--out", tmp_path / "run")
    assert told.code == 2
    assert "data.path" in told.complaint


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"", b"x" * (17 << 20), b"a = [" + b"[" * 9000])
def test_a_config_that_is_no_toml_exits_with_4(tally: Tally, config: Path, tmp_path: Path, data: bytes) -> None:
    config.write_bytes(data)
    told = tally("train", config, "--out", tmp_path / "run")
    assert (told.code, told.out) == (4, "")
    assert "config.toml" in told.complaint


def test_a_crash_exits_with_4_and_a_resumed_run_is_accepted(
    tally: Tally, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.engines.torch.training.trainer import Trainer

    def crash(*_: object) -> None:
        raise RuntimeError("out of memory\nand a second line")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_clip", crash)
        told = tally("train", config, "--out", tmp_path / "run")
    assert told.code == 4
    assert "step 1 crashed: RuntimeError: out of memory" in told.complaint
    assert tally("train", "--resume", tmp_path / "run").code == 0
    assert tally("audit", tmp_path / "run").code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_exits_with_4_corrupts_nothing_and_leaves_the_run_resumable(
    tally: Tally, config: Path, small_disk: Path, tmp_path: Path
) -> None:
    config.write_text(CONFIG.replace("steps = 4", "steps = 30"))
    undisturbed = json.loads(tally("train", config, "--out", tmp_path / "undisturbed", "--json").out)
    told = tally("train", config, "--out", small_disk / "run")
    assert (told.code, told.out) == (4, "")
    assert "No space left" in told.complaint
    assert not (small_disk / "run/claim.json").exists()
    moved = Path(shutil.copytree(small_disk / "run", tmp_path / "moved"))
    resumed = tally("train", "--resume", moved, "--json")
    assert json.loads(resumed.out)["transcript"] == undisturbed["transcript"]
    assert tally("audit", moved).code == 0


@pytest.mark.parametrize("bytes_max", [3_000, 30_000])
def test_a_file_that_may_not_grow_exits_with_4_and_the_run_resumes_without_the_limit(
    tally: Tally, config: Path, tmp_path: Path, bytes_max: int
) -> None:
    config.write_text(CONFIG.replace("steps = 4", "steps = 20"))
    out = tmp_path / "run"
    command = [str(commands() / "tally"), "train", str(config), "--out", str(out), "--threads", "1"]
    limited = ["prlimit", f"--fsize={bytes_max}", *command]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    if (out / "spec.json").exists():
        assert tally("train", "--resume", out).code == 0
        assert tally("audit", out).code == 0


def test_a_second_training_into_a_directory_stops_with_one_line_and_leaves_the_first_alone(
    tally: Tally, config: Path, tmp_path: Path
) -> None:
    from tallystick.formats.store.run import RunLock

    out = tmp_path / "run"
    with RunLock(out):
        for arguments in (["train", config, "--out", out], ["train", config, "--out", out, "--no-graph"]):
            told = tally(*arguments)
            assert (told.code, told.out) == (4, "")
            assert "another process records into it" in told.complaint
        assert [path.name for path in out.iterdir()] == [".tally-lock"]
    assert tally("train", config, "--out", out).code == 0
    (out / "claim.json").unlink()
    with RunLock(out):
        told = tally("train", "--resume", out)
        assert told.code == 4
        assert "another process records into it" in told.complaint
    assert tally("train", "--resume", out).code == 0
    assert tally("audit", out).code == 0


@pytest.mark.parametrize(("signal", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("tallystick.recording.training.prepare", "before the first record; the same command begins again"),
        ("tallystick.recording.training.capture_step", "before the first record; the same command begins again"),
        ("tallystick.recording.training.TrainingRun._step", "`tally train --resume"),
    ],
)
def test_ctrl_c_says_what_goes_on_and_that_goes_on(
    tally: Tally,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    says: str,
    signal: type[BaseException],
    code: int,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        (tmp_path / "run/data").mkdir(exist_ok=True)
        raise signal

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(at, interrupt)
        told = tally("train", config, "--out", out)
    assert told.code == code
    assert "interrupted" in told.complaint
    assert says in told.complaint
    again = ["--resume", out] if "--resume" in says else [config, "--out", out]
    assert tally("train", *again).code == 0
    assert tally("audit", out).code == 0


def test_a_directory_with_files_of_somebody_else_is_left_alone(tally: Tally, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "data").mkdir(parents=True)
    (out / "data/mine.txt").write_text("mine")
    assert tally("train", config, "--out", out).code == 2
    assert [path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()] == ["data/mine.txt"]
