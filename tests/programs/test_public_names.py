"""What `tallystick.graphs` offers is loaded when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest


def modules_loaded_by(statement: str) -> set[str]:
    """The modules of `tallystick.programs` that a fresh interpreter has loaded after `statement`."""
    code = f"import sys\nfrom tallystick import graphs\n{statement}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = "tallystick.programs."
    return {name.removeprefix(package) for name in run.stdout.split() if name.startswith(package)}


GRAPH = {"graph", "operators", "operators.algebra", "operators.definition"}
READING = GRAPH | {
    *("admission", "encoding", "operators.tally", "operators.tally.fixed_point", "operators.types", "random_words"),
}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("dir(graphs)", set()),
        ("graphs.Graph", GRAPH),
        ("graphs.read_graph", READING),
        ("graphs.load_program", READING | {"files"}),
        ("graphs.execute", READING | {"execution", "operators.arrays", "operators.values"}),
    ],
)
def test_a_public_name_loads_what_it_needs(statement: str, expected: set[str]) -> None:
    assert modules_loaded_by(statement) == expected
