"""From what a view found to HTML and to canonical JSON. Whatever is text in it may come from a prover."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from importlib import resources
from shlex import quote
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tallystick.core.canonical_json import INTEGER_MAX, Json, encode
from tallystick.database.pages import drawings
from tallystick.database.pages.addresses import to
from tallystick.verdicts.words import printable

PACKAGE: Final = "tallystick.database.pages"
LONG: Final = 20
SIZES: Final = ("bytes", "kB", "MB", "GB", "TB", "PB")
STATIC: Final[Mapping[str, str]] = {
    "style.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "htmx.license.txt": "text/plain; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def html_of(template: str, shown_values: Mapping[str, Any]) -> str:
    """A page; every text in it is escaped, and what a screen would obey is replaced."""
    page = _environment().get_template(template).render(**shown_values)
    return "\n".join(map(printable, page.split("\n")))  # drawings hold texts that no template has shown


def json_of(values: Mapping[str, Any]) -> bytes:
    """The same as canonical JSON."""
    return encode(_plain(dict(values)))


def static_file(name: str) -> bytes:
    """A file of `STATIC`."""
    return resources.files(PACKAGE).joinpath("static", name).read_bytes()


def _plain(value: Any) -> Json:
    """A value as JSON has it; a number that JSON cannot hold exactly is its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) > INTEGER_MAX:
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise AssertionError(f"a view found {type(value).__name__}")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=shown,
    )
    environment.filters |= {
        "count": count,
        "figure": figure,
        "short": short,
        "size": size,
        "span": span,
        "share": share,
        "quoted": quote,
    }
    environment.globals |= {"to": to, "drawn_as": drawings}
    return environment


def shown(value: Any) -> Any:
    """What stands on a page for a value: nothing for `None`, and no text that a screen would obey."""
    if value is None:
        return ""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def count(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return "" if value is None else f"{value:,}"


def figure(value: float | None) -> str:
    """A number with four digits."""
    return "" if value is None else f"{value:.4g}"


def short(digest: str | None) -> str:
    """The beginning of a digest, by which people tell it from others."""
    if digest is None:
        return ""
    kind, colon, digits = digest.rpartition(":")
    return f"{kind}{colon}{digits[:12]}…" if len(digits) > LONG else digest


def size(value: float | None) -> str:
    """A number of bytes in a fitting unit."""
    if value is None:
        return ""
    power = min(len(SIZES) - 1, int(math.log10(max(1, value)) // 3))
    return f"{value / 1000**power:.3g} {SIZES[power]}"


def span(seconds: float | None) -> str:
    """A duration in a fitting unit."""
    if seconds is None:
        return ""
    for unit, unit_seconds in (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= unit_seconds * (2 if unit_seconds >= 60 else 1):
            return f"{seconds / unit_seconds:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def share(part: float, whole: float) -> str:
    """A part of a whole in per cent; only the whole itself is 100 %."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    return "100 %" if part >= whole else f"{min(percent, 99.9):.3g} %"
