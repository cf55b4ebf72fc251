"""What `tallystick.graphs` offers is loaded when it is asked for, and hides no module."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

from tallystick import graphs


def modules_loaded_by(statement: str) -> set[str]:
    """The modules of `tallystick.graphs` that a fresh interpreter has loaded after `statement`."""
    code = f"import sys\nfrom tallystick import graphs\n{statement}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = "tallystick.graphs."
    return {name.removeprefix(package) for name in run.stdout.split() if name.startswith(package)}


def test_no_public_name_is_a_module() -> None:
    assert not {*graphs.__all__} & {each.name for each in pkgutil.iter_modules(graphs.__path__)}


READING = {"admission", "check", "costs", "derive", "document", "encoding", "graph", "limits"}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("dir(graphs)", set()),
        ("graphs.Graph", {"graph"}),
        ("graphs.read_graph", READING),
        ("graphs.load_program", READING | {"files"}),
        ("graphs.execute", {"costs", "derive", "document", "encoding", "engine", "execution", "graph", "limits"}),
    ],
)
def test_a_public_name_loads_what_it_needs(statement: str, expected: set[str]) -> None:
    assert modules_loaded_by(statement) == expected
