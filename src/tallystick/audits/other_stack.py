"""Why bits are not compared between two stacks: what differs between them, and what would make them equal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tallystick.transcripts.environment import Environment
from tallystick.transcripts.switches import SWITCHES, THREADS, THREADS_MAX, VALUE

SHOWN: Final = 3
WIDTH_MAX: Final = 48
LIBRARIES: Final = ("torch", "transformers")
HARDWARE: Final = ("gpus", "cpu", "machine")
SETTINGS: Final = ("capability", "threads", *SWITCHES)
FOLLOWING: Final = ("cuda", "cudnn", "math libraries")
"""Entries that come with a build of PyTorch."""
ORDER: Final = ("device", *LIBRARIES, *SETTINGS, *HARDWARE)
RELEASE: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}(\+(?P<build>cpu|cu[0-9]{2,4}|rocm[0-9.]{1,8}))?", re.ASCII)
"""A version that a package index may have; the stack is the word of a prover, and is not pasted into commands."""
BUILDS: Final = "https://download.pytorch.org/whl"

Differing = Mapping[str, tuple[str, str]]


def describe_other_stack(ours: Environment, theirs: Environment, tolerant: str) -> str:
    """The entries that matter, claimed → here, and the next step: `tolerant`, or what makes the stacks equal."""
    found = ours.differing(theirs)
    named = sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    shown = ", ".join(f"{name} {_cut(found[name][1])} → {_cut(found[name][0])}" for name in named[:SHOWN])
    more = f" and {len(named) - SHOWN} more (-v lists all)" if len(named) > SHOWN else ""
    needed = " and ".join(_needed(ours, theirs, found)) or "the stack that was claimed"
    return f"different stack (claimed → here): {shown}{more}; {tolerant}, and bit for bit needs {needed}"


def _needed(ours: Environment, theirs: Environment, found: Differing) -> Iterator[str]:
    """What would make the stacks equal, as far as one can say."""
    is_device = theirs.device != ours.device
    if is_device:
        is_missing = theirs.device == "cuda" and not ours.gpus
        yield f"a machine with {theirs.device} (no such device here)" if is_missing else f"--device {theirs.device}"
    if any(name in found for name in LIBRARIES):
        yield _install(theirs, [name for name in LIBRARIES if name in found])
    if hardware := [name for name in HARDWARE if name in found and not (is_device and name == "gpus")]:
        yield f"hardware with that {' and '.join(hardware)}"
    yield from _settings(ours, theirs, found)
    is_explained = "torch" in found or "capability" in found  # the math libraries state the capability too
    if not is_explained and (builds := [name for name in FOLLOWING if name in found]):
        yield f"a build of torch with that {' and '.join(builds)}"


def _install(theirs: Environment, names: list[str]) -> str:
    """The command that installs the claimed versions, or their names where no index has such a version."""
    versions = {name: theirs.torch if name == "torch" else theirs.package(name) for name in names}
    releases = {name: RELEASE.fullmatch(version) for name, version in versions.items()}
    if not all(releases.values()):
        return " and ".join(f"{name} {_cut(version)}" for name, version in versions.items())
    pinned = " ".join(f"'{name}=={version}'" for name, version in versions.items())
    builds = [match["build"] for match in releases.values() if match is not None and match["build"]]
    return f"`pip install {pinned}{f' --extra-index-url {BUILDS}/{builds[0]}' if builds else ''}`"


def _settings(ours: Environment, theirs: Environment, found: Differing) -> Iterator[str]:
    """What to set before the command, and what not to set."""
    wanted = {name: theirs.variables.get(name, "") for name in SWITCHES if name in found}
    assigned = [f"{name}={value}" for name, value in wanted.items() if value and VALUE.fullmatch(value)]
    if "threads" in found and theirs.threads <= THREADS_MAX:
        assigned.append(f"{THREADS}={theirs.threads}")
    if assigned:
        yield f"`{' '.join(assigned)} tally audit …`"
    if unset := [name for name, value in wanted.items() if not value]:
        yield f"{' and '.join(unset)} not set"


def _cut(text: str) -> str:
    return (text or "none") if len(text) <= WIDTH_MAX else f"{text[: WIDTH_MAX - 1]}…"
