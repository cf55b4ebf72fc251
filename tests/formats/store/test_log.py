"""An append-only log: whole lines under one root, each of which opens with a proof."""

from __future__ import annotations

import resource
import shutil
import signal
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.digests import digest_from, leaf_hash, tree_root
from tallystick.core.errors import MalformedError, ProofError, TallyError, UnavailableError, UsageError
from tallystick.formats.claims import Log
from tallystick.formats.store.log import LINE_BYTES_MAX, LogWriter, appending, open_line, read_lines

MANY = 100_000


def write(path: Path, lines: list[bytes]) -> Log:
    with appending(path) as log:
        for line in lines:
            log.append(line)
    return log.close()


def lines_of(count: int) -> list[bytes]:
    return [b'{"number":%d}' % number for number in range(count)]


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line), max_size=20))
@settings(deadline=None, max_examples=40)
def test_lines_are_read_back_and_the_root_is_that_of_their_tree(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    log = write(path, lines)
    assert list(read_lines(path)) == lines
    assert log == Log(root=digest_from(tree_root([leaf_hash(line) for line in lines])), size=len(lines))


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 700])
def test_every_line_opens_with_a_proof_under_the_root(tmp_path: Path, count: int) -> None:
    path = tmp_path / "log.jsonl"
    log = write(path, lines_of(count))
    for index in {0, count // 2, count - 1}:
        opened = open_line(path, index, log.size)
        assert opened.line == b'{"number":%d}' % index
        opened.check(log)


def test_a_line_opened_for_another_place_or_log_does_not_check(tmp_path: Path) -> None:
    from dataclasses import replace

    path = tmp_path / "log.jsonl"
    log = write(path, lines_of(9))
    opened = open_line(path, 4, log.size)
    for other in (
        replace(opened, index=5),
        replace(opened, line=b'{"number":5}'),
        replace(opened, proof=opened.proof[:-1]),
        replace(opened, proof=opened.proof[::-1]),
    ):
        with pytest.raises(ProofError):
            other.check(log)
    with pytest.raises(ProofError):
        opened.check(Log(root=log.root, size=5))


@pytest.mark.parametrize("index", [-1, 9, 10**9])
def test_a_line_outside_the_log_is_refused(tmp_path: Path, index: int) -> None:
    log = write(tmp_path / "log.jsonl", lines_of(9))
    with pytest.raises(ProofError, match="outside a log of 9"):
        open_line(tmp_path / "log.jsonl", index, log.size)


def test_a_log_is_continued_under_the_root_of_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = write(tmp_path / "whole" / "log.jsonl", lines_of(600))
    for stop in (0, 1, 255, 256, 599, 600):
        path = tmp_path / str(stop) / "log.jsonl"
        write(path, lines_of(600)[:stop])
        assert write(path, lines_of(600)[stop:]) == undisturbed
        open_line(path, 599, 600).check(undisturbed)


@pytest.mark.parametrize("tail", [b"{", b'{"number":3}', b"\x00" * 100])
def test_a_torn_tail_is_mended_when_the_log_is_continued(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "log.jsonl"
    write(path, lines_of(3))
    with path.open("ab") as file:
        file.write(tail)
    with pytest.raises(MalformedError, match="line 4 is truncated"):
        list(read_lines(path))
    assert write(path, lines_of(5)[3:]) == write(tmp_path / "other" / "log.jsonl", lines_of(5))
    assert list(read_lines(path)) == lines_of(5)


def test_a_log_that_is_nothing_but_a_torn_line_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"torn")
    assert write(path, []).size == 0
    assert path.read_bytes() == b""


def test_an_endless_line_is_refused_and_never_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(b'{"number":0}\n')
        file.truncate(1 << 34)
    tracemalloc.start()
    with pytest.raises(MalformedError, match="line 2 is truncated or longer than 1048576 bytes"):
        list(read_lines(path))
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_a_missing_log_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UnavailableError, match=r"not there|not a regular file|a folder, not a file"):
            list(read_lines(path))


def test_a_line_that_the_disk_does_not_take_whole_is_an_error_and_the_lines_before_stay(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    held = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        log = LogWriter(path)
        for line in lines_of(3):
            log.append(line)
        with pytest.raises(OSError, match="could not be written whole"):
            log.append(b'{"number":3}')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, held)
    log.close()
    assert write(path, lines_of(9)[3:]) == write(tmp_path / "other" / "log.jsonl", lines_of(9))


@pytest.mark.parametrize("harm", ["index gone", "index short", "index wild", "tiles gone", "tile short", "line edited"])
def test_damage_to_what_serves_openings_is_refused(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "log.jsonl"
    log = write(path, lines_of(300))
    index, tile = tmp_path / "log.index", tmp_path / "tiles" / "log" / "0" / "000"
    if harm == "index gone":
        index.unlink()
    elif harm == "index short":
        index.write_bytes(index.read_bytes()[: 200 * 8])
    elif harm == "index wild":
        index.write_bytes(b"\xff" * 300 * 8)
    elif harm == "tiles gone":
        shutil.rmtree(tmp_path / "tiles")
    elif harm == "tile short":
        tile.write_bytes(tile.read_bytes()[:-1])
    else:
        path.write_bytes(path.read_bytes().replace(b'"number":250}', b'"number":251}'))
    with pytest.raises(TallyError):
        open_line(path, 250, log.size).check(log)


@pytest.mark.parametrize("shift", [-1, 1, -13, 13])
def test_a_wrong_offset_cannot_prove_a_lie(tmp_path: Path, shift: int) -> None:
    path = tmp_path / "log.jsonl"
    log = write(path, [b'{"number":%02d}' % number for number in range(40)])
    offsets = (tmp_path / "log.index").read_bytes()
    open_line(path, 20, log.size).check(log)
    wrong = (int.from_bytes(offsets[160:168], "little") + shift).to_bytes(8, "little")
    (tmp_path / "log.index").write_bytes(offsets[:160] + wrong + offsets[168:])
    with pytest.raises(ProofError):
        open_line(path, 20, log.size).check(log)


@pytest.mark.parametrize("place", [0, 20, 21, 39])
def test_a_wrong_tile_cannot_prove_a_lie(tmp_path: Path, place: int) -> None:
    path = tmp_path / "log.jsonl"
    log = write(path, lines_of(40))
    forged = b'{"number":"a lie"}'
    path.write_bytes(path.read_bytes().replace(b'{"number":20}', forged))
    tile = tmp_path / "tiles" / "log" / "0" / "000.p" / "40"
    hashes = tile.read_bytes()
    tile.write_bytes(hashes[: place * 32] + leaf_hash(forged) + hashes[place * 32 + 32 :])
    with pytest.raises(ProofError):
        open_line(path, 20, log.size).check(log)


def test_a_record_of_a_log_without_its_lines_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = write(path, lines_of(3))
    path.unlink()
    with pytest.raises(UnavailableError, match=r"log\.jsonl: not there"):
        open_line(path, 1, log.size)


def test_a_line_of_the_largest_size_is_read_and_a_larger_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, [b"x" * 99, b"y"])
    assert [len(line) for line in read_lines(path, bytes_max=99)] == [99, 1]
    with pytest.raises(MalformedError, match="line 1 is truncated or longer than 98 bytes"):
        list(read_lines(path, bytes_max=98))


def test_lines_that_come_at_once_give_the_same_files_and_root(tmp_path: Path) -> None:
    lines = [b"line %d" % number for number in range(600)]
    one_by_one, at_once = LogWriter(tmp_path / "a" / "log"), LogWriter(tmp_path / "b" / "log")
    for line in lines:
        one_by_one.append(line)
    at_once.extend(lines[:1])
    at_once.extend(lines[1:])
    at_once.extend([])
    assert one_by_one.close() == at_once.close()
    written = [
        {each.relative_to(folder): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
        for folder in (tmp_path / "a", tmp_path / "b")
    ]
    assert written[0] == written[1]
    with appending(tmp_path / "c" / "log") as writer, pytest.raises(UsageError, match="more than"):
        writer.extend([b"short", b"x" * (LINE_BYTES_MAX + 1)])
    assert (tmp_path / "c" / "log").read_bytes() == b""


def test_a_line_that_no_reader_would_take_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with appending(path) as log:
        log.append(b"x" * LINE_BYTES_MAX)
        with pytest.raises(UsageError, match="1048577 bytes, more than the 1048576"):
            log.append(b"x" * (LINE_BYTES_MAX + 1))
    assert [len(line) for line in read_lines(path)] == [LINE_BYTES_MAX]


def test_appending_twice_to_a_closed_log_gives_the_same_root(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log.jsonl")
    log.append(b"{}")
    assert log.close() == log.close()


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Log]:
    path = tmp_path_factory.mktemp("long") / "log.jsonl"
    return path, write(path, lines_of(MANY))


class TestALongLog:
    """Work per line grows with the logarithm of the length; the time itself is measured in `benchmarks/`."""

    def test_holds_only_the_peaks_of_its_tree_and_one_open_tile_a_level(self, tmp_path: Path) -> None:
        log = LogWriter(tmp_path / "log.jsonl")
        for line in lines_of(5_000):
            log.append(line)
        tracemalloc.start()
        for line in lines_of(15_000):
            log.append(line)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        log.close()
        assert len(log.frontier.peaks) == (20_000).bit_count()
        assert held < 200_000

    def test_appending_hashes_as_many_nodes_as_there_are_lines(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tallystick.core import digests as tree

        hashed = [0]
        original = tree.node_hash

        def counting(left: tree.Hash, right: tree.Hash) -> tree.Hash:
            hashed[0] += 1
            return original(left, right)

        log = LogWriter(tmp_path / "log.jsonl")
        monkeypatch.setattr(tree, "node_hash", counting)
        for line in lines_of(4_096):
            log.append(line)
        assert hashed[0] < 3 * 4_096
        log.close()

    def test_opens_any_record_from_one_line_and_a_few_tiles(
        self, long_log: tuple[Path, Log], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, log = long_log
        from tallystick.formats.store.log import TileReader

        tiles = [0]
        original = TileReader._read

        def counting(reader: TileReader, level: int, index: int) -> bytes:
            tiles[0] += 1
            return original(reader, level, index)

        monkeypatch.setattr(TileReader, "_read", counting)
        for index in (0, 1, 77_777, MANY - 1):
            tiles[0] = 0
            tracemalloc.start()
            opened = open_line(path, index, log.size)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            opened.check(log)
            assert opened.line == b'{"number":%d}' % index
            assert len(opened.proof) <= 17
            assert tiles[0] <= 6
            assert peak < 2 << 20
