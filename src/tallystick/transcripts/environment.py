"""The stack a run was computed on, and what makes two stacks differ in their last bits.

A value that could not be determined is the string "unknown"; an empty list or table is known to be empty.
"""

from __future__ import annotations

from typing import Literal

from tallystick.documents.document import Document, Positive

Unknown = Literal["unknown"]


class Environment(Document):
    """Software and hardware of a run. Nothing here names a person, a host or a path."""

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
        """The part that decides the bits of a result: compute libraries, processor, threads and switches."""
        fields = {
            name: str(getattr(self, name))
            for name in ("machine", "cpu", "capability", "torch", "threads", "device", "cuda", "cudnn")
        }
        fields["gpus"] = _listed(self.gpus) if self.device == "cuda" else ""
        fields["math libraries"] = _listed(self.math_libraries)
        fields["transformers"] = self.package("transformers")
        return fields | {name: value for name, value in self.variables.items() if value}

    def package(self, name: str) -> str:
        """The version of an installed package, or "unknown"."""
        return self.packages.get(name, "unknown") if isinstance(self.packages, dict) else "unknown"

    def differences(self, other: Environment) -> tuple[str, ...]:
        """Every entry of the two stacks that is not the same, as `name: ours / theirs`."""
        ours, theirs = self.stack(), other.stack()
        return tuple(
            f"{name}: {ours.get(name, 'not set')} / {theirs.get(name, 'not set')}"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name) or "unknown" in (ours.get(name), theirs.get(name))
        )


def _listed(names: tuple[str, ...] | Unknown) -> str:
    return names if isinstance(names, str) else ", ".join(names)
