"""The prover knows the nonce of the audit beforehand and grinds claims until the sample misses the bad steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.forging import Scene, find_scene, seal
from tallystick.attacks.gradient_noise import forge as forge_noise
from tallystick.audits.sampling import NONCE_BYTES, sample_steps
from tallystick.commitments.digests import digest_from
from tallystick.commitments.tree import Frontier, leaf_hash
from tallystick.errors import UsageError
from tallystick.store.log import read_lines
from tallystick.store.run import RunDirectory
from tallystick.transcripts.claim import Claim, Log
from tallystick.transcripts.record import TraceEntry

PROVER_NONCE = bytes(NONCE_BYTES)
"""A nonce that anybody can guess."""
SAMPLES = 4
ATTEMPTS_MAX = 100_000


def forge(run: Path, out: Path) -> None:
    """Add noise to one step, then vary the stated time of the last step until the known nonce samples elsewhere."""
    forge_noise(run, out)
    forged = RunDirectory(out)
    scene = find_scene(forged)
    lines = list(read_lines(forged.trace_path))
    for line, claim in variants(forged.claim(), lines):
        if not hits(claim, scene):
            forged.trace_path.write_bytes(b"".join(kept + b"\n" for kept in [*lines[:-1], line]))
            seal(forged)
            return
    raise UsageError(f"{run}: no sample of {SAMPLES} steps misses the forged segment")


def variants(claim: Claim, trace: list[bytes]) -> Iterator[tuple[bytes, Claim]]:
    """Claims that differ only in the stated time of the last step, each with the line that states it."""
    frontier = Frontier.empty()
    for line in trace[:-1]:
        frontier = frontier.append(leaf_hash(line))
    entry = TraceEntry.from_bytes(trace[-1], "trace.jsonl")
    for attempt in range(ATTEMPTS_MAX):
        seconds = round(entry.seconds + attempt * 1e-6, 6)
        line = entry.model_copy(update={"seconds": seconds}).to_bytes()
        log = Log(root=digest_from(frontier.append(leaf_hash(line)).root()), size=len(trace))
        yield line, claim.model_copy(update={"trace": log})


def hits(claim: Claim, scene: Scene) -> bool:
    """Whether the known nonce samples a step whose replay would show the forgery."""
    sampled = sample_steps(PROVER_NONCE, claim.identity, scene.last, SAMPLES)
    return any(scene.middle < step <= scene.after for step in sampled)


ATTACKS = (
    Attack(
        name="nonce-ground",
        change="one noisy step, and a claim ground until a nonce known beforehand samples past it",
        forge=forge,
        screens=accepted("the step is as long and as smooth as an honest one"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)
