"""Every file of a finished run, damaged in every way: never accepted, never a traceback, never a hang.

Three kinds of files are no evidence, and damage to them alone may leave the verdict as it is:

- `*.index` says where each line of a log starts: it only makes opening one record fast. An audit opens the first
  and the last record through it, so most damage is refused all the same.
- `tiles/trace/` serves proofs about the timeline, which no audit asks for; the trace itself is under a root.
- `loss.png` is a picture for people (not drawn by the library, only by the command).

The last two may vanish; every other file is evidence.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DAMAGES_PER_FILE = 6
DERIVED = ("transcript.index", "trace.index", "tiles/trace/")


def files_of(run: Path) -> list[str]:
    return sorted(
        str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and path.name != ".tally-lock"
    )  # empty


def is_evidence(name: str) -> bool:
    return not name.startswith(DERIVED)


def damages(data: bytes, name: str) -> list[tuple[str, bytes | None]]:
    """Some of all damages; which ones, and where, is drawn from the file's name. Every file is removed once."""
    chance = random.Random(name)
    drawn: list[tuple[str, bytes | None]] = chance.sample([*every_damage(data, chance)], DAMAGES_PER_FILE - 1)
    return [*drawn, ("removed", None)]


def every_damage(data: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """Flipped bits at random places, a replaced and a missing byte, truncations, additions."""
    for _ in range(4):
        place = chance.randrange(len(data))
        yield f"bit flipped in byte {place}", replaced(data, place, data[place] ^ 1 << chance.randrange(8))
    place = chance.randrange(len(data))
    yield f"byte {place} replaced", replaced(data, place, (data[place] + 1 + chance.randrange(255)) % 256)
    yield f"byte {place} removed", data[:place] + data[place + 1 :]
    yield f"cut at {place}", data[:place]
    yield "last byte cut", data[:-1]
    yield "a byte appended", data + b"\n"
    yield "doubled", data + data
    yield "emptied", b""


def replaced(data: bytes, place: int, byte: int) -> bytes:
    return data[:place] + bytes([byte]) + data[place + 1 :]


@pytest.fixture(scope="module")
def small(trained: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with hints."""
    record = {"anchor_stride": 1, "summaries": ["exact", "bucket", "projection"], "hint_margin": 0.001}
    out = tmp_path_factory.mktemp("small") / "run"
    trained(out, {"training": {"steps": 2}, "schedule": {"warmup_steps": 0}, "record": record})
    return out


def test_the_run_itself_is_accepted(small: Path, answered: Callable[..., str]) -> None:
    assert answered(small, full=True) == "accepted"


def test_no_damage_to_any_file_is_accepted(small: Path, answered: Callable[..., str]) -> None:
    run = Path(shutil.copytree(small, small.with_name("damaged"), dirs_exist_ok=True))
    accepted = []
    for name in files_of(run):
        data = (run / name).read_bytes()
        for what, damaged in damages(data, name):
            if damaged is None:
                (run / name).unlink()
            else:
                (run / name).write_bytes(damaged)
            told = answered(run, full=True)
            assert "\n" not in told
            if told == "accepted" and is_evidence(name):
                accepted.append(f"{name}: {what}")
        (run / name).write_bytes(data)
    assert accepted == []
    assert answered(run, full=True) == "accepted"
