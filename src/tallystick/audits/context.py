"""When an audit was made, of what, with which tools and on which stacks: what a report of it has to name."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tallystick import __version__
from tallystick.audits.policy import Policy
from tallystick.core.canonical_json import Json
from tallystick.core.errors import MalformedError, UnavailableError, without_passwords
from tallystick.formats.spec import Environment, Spec
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.formats.store.run import RunDirectory

OPTIONS: Final = {name: f"--{name}" for name in ("samples", "shards", "window", "claim", "replay")}
SWITCHES: Final = {"full": "--full", "mode": "--tolerant"}
SHOWN_MAX: Final = 600


@dataclass(frozen=True)
class AuditContext:
    """The date (UTC), the command that repeats the audit, what was trained on what, and both stacks.

    `claimed` is the stack that the prover states, `None` where it cannot be read; `ours` is the verifier's own, `None`
    where nothing was computed. `model` and `data` are the prover's words.
    """

    date: str
    command: str
    model: str
    data: str
    claimed: Environment | None
    ours: Environment | None
    startup_seconds: float
    version: str = __version__

    def to_json(self) -> dict[str, Json]:
        """The context as JSON values."""
        return {
            "date": self.date,
            "tallystick": self.version,
            "command": self.command,
            "model": self.model,
            "data": self.data,
            "stacks": {"claimed": _json(self.claimed), "ours": _json(self.ours)},
            "startup_seconds": round(self.startup_seconds, 3),
        }


def context_of(
    run: RunDirectory | InferenceDirectory, command: str, ours: Environment | None, startup_seconds: float
) -> AuditContext:
    """The context of an audit of `run` that ends now."""
    model, data = _named(run)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return AuditContext(date, command, model, data, stated_environment(run), ours, startup_seconds)


def stated_environment(run: RunDirectory | InferenceDirectory) -> Environment | None:
    """The environment that the prover states; `None` where the audit has to say what is wrong with it."""
    try:
        return run.environment()
    except (MalformedError, UnavailableError):
        return None


def audit_command(
    run: Path,
    policy: Policy,
    nonce: bytes,
    device: str | None,
    corpus: Path | None = None,
    anchors: str | None = None,
    initial: Path | None = None,
) -> str:
    """The command that repeats an audit; a policy with more than the options can say is a file, `policy.json`."""
    nonces = () if policy.full else ("--nonce", nonce.hex())
    options = (*_asked(policy), *_with(corpus, initial), *_from(anchors), *nonces, *_on(device))
    return shlex.join(["tally", "audit", str(run), *options])


def segment_command(
    run: Path,
    policy: Policy,
    start: int,
    end: int,
    device: str | None,
    anchors: str | None = None,
    initial: Path | None = None,
) -> str:
    """The command that repeats the replay of a segment."""
    claim = () if policy.claim is None else ("--claim", policy.claim)
    options = ("--from", str(start), "--to", str(end), *claim, *_with(None, initial), *_from(anchors), *_on(device))
    return shlex.join(["tally", "verify-segment", str(run), *options])


def opened_segment_command(
    segment: Path, policy: Policy, device: str | None, corpus: Path | None = None, initial: Path | None = None
) -> str:
    """The command that repeats the audit of a segment directory."""
    return shlex.join(["tally", "audit", str(segment), *_asked(policy), *_with(corpus, initial), *_on(device)])


def _asked(policy: Policy) -> Iterator[str]:
    """The options that differ from the default policy."""
    changed = policy.model_dump(mode="json", exclude_defaults=True)
    if changed.keys() - OPTIONS.keys() - SWITCHES.keys():
        yield from ("--policy", "policy.json")
        return
    for name, value in changed.items():
        yield from (SWITCHES[name],) if name in SWITCHES else (OPTIONS[name], str(value))


def _with(corpus: Path | None, initial: Path | None) -> Iterator[str]:
    """What the verifier has of the data and of the first weights."""
    yield from () if corpus is None else ("--corpus", str(corpus))
    yield from () if initial is None else ("--initial", str(initial))


def _from(anchors: str | None) -> tuple[str, ...]:
    return () if anchors is None else ("--anchors", without_passwords(anchors))


def _on(device: str | None) -> tuple[str, ...]:
    return () if device is None else ("--device", device)


def _named(run: RunDirectory | InferenceDirectory) -> tuple[str, str]:
    """What the prover says was run, on what data; unknown where it cannot be read."""
    try:
        return _named_in(run)
    except (MalformedError, UnavailableError):
        return "unknown", "unknown"


def _json(environment: Environment | None) -> Json:
    return None if environment is None else environment.to_json()


def _named_in(run: RunDirectory | InferenceDirectory) -> tuple[str, str]:
    if isinstance(run, InferenceDirectory):
        claim = run.claim()
        return f"graph {claim.graph}, weights {claim.weights}", f"{claim.transcript.size} recorded calls"
    spec = run.spec()
    return _cut(_model(spec)), _cut(_data(spec))


def _model(spec: Spec) -> str:
    if spec.recipe is None:
        assert spec.description is not None  # a spec has a recipe or a description
        return "; ".join(f"{name}: {value}" for name, value in sorted(spec.description.items()))
    model, training, optimizer = spec.recipe.model, spec.recipe.training, spec.recipe.optimizer
    sizes = ", ".join(f"{name} {value}" for name, value in sorted(model.config.items()))
    return f"{model.architecture} ({sizes}) in {training.dtype}, {optimizer.kind}, {training.steps} steps"


def _data(spec: Spec) -> str:
    if spec.data is None:
        return "a loader of the prover's own"
    tokens = "" if spec.data.tokens is None else f", {spec.data.tokens.count:,} tokens"
    records = "shards" if spec.data.kind == "corpus" else f"records of {spec.data.kind}"
    return f"{spec.data.source.count:,} {records}{tokens}, root {spec.data.root}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"
