"""The stack on which a run was computed, with everything that can change the last bits of a result.

A value that could not be determined is the string "unknown". An empty list or table means: known to be empty.
"""

from __future__ import annotations

from typing import Literal

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import encode
from tallystick.documents.document import Document, Positive

Unknown = Literal["unknown"]


class Environment(Document):
    """The software and hardware of a run. No field names a person, a host or a path."""

    version: Literal[1] = 1
    python: str
    system: str
    machine: str
    cpu: str
    capability: str
    torch: str
    threads: Positive
    device: Literal["cpu", "cuda"]
    cuda: str
    cudnn: str
    gpus: tuple[str, ...] | Unknown
    math_libraries: tuple[str, ...] | Unknown
    variables: dict[str, str]
    packages: dict[str, str] | Unknown

    def stack(self) -> dict[str, str]:
        """The fields that decide the bits of a result: compute libraries, processor, threads and switches."""
        fields = {
            name: str(getattr(self, name))
            for name in ("machine", "cpu", "capability", "torch", "threads", "device", "cuda", "cudnn")
        }
        fields["gpus"] = _listed(self.gpus) if self.device == "cuda" else ""
        fields["math libraries"] = _listed(self.math_libraries)
        fields["transformers"] = self.package("transformers")
        return fields | {name: value for name, value in self.variables.items() if value}

    @property
    def stack_digest(self) -> Digest:
        """The digest of the stack alone: packages that compute nothing have no part in it."""
        return digest("environment", encode({"stack": dict(self.stack())}))

    def is_named_by(self, named: str) -> bool:
        """Whether a receipt names this environment: by its stack, or as older receipts do by the whole document."""
        return named in (self.stack_digest, self.digest_as("environment"))

    def package(self, name: str) -> str:
        """The version of an installed package, or "unknown"."""
        return self.packages.get(name, "unknown") if isinstance(self.packages, dict) else "unknown"

    def differing(self, other: Environment) -> dict[str, tuple[str, str]]:
        """Every entry of the two stacks that differs or is unknown, by its name: ours and theirs."""
        ours, theirs = self.stack(), other.stack()
        pairs = {
            name: (ours.get(name, "not set"), theirs.get(name, "not set"))
            for name in sorted(ours.keys() | theirs.keys())
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] or "unknown" in pair}

    def differences(self, other: Environment) -> tuple[str, ...]:
        """Every entry of the two stacks that differs or is unknown, as `name: ours / theirs`."""
        return tuple(f"{name}: {ours} / {theirs}" for name, (ours, theirs) in self.differing(other).items())


def _listed(names: tuple[str, ...] | Unknown) -> str:
    return names if isinstance(names, str) else ", ".join(names)
