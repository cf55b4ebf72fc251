"""Tolerances by name: those of this package, loaded on first use, and those of other distributions.

A distribution offers one by an entry point that names a class or a function without arguments:

    [project.entry-points."tallystick.tolerances"]
    mine = "my_package.mine:Mine"

Only a verifier's policy names a tolerance. A tolerance of another distribution may fail in any way. Then nothing was
compared, and this never counts as agreement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from tallystick.core.errors import UnavailableError, UsageError, suggestion
from tallystick.verdicts.tolerance import Finding, ReplayedState, States, Tolerance

GROUP: Final = "tallystick.tolerances"
HOMES: Final = {
    "bucket": "tallystick.verdicts.buckets:Bucket",
    "dual": "tallystick.verdicts.buckets:DualBucket",
    "exact": "tallystick.verdicts.exact:Exact",
}
TEXT_MAX: Final = 200


def tolerance_names() -> tuple[str, ...]:
    """Every name that a policy may give, sorted; no tolerance is loaded."""
    return tuple(sorted({*HOMES, *(point.name for point in entry_points(group=GROUP))}))


def require_tolerance(name: str) -> None:
    """Raise `UsageError`, listing the known names, unless there is exactly one tolerance of this name."""
    if name not in tolerance_names():
        raise UsageError(f"no such tolerance {name[:TEXT_MAX]}{suggestion(name, tolerance_names())}")
    if name not in HOMES and len(_offered(name)) > 1:
        sources = ", ".join(sorted(point.value for point in _offered(name)))
        raise UsageError(f"tolerance {name}: offered more than once, by {sources}")


@dataclass(frozen=True)
class NamedTolerance:
    """A tolerance with the name that a policy gives it."""

    name: str
    tolerance: Tolerance

    @classmethod
    def load(cls, name: str) -> NamedTolerance:
        """The tolerance of that name; those of this package take precedence.

        Raises:
            UsageError: no tolerance has this name, or more than one has.
            UnavailableError: it cannot be loaded.
        """
        require_tolerance(name)
        if name in HOMES:
            module, _, attribute = HOMES[name].partition(":")
            return cls(name, getattr(import_module(module), attribute)())
        return cls(name, _answer(name, lambda: _offered(name)[0].load()()))

    def compare(self, claimed: States, replayed: ReplayedState) -> Finding:
        """How far a claimed state lies from the replayed one; the verifier has read or computed both itself.

        Raises `UnavailableError` if the tolerance fails or returns no valid finding.
        """
        finding = _answer(self.name, lambda: self.tolerance.compare(self.tolerance.summarize(claimed), replayed))
        if not isinstance(finding, Finding) or finding.advisory or not _is_judged(finding):
            raise UnavailableError(f"tolerance {self.name}: gave no finding that says whether two states agree")
        return replace(
            finding, name=self.name, where=str(finding.where)[:TEXT_MAX], detail=str(finding.detail)[:TEXT_MAX]
        )


def _offered(name: str) -> list[EntryPoint]:
    return [point for point in entry_points(group=GROUP) if point.name == name]


def _answer(name: str, ask: Callable[[], Any]) -> Any:
    """Call a tolerance. It may be third-party code, so any exception of it becomes `UnavailableError`."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001
        raise UnavailableError(f"tolerance {name}: {type(error).__name__}: {str(error)[:TEXT_MAX]}") from None


def _is_judged(finding: Finding) -> bool:
    """Whether distance and allowed distance are numbers from 0; only the distance may be infinite."""
    numbers = [finding.distance, finding.allowed]
    is_numeric = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    return is_numeric and finding.distance >= 0 and 0 <= finding.allowed < float("inf")
