"""What is loaded late: names that a table or a list of public names gives, and libraries that an extra brings."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.util import find_spec
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


def load_name(module: str, name: str) -> Any:
    """What `module` calls `name`, for tables of names; of the door `tally`, the modules that it imports wait."""
    from tallystick.core.waiting import load  # `import tallystick` and `tally --help` need nothing of it

    return load(module, name)


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
    extras: dict[str, frozenset[str]] = {}
    for name, options, extra in (match.groups() for match in map(REQUIREMENT.match, requirements) if match):
        parts = [extras[option] for option in options.split(",")] if name == "tallystick" else [{_normalised(name)}]
        extras[extra] = extras.get(extra, frozenset()).union(*parts)
    return extras


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
