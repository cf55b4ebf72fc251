"""Which extra brings a library, as `pyproject.toml` states it and as an installed package does."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from tallystick.core import lazy
from tallystick.core.errors import UnavailableError
from tallystick.core.lazy import extras_of, not_installed, require

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def stated() -> Iterator[str]:
    """The extras of `pyproject.toml` as lines of the core metadata."""
    for extra, requirements in PROJECT["optional-dependencies"].items():
        yield from (f'{each}; extra == "{extra}"' for each in requirements)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of this clone, whatever version of it was installed last."""
    monkeypatch.setattr(metadata, "requires", lambda _: [*PROJECT["dependencies"], *stated()])


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (["torch"], "torch is not installed: pip install 'tallystick[record]'"),
        (["transformers.cache_utils"], "transformers is not installed: pip install 'tallystick[record]'"),
        (["sklearn"], "sklearn is not installed: pip install 'tallystick[digits]'"),
        (["fastapi"], "fastapi is not installed: pip install 'tallystick[serve]'"),
        (["sqlalchemy"], "sqlalchemy is not installed: pip install 'tallystick[coordinator]'"),
        (["sqlalchemy", "fastapi"], "sqlalchemy, fastapi are not installed: pip install 'tallystick[coordinator]'"),
        (["torch", "sqlalchemy"], "torch, sqlalchemy are not installed: pip install 'tallystick[disputes]'"),
        (["web3"], "web3 is not installed: pip install 'tallystick[ethereum]'"),
        (["iree.compiler"], "iree is not installed: pip install 'tallystick[iree]'"),
        (["openai"], "openai is not installed: pip install 'tallystick[client]'"),
        (["vllm"], "vllm is not installed: pip install vllm"),
    ],
)
def test_the_message_names_the_first_extra_that_brings_all_that_is_missing(modules: list[str], said: str) -> None:
    assert str(not_installed(*modules)) == said


def test_the_former_name_of_an_extra_brings_what_the_present_one_brings() -> None:
    found = extras_of(stated())
    assert found["torch"] == found["record"] > {"torch", "transformers"}
    assert found["disputes"] == found["record"] | found["coordinator"]
    assert found["all"] == frozenset().union(*(found[name] for name in found.keys() - {"dev", "models"}))


def test_lines_are_read_as_installers_write_them() -> None:
    lines = ["numpy<3,>=2.2", "Psycopg_C[binary]<4; extra == 'a'", 'tallystick[a]; extra == "b"', 'x ; extra == "b"']
    assert extras_of(lines) == {"a": {"psycopg-c"}, "b": {"psycopg-c", "x"}}


def test_a_package_that_is_not_installed_names_the_library_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", raise_not_found)
    assert str(not_installed("sklearn")) == "sklearn is not installed: pip install scikit-learn"


def raise_not_found(name: str) -> list[str]:
    raise metadata.PackageNotFoundError(name)


def test_only_what_is_missing_is_asked_for() -> None:
    require("json", "pathlib")
    with pytest.raises(UnavailableError, match=r"^no_such_library is not installed: pip install no-such-library$"):
        require("json", "no_such_library")


def test_every_foreign_library_of_the_source_is_brought_by_an_extra_or_always_there() -> None:
    brought = {name for found in extras_of(stated()).values() for name in found}
    base = extras_of(f'{each}; extra == "base"' for each in PROJECT["dependencies"])["base"]
    foreign = {lazy.DISTRIBUTIONS.get(name, name).replace("_", "-") for name in imported()}
    assert foreign - brought - base == {"vllm"}  # whose plugin runs in an environment of vLLM's


def imported() -> set[str]:
    """The roots of all modules that the source imports, the standard library's and its own left out."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"tallystick", "_typeshed"}
