"""What is loaded late: public names, commands and what they call, and libraries that an extra brings."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from threading import RLock
from types import ModuleType
from typing import Any, Final

from tallystick.core.errors import UnavailableError

# Public names, loaded at their first use (PEP 562), and listed once: as what a module imports for type checkers.


def lazy(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `module`, which offers each name that its source imports as `name as name`."""

    @cache
    def homes() -> dict[str, str]:
        import ast  # a millisecond that `import tallystick` alone does not need

        source = sys.modules[module].__spec__.loader.get_source(module)  # type: ignore[union-attr]
        imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname == alias.name}

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(homes())
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return load_name(homes()[name], name)

    return load, lambda: sorted(homes())


# Modules that wait. The help of a command, and a mistake in its options, must not wait for PyTorch or a database. So
# while a module of `tallystick.tally` is loaded from a table of names, `from package import module` gives a module that
# runs when one of its names is first used; `from module import name` loads at once, as ever.

WAITS: Final = "tallystick.tally."
"""The modules whose imports may wait; what these import is loaded as Python always does it."""
RUNNING: Final = RLock()


def load_name(module: str, name: str) -> Any:
    """What `module` calls `name`; the modules that it imports as modules wait."""
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
    with FINDER.waiting(module.startswith(WAITS)):
        return getattr(import_module(module), name)


class WaitingModule(ModuleType):
    """A module that has not run yet; the first look at one of its names runs it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by whoever looks through `sys.modules`
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


# Libraries that are not installed, and the extra of this package that brings them.

DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "mlflow": "mlflow-skinny",
    "opentelemetry": "opentelemetry-exporter-otlp-proto-http",
    "sklearn": "scikit-learn",
    "iree": "iree-base-compiler",
    "starlette": "fastapi",
    "yaml": "pyyaml",
    "markupsafe": "jinja2",
    **dict.fromkeys(("huggingface_hub", "safetensors"), "transformers"),
    **dict.fromkeys(("eth_abi", "eth_account", "eth_keys", "eth_utils", "requests", "rlp"), "web3"),
}
"""The distribution that brings a module, where it has another name or comes with another one."""
REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[([\w.,-]+)\])?.*\bextra == ['\"]([\w-]+)['\"]")


def require(*modules: str) -> None:
    """Raise `UnavailableError` for those of `modules` that are not installed, before any work is begun."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise not_installed(*missing)


def not_installed(*modules: str) -> UnavailableError:
    """The error that names modules which are missing, and the command that installs them."""
    roots = list(dict.fromkeys(module.partition(".")[0] for module in modules))
    named, verb = ", ".join(roots), "is" if len(roots) == 1 else "are"
    return UnavailableError(f"{named} {verb} not installed: pip install {_to_install(roots, _requirements())}")


def _to_install(modules: Iterable[str], requirements: Iterable[str]) -> str:
    """The first extra that brings all of the modules; the distributions themselves where no extra does."""
    wanted = {_normalised(DISTRIBUTIONS.get(module, module)) for module in modules}
    for extra, brought in extras_of(requirements).items():
        if wanted <= brought:
            return f"'tallystick[{extra}]'"
    return " ".join(sorted(wanted))


def extras_of(requirements: Iterable[str]) -> dict[str, frozenset[str]]:
    """The distributions that each extra brings, in the order of `requirements` (the core metadata's `Requires-Dist`).

    An extra that names extras of this package brings what they bring; so these have to stand before it.
    """
    found: dict[str, frozenset[str]] = {}
    for name, options, extra in (match.groups() for match in map(REQUIREMENT.match, requirements) if match):
        parts = [found[each] for each in options.split(",")] if name == "tallystick" else [{_normalised(name)}]
        found[extra] = found.get(extra, frozenset()).union(*parts)
    return found


def _requirements() -> list[str]:
    """What the installed package states; nothing where it runs from a folder and is not installed."""
    from importlib import metadata  # 20 ms that only a message costs

    try:
        return metadata.requires("tallystick") or []
    except metadata.PackageNotFoundError:
        return []


def _normalised(name: str) -> str:
    """The name by which packages are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
