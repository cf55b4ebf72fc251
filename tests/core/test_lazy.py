"""Modules that wait until they are used, and public names that are listed once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tallystick
from tallystick.core import waiting

LOADED = "print(sorted(name for name in sys.modules if type(sys.modules[name]) is not WaitingModule))"
WAITS = "import sys; from tallystick.core.lazy import load_name; from tallystick.core.waiting import WaitingModule; "


def after(statement: str) -> set[str]:
    """The modules whose code a fresh interpreter has run after `statement`."""
    code = f"{WAITS}{statement}; {LOADED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.strip("[]\n").replace("'", "").split(", "))


def test_what_a_command_imports_as_a_module_runs_at_its_first_use() -> None:
    train = "train = load_name('tallystick.tally.cli.train', 'train')"
    assert not after(train) & {"torch", "numpy", "tallystick.tally.training", "tallystick.recording.training"}
    used = after(f"{train}; sys.modules['tallystick.tally.cli.train'].keeping.AnchorKeeping")
    assert "tallystick.formats.store.keeping" in used
    assert "torch" not in used


def test_what_looks_through_all_modules_runs_none_of_them() -> None:
    looked = (
        "import inspect; inspect.getmodule(load_name); [hasattr(each, '__file__') for each in [*sys.modules.values()]]"
    )
    assert not after(f"load_name('tallystick.tally.cli.train', 'train'); {looked}") & {"torch", "numpy"}


def test_what_is_imported_outside_the_door_of_commands_runs_at_once() -> None:
    loaded = after("load_name('tallystick.programs.operators.definition', 'operator')")
    assert "tallystick.programs.operators.definition" in loaded


def test_a_module_that_fails_fails_again_and_is_not_taken_for_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "faulty.py"
    path.write_text("from no_such_library import name\n")
    monkeypatch.setattr(tallystick, "__path__", [*tallystick.__path__, str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [waiting.FINDER, *sys.meta_path])
    with waiting.FINDER.waiting(True):
        from tallystick import faulty  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_library"):
            _ = faulty.anything
    path.write_text("anything = 3\n")
    assert faulty.anything == 3
    assert type(faulty) is not waiting.WaitingModule
    del sys.modules["tallystick.faulty"]


def test_public_names_are_those_that_type_checkers_see() -> None:
    assert "audit" in tallystick.__all__
    assert "lazy" not in tallystick.__all__
    with pytest.raises(AttributeError, match=r"module 'tallystick' has no attribute 'auditt'"):
        _ = tallystick.auditt  # type: ignore[attr-defined]
    names: dict[str, object] = {}
    exec("from tallystick import *", names)
    assert names.keys() >= {"audit", "Verdict", *tallystick.__all__}
