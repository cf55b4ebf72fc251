"""What is seen of Tallystick without running it: files of formats, public names, commands with their help."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

from research.oracle_programs import Fork, run_line

ROOT = Path(__file__).parents[1]
PUBLIC = ("tallystick", "tallystick.torch", "tallystick.jax", "tallystick.graphs", "tallystick.iree")
MODULES = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
ADDRESSES = re.compile(r" at 0x[0-9a-f]+")
COMMAND = re.compile(r"^  ([a-z][a-z-]+)  +\S")


def files() -> dict[str, str]:
    """Digests of the formats, the vectors and the contracts."""
    found = [path for folder in ("spec", "vectors", "contracts") for path in (ROOT / folder).rglob("*")]
    kept = [path for path in sorted(found) if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def names(folder: Path) -> dict[str, str]:
    """Every public name with its signature, and the public members of public classes with theirs."""
    printed = Fork(_print_names, folder).end()
    if printed.code:
        raise RuntimeError(printed.error)
    found: dict[str, str] = json.loads(printed.out)
    return found


def _print_names() -> None:
    found = {}
    for module in PUBLIC:
        public = importlib.import_module(module)
        for name in sorted(public.__all__):
            each = getattr(public, name)
            found[f"{module}.{name}"] = signature_of(each)
            members = [member for member in dir(each) if not member.startswith("_")] if inspect.isclass(each) else []
            found |= {f"{module}.{name}.{member}": signature_of(_member(each, member)) for member in members}
    print(json.dumps(found))


def _member(owner: type, name: str) -> Any:
    found = inspect.getattr_static(owner, name)
    return getattr(found, "fget", None) or getattr(found, "__func__", found)


def signature_of(each: object) -> str:
    """The kind and the signature of a value, without paths of modules and addresses."""
    kind = "class" if inspect.isclass(each) else type(each).__name__
    try:
        written = str(inspect.signature(each)) if callable(each) else ""
    except ValueError:  # a class that is written in C has none
        written = ""
    return f"{kind}{ADDRESSES.sub('', MODULES.sub('', written))}"


def commands(folder: Path, only: str = "") -> dict[str, Any]:
    """The help of every command below `only`, and what is said to a wrong option and to no argument at all."""
    name = f"tally {only}".strip()
    shown = run_line(f"{name} --help", folder)
    wrong = run_line(f"{name} --no-such-option", folder)
    found: dict[str, Any] = {name: {"help": [shown.code, shown.out], "wrong option": [wrong.code, wrong.error]}}
    if "[required]" in shown.out:
        missing = run_line(name, folder)
        found[name]["no argument"] = [missing.code, missing.error]
    if "COMMAND [ARGS]" in shown.out:
        for line in shown.out.splitlines():
            if match := COMMAND.match(line):
                found |= commands(folder, f"{only} {match[1]}".strip())
    return found
