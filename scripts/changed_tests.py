"""Prints the test files of what changed since main: `make check` runs them.

Changed tests come first, then the tests that mirror a changed module by place and name. A module without a mirror has
the tests that import it. Rules of the house are always among them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ALWAYS: Final = ("tests/test_house.py", "tests/test_imports.py", "tests/test_forbidden_calls.py")
DOCS: Final = ("tests/test_docs.py", "tests/test_glossary.py")


def changed() -> list[Path]:
    """Files that differ from the commit where this branch left main, those without a commit among them."""
    base = _git("merge-base", "HEAD", "main")[0]
    names = {*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")}
    return [Path(name) for name in sorted(names) if (ROOT / name).exists()]


def tests_of(path: Path) -> Iterator[str]:
    """The test files of one changed file."""
    if path.parts[0] == "tests" and path.name.startswith("test_"):
        yield str(path)
    elif path.parts[0] == "docs":
        yield from DOCS
    elif path.parts[:2] == ("src", "tallystick") and path.suffix == ".py":
        module = Path(*path.parts[2:]).with_suffix("")
        mirror = ROOT / "tests" / module.parent
        mirrors = [*mirror.glob(f"test_{module.name}*.py"), *mirror.glob(f"{module.name}/test_*.py")]
        yield from (
            str(test.relative_to(ROOT)) for test in mirrors or importing(".".join(("tallystick", *module.parts)))
        )


def importing(module: str) -> Iterator[Path]:
    """Test files that import a module by its whole name."""
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        if f"from {module} import" in test.read_text():
            yield test


def _git(*command: str) -> list[str]:
    return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


if __name__ == "__main__":
    print(*dict.fromkeys((*ALWAYS, *(test for path in changed() for test in tests_of(path)))))
