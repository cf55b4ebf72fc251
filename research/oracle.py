#!/usr/bin/env python3
"""Keep what must not change while files move: formats, public names, commands, verdicts, exit codes.

Usage: python -m research.oracle write|compare DIR [--attacks COMMAND] [--only PATTERN]

`write` runs the tables of `oracle_cases.py` in a fresh folder and keeps in DIR what was printed, the digests of what
was written, and the recorded runs. `compare` records anew, and compares the bytes of these runs; then it puts those of
DIR in their place, runs everything again, and prints each difference; it exits with 1 if there is one. It knows
Tallystick by `tally`, public names and files alone, so it runs before and after any change of the modules. --attacks
is the command that forges, if `tally attack` no longer has all of them; --only takes the lines in which a pattern is.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from research.oracle_cases import DISPUTED, JUDGED, RECORDED, attack_lines, write_inputs
from research.oracle_programs import Printed, prepare, run_line
from research.oracle_surface import commands, files, names

TIMED_KEYS = re.compile(
    r'("(?:[a-z_]*seconds|date|made|cost_ratio|time|deadline|until|posted|[a-z_]*_ns|ends|[a-z_]*_at|payable|clocks|purses|seal|head)":)'
    r'(?:"[^"]*"|[-+.e\d]+|null|{[^{}]*})'
)
TIMED_TEXT = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT?[\d:.+Z]*"), "DATE"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "TIME"),
    (re.compile(r"\b[\d.,]+(?= of the training time)"), "SHARE"),
    (re.compile(r"\b[\d,]+(\.\d+)? ?(ms|s|seconds?|min|minutes?|hours?)\b"), "DURATION"),
    (
        re.compile(r"^ *(?:DURATION +)?(?=(?:prover|challenger) )", re.MULTILINE),
        "",
    ),  # no column where it took no second
    (re.compile(r"\b\d+\.\d(?= [a-z][a-z -]+(,|$))", re.MULTILINE), "DURATION"),  # as in `seconds: 0.1 start-up, …`
)
CLAIM = re.compile(r'(?:"claim":"|claim |"trace":"|^)(sha256:[0-9a-f]{64})')
"""Also the digest of a trace, and a line that begins with the digest of a claim, as `tally train` prints it."""
TRACE = re.compile(r'"trace":\{"root":"(sha256:[0-9a-f]{64})"')
UNCOMPARED = re.compile(
    r"(trace|events)\.(jsonl|index|json)$|\.png$|\.html$|\.db(-\w+)?$|/tiles/|perfetto|^(court|[a-z]+-work|trace)/|cache"
)
"""Files that hold times or random keys, or follow from such files."""
MASKED = re.compile(r"\.jsonl?$")


class Folder:
    """The folder in which all lines run, and what stands for its name and its random digests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept_claims: set[str] = set()
        self.names: dict[str, str] = {str(path): "~"}
        self.seen: dict[Path, tuple[int, int]] = {}

    def run(self, line: str) -> dict[str, Any]:
        """Run a line: its exit code, what it printed, and the digests of what it wrote; times are left out."""
        printed = run_line(line, self.path)
        changed = self.changed()
        self.learn(line, printed, changed)
        found: dict[str, Any] = {"exit": printed.code, "out": self.masked(printed.out).splitlines()}
        if printed.code not in (0, 1, 3):
            found["error"] = self.masked(printed.error).splitlines()
        found["files"] = {name: self.digest(path) for name, path in changed.items() if not UNCOMPARED.search(name)}
        return found

    def changed(self) -> dict[str, Path]:
        """The files that are new or others than when this was called before."""
        now = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in self.path.rglob("*") if path.is_file()}
        changed = [path for path in sorted(now) if self.seen.get(path) != now[path]]
        self.seen = now
        return {path.relative_to(self.path).as_posix(): path for path in changed}

    def learn(self, line: str, printed: Printed, changed: dict[str, Path]) -> None:
        """Give names to digests that follow from times and random keys: new claims, their traces, parties."""
        for name, path in changed.items():
            if path.name == "claim.json" and (match := TRACE.search(path.read_text())):
                self.names[match[1]] = f"<trace of {name}>"
            if name.startswith("court/") and path.suffix == ".key":
                self.names |= named_key(path)
        for digest in CLAIM.findall(printed.out)[:1]:
            if digest not in self.kept_claims and not line.startswith("tally coordinator"):
                self.names[digest] = "<claim>"
        if line.startswith("tally coordinator init"):
            self.names[json.loads(printed.out)["coordinator"]] = "<coordinator>"

    def masked(self, text: str) -> str:
        """A text without times and without what is another one in every folder."""
        for given, name in self.names.items():
            text = text.replace(given, name)
        return untimed(text)

    def digest(self, path: Path) -> str:
        """The digest of a file, of its masked text where it may hold times."""
        data = path.read_bytes()
        return hashlib.sha256(self.masked(data.decode()).encode() if MASKED.search(path.name) else data).hexdigest()


def untimed(text: str) -> str:
    """A text without times, durations, and what random keys give or order."""
    text = TIMED_KEYS.sub(r"\1…", text)
    for pattern, name in TIMED_TEXT:
        text = pattern.sub(name, text)
    return text


def named_key(path: Path) -> dict[str, str]:
    """The public half of a random key, and its beginning, as the name of its file."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text())).public_key().public_bytes_raw().hex()
    return {public: f"<{path.stem}>", public[:12]: f"<{path.stem}>"}


def lines_of(table: str, only: str) -> list[str]:
    """The commands of a table."""
    return [line for line in table.strip().splitlines() if re.search(only, line)]


def record(folder: Folder, only: str) -> dict[str, Any]:
    """Record all runs in the folder."""
    run_line("tally example demo", folder.path)
    write_inputs(folder.path, (folder.path / "data" / "python-topics.txt").read_bytes())
    folder.changed()
    return {line: folder.run(line) for line in told(lines_of(RECORDED, only))}


def judge(folder: Folder, attacks: dict[str, str], command: str, only: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Judge the runs of the folder, forge each in every way, and dispute a claim."""
    for line in told(lines_of(JUDGED, only)):
        yield line, folder.run(line)
    claims: dict[str, str] = {}
    for name, seen_by in told(attacks.items()):
        forge, audits = attack_lines(name, seen_by, command)
        if re.search(only, forge):
            kind = forge.split()[-3]
            if "{claim}" in audits[-1] and kind not in claims:
                (claims[kind],) = CLAIM.findall(run_line(f"tally audit {kind} --samples 1 --json", folder.path).out)[:1]
            yield f"attack {name}", folder.run(forge)
            for audit in audits:
                yield audit, folder.run(audit.format(claim=claims.get(kind, "")))
            shutil.rmtree(folder.path / f"forged-{name}", ignore_errors=True)
    for line in told(lines_of(DISPUTED, only)):
        yield line, folder.run(line)


def told(lines: Iterable[Any]) -> Iterator[Any]:
    """The lines, with the seconds of each that took some."""
    for line in lines:
        began = time.monotonic()
        yield line
        print(f"{time.monotonic() - began:6.1f} s  {str(line)[:100]}", file=sys.stderr)


def capture(runs: Path, attacks: dict[str, str] | None, command: str, only: str) -> dict[str, Any]:
    """Everything that is compared; `runs` gets the runs that were recorded, or gives those of the first time."""
    with tempfile.TemporaryDirectory(prefix="oracle-") as name:
        folder = Folder(Path(name))
        found: dict[str, Any] = {"recorded": record(folder, only)}
        if runs.exists():
            for each in folder.path.iterdir():
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        shutil.copytree(*((runs, folder.path) if runs.exists() else (folder.path, runs)), dirs_exist_ok=True)
        listed = json.loads(run_line("tally attack --list --json", folder.path).out)["attacks"]
        found["attacks"] = attacks or {each["name"]: each["seen_by"] for each in listed}
        folder.names = {str(folder.path): "~"}
        folder.kept_claims = kept_claims(folder.path)
        folder.changed()
        found["judged"] = dict(judge(folder, found["attacks"], command, only))
        if not only:
            found |= {"files": files(), "names": names(folder.path), "commands": commands(folder.path)}
    return found


def kept_claims(folder: Path) -> set[str]:
    """The digests of the claims of the kept runs, which no run of the oracle changes."""
    places = " ".join(sorted(path.parent.name for path in folder.glob("*/claim.json")))
    run_line(f"tally db add {places} --db kept.db", folder)
    rows = json.loads(run_line('tally query "SELECT claim FROM runs" --db kept.db --json', folder).out)["rows"]
    (folder / "kept.db").unlink()
    return {row["claim"] for row in rows}


def differences(old: Any, new: Any, place: str = "") -> Iterator[str]:
    """Where two captures differ, one line for each place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(new.keys() - old.keys())]:
            if key not in new or key not in old:
                yield f"{place} / {key}: only {'before' if key in old else 'now'}"
            else:
                yield from differences(old[key], new[key], f"{place} / {key}")
    elif old != new:
        one, other = (pieces(each) for each in (old, new))
        if pairs := list(difflib.unified_diff(one, other, "before", "now", lineterm="", n=0)):
            yield "\n    ".join([f"{place}:", *pairs])


def pieces(printed: Any) -> list[str]:
    """Printed lines without times; JSON with a line for each member, so that a difference is a short one."""
    lines = printed if isinstance(printed, list) else [printed]
    return [piece for line in lines for piece in untimed(str(line)).replace(',"', ',\n"').splitlines()]


def main() -> int:
    """Write or compare; return 1 if something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("verb", choices=["write", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--attacks", default="tally attack", metavar="COMMAND")
    parser.add_argument("--only", default="", metavar="PATTERN")
    options = parser.parse_args()
    kept, runs = options.folder / "oracle.json", options.folder / "runs"
    prepare()
    if options.verb == "write":
        options.folder.mkdir(parents=True)
        found = capture(runs, None, options.attacks, options.only)
        kept.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        print(f"{kept}: {len(found['recorded']) + len(found['judged'])} lines")
        return 0
    before = json.loads(kept.read_text())
    now = json.loads(json.dumps(capture(runs, before["attacks"], options.attacks, options.only)))
    if options.only:
        before = {part: {line: before[part][line] for line in now[part] if line in before[part]} for part in now}
    seen = list(differences(before, now))
    print("\n".join(seen) or "nothing differs")
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
