"""Modules that wait: their code runs when one of their names is first used.

The help of a command, and a mistake in its options, must not wait for PyTorch or a database. So while a module of the
door `tally` is loaded from a table of names, `from package import module` gives a module that waits, and
`from module import name` loads at once, as usual.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import Any, Final

WAITS: Final = "tallystick.tally."
"""The modules whose imports may wait; what these import is loaded as Python always does it."""
RUNNING: Final = RLock()


def load(module: str, name: str) -> Any:
    """What `module` calls `name`; the modules that it imports as modules wait."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
    with FINDER.waiting(module.startswith(WAITS)):
        return getattr(import_module(module), name)


class WaitingModule(ModuleType):
    """A module that has not run yet; the first look at one of its names runs it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a look through `sys.modules` runs nothing
            raise AttributeError(name)
        with RUNNING:
            spec = self.__spec__
            if type(self) is WaitingModule and spec is not None:
                # What it imports may look at it before it is done.
                self.__class__ = ModuleType  # type: ignore[assignment]
                self.__loader__ = spec.loader = spec.loader_state
                try:
                    with FINDER.waiting(spec.name.startswith(WAITS)):
                        spec.loader_state.exec_module(self)
                except BaseException:
                    self.__class__ = WaitingModule
                    raise
        return getattr(self, name)


class WaitingFinder:
    """Finds the modules of this package, and loads them as modules that wait."""

    is_on = False

    @contextmanager
    def waiting(self, is_on: bool) -> Iterator[None]:
        """Whether modules that are imported in this block wait."""
        before, self.is_on = self.is_on, is_on
        try:
            yield
        finally:
            self.is_on = before

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where a module of ours is; `None` for others and for folders, which are empty and wait for nothing."""
        spec = PathFinder.find_spec(name, path, target) if self.is_on and name.startswith("tallystick.") else None
        if spec is None or spec.submodule_search_locations is not None:
            return None
        spec.loader_state, spec.loader = spec.loader, self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module in the place of the real one."""
        return WaitingModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing yet."""


FINDER: Final = WaitingFinder()
