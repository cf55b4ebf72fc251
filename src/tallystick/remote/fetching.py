"""Fetches runs and opened segments from a service into folders, where they are audited as any other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tallystick.errors import MalformedError, ProofError, UnavailableError
from tallystick.remote.connection import ServiceConnection, in_url
from tallystick.store.layout import check_file_name
from tallystick.store.segment import SegmentDirectory
from tallystick.store.statement import SEGMENT
from tallystick.store.traces import TRACES

FILES_MAX: Final = 1_000_000
SIZE_MAX: Final = 1 << 42
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ListedFile:
    """A file that a service offers: its relative path, its size in bytes and, where it is stated, its SHA-256."""

    path: str
    size: int
    sha256: str | None = None


def fetch_run(service: ServiceConnection, run: str, folder: Path) -> None:
    """Copy the files of a run into `folder`, without its timelines, which no audit of a run reads.

    Raises `ProofError` where the service hands over something else.
    """
    _fetch(service, f"/v1/runs/{in_url(run)}", folder)
    if (folder / SEGMENT).exists():
        raise ProofError(f"{service.url}: the service handed over a segment in place of the run")


def fetch_segment(service: ServiceConnection, run: str, start: int, end: int, folder: Path) -> None:
    """Copy an opened segment into `folder`: what a replay from anchor `start` to anchor `end` needs.

    Raises `ProofError` where the service hands over another one.
    """
    where = f"/v1/runs/{in_url(run)}/segments/{start}-{end}"
    _fetch(service, where, folder, where)
    found = SegmentDirectory(folder).statement()
    if (found.start, found.end) != (start, end):
        raise ProofError(f"{service.url}: the service handed over the segment {found.start}..{found.end}")


def listed(service: ServiceConnection, path: str) -> list[ListedFile]:
    """The files that a service lists at `path`; raises `MalformedError` for a name that no run directory may hold."""
    answer = service.get_json(path)
    found = answer.get("files") if isinstance(answer, dict) else None
    if not isinstance(found, list) or len(found) > FILES_MAX:
        raise MalformedError(f"{service.url}{path}: no list of files")
    return list(_read(found, f"{service.url}{path}"))


def _fetch(service: ServiceConnection, where: str, folder: Path, listing: str | None = None) -> None:
    files = [file for file in listed(service, listing or f"{where}/files") if not file.path.startswith(TRACES)]
    folder.mkdir(parents=True, exist_ok=True)
    total, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if total > free:
        raise UnavailableError(f"{folder}: {total} bytes are to be fetched, and {free} are free there; set TMPDIR")
    for file in files:
        service.download(f"{where}/files/{_in_path(file.path)}", folder / file.path, file.size, file.sha256)


def _read(found: list[Any], what: str) -> Iterator[ListedFile]:
    for each in found:
        if not isinstance(each, dict) or not isinstance(each.get("path"), str) or type(each.get("size")) is not int:
            raise MalformedError(f"{what}: a file has no path or no size")
        digest = each.get("sha256")
        if not 0 <= each["size"] <= SIZE_MAX or (digest is not None and _SHA256.fullmatch(str(digest)) is None):
            raise MalformedError(f"{what}: a file has no possible size or digest")
        yield ListedFile(check_file_name(each["path"]), each["size"], digest)


def _in_path(name: str) -> str:
    return "/".join(in_url(part) for part in name.split("/"))
