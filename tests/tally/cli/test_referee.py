"""`tally referee`: from an opening to one file, and from that file to a ruling, without a framework."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.verdicts.leaf.bundle import Element, LeafBundle, LeafChallenge, write_bundle
from tallystick.verdicts.leaf.judge import rule_leaf
from tallystick.verdicts.leaf.request import LeafRequest, Ruling
from tests.verdicts.leaf.leaves import Leaves, opened, shifted
from tests.verdicts.leaf.test_judge import choices, profile

Tally = Callable[..., Any]
CODE_LINES = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "trusted_base.py"))["code_lines"]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Leaves:
    return opened(tmp_path_factory.mktemp("honest") / "opening")


def leaf(leaves: Leaves, number: int, folder: Path) -> Path:
    write_bundle(folder / f"n{number}.leaf", leaves.whole.bundle(number))
    return folder / f"n{number}.leaf"


def test_a_bundle_is_made_and_ruled_on(tally: Tally, honest: Leaves, tmp_path: Path) -> None:
    out = tmp_path / "n3.leaf"
    made = tally("referee", "--make", honest.folder, "--node", 3, "--out", out, "--nonce", "00FF")
    assert made.code == 0
    assert json.loads(made.out)["bundle"] == honest.whole.bundle(3, LeafChallenge(nonce="00ff")).identity
    told = tally("referee", out)
    assert told.code == 0
    assert told.out.startswith("challenger's objection dismissed: the operator holds")
    assert "node 3 (aten.addmm.default) holds" in told.out


def test_it_says_who_is_at_fault_by_its_exit_code(tally: Tally, honest: Leaves, tmp_path: Path) -> None:
    wrong = opened(tmp_path / "wrong", {0: shifted(0.1)})
    told = tally("referee", leaf(wrong, 0, tmp_path))
    assert told.code == 1
    assert told.out.startswith("challenger's objection upheld: the operator is wrong")
    assert "because (bound): n0 (aten.mm.default)" in told.out
    tied = tally("referee", leaf(choices(tmp_path / "tied", 1), 1, tmp_path))
    assert (tied.code, tied.out.split(",")[0]) == (3, "undecided: nobody can be held to be wrong")
    thresholds = tmp_path / "profile.json"
    thresholds.write_bytes(profile(honest, 0, 0.9).to_bytes())
    assert tally("referee", leaf(honest, 0, tmp_path), "--profile", thresholds).code == 0
    open_ = tally("referee", leaf(honest, 5, tmp_path), "--profile", thresholds)
    assert (open_.code, open_.out.splitlines()[0]) == (3, "undecided: a committee has to decide")


def test_a_ruling_as_json(tally: Tally, honest: Leaves, tmp_path: Path) -> None:
    told = tally("referee", leaf(honest, 0, tmp_path), "--json")
    found = json.loads(told.out)
    assert (told.code, found["fault"], found["ground"], found["verdict"]) == (0, "challenger", "holds", "accepted")


def test_a_precision_has_to_be_stated(tally: Tally, tmp_path: Path) -> None:
    def coarse(_: Any, operands: Any) -> Any:
        cut = {name: (operands[name].view(np.int32) & -(1 << 13)).view(np.float32) for name in ("self", "mat2")}
        return (cut["self"] @ cut["mat2"],)

    path = leaf(opened(tmp_path / "coarse", {0: coarse}), 0, tmp_path)
    assert tally("referee", path).code == 1
    assert tally("referee", path, "--precision", "tf32").code == 0
    assert tally("referee", path, "--precision", "exact").code == 2


def test_what_makes_no_sense_is_usage(tally: Tally, honest: Leaves, tmp_path: Path) -> None:
    path = leaf(honest, 0, tmp_path)
    for arguments in (
        (),
        ("--make", honest.folder),
        (path, "--make", honest.folder, "--node", 1, "--out", tmp_path / "x"),
        (path, "--node", 1),
        (path, "--nonce", "0"),
        (path, "--nonce", "zz"),
        (path, "--nonce", "00" * 65),
        (path, "--element", "n0"),
        (path, "--element", "n0:x"),
        (path, "--element", "n0:-1"),
        ("--make", honest.folder, "--node", 0, "--out", tmp_path / "x", "--element", "n5:0"),
        ("--make", honest.folder, "--node", 0, "--out", tmp_path / "x", "--element", "n0:96"),
        ("--make", honest.folder, "--node", 1, "--out", tmp_path / "x"),
    ):
        assert tally("referee", *arguments).code == 2, arguments
    assert tally("referee", path, "--element", "n0:95", "--nonce", "AB").code == 0


def test_a_named_element_is_judged_alone(tally: Tally, honest: Leaves, tmp_path: Path) -> None:
    wrong = leaf(opened(tmp_path / "wrong", {0: shifted(0.1)}), 0, tmp_path)
    for element, code, ground in (("n0:0", 1, "bound"), ("n0:1", 0, "holds"), ("n0:96", 0, "element")):
        found = json.loads(tally("referee", wrong, "--element", element, "--json").out)
        assert (found["ground"], found["work"]["judged"]) == (ground, int(ground != "element"))
        assert tally("referee", wrong, "--element", element).code == code
    assert "element 1 of n0 was judged alone" in tally("referee", wrong, "--element", "n0:1").out
    absent = tally("referee", leaf(honest, 0, tmp_path), "--element", "n5:0")
    assert absent.code == 0
    assert absent.out.startswith("challenger's objection dismissed: it names what there is not")


def test_bad_files_are_one_line(tally: Tally, honest: Leaves, tmp_path: Path) -> None:
    path = leaf(honest, 0, tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    told = tally("referee", path)
    assert told.code == 4
    assert "n0.leaf" in told.complaint
    assert tally("referee", tmp_path / "absent").code == 4
    assert tally("referee", "--make", tmp_path / "absent", "--node", 0, "--out", tmp_path / "x").code == 4


def test_values_that_are_withheld_are_told_and_held_against_the_prover(tally: Tally, tmp_path: Path) -> None:
    leaves, out = opened(tmp_path / "opening", with_tensors=False), tmp_path / "n0.leaf"
    made = tally("referee", "--make", leaves.folder, "--node", 0, "--out", out)
    assert made.code == 0
    assert "n0 is not opened" in made.err
    told = tally("referee", out)
    assert (told.code, "because (data)" in told.out) == (1, True)


def test_a_name_that_could_write_to_the_terminal_makes_no_bundle(honest: Leaves, tmp_path: Path) -> None:
    bundle = honest.whole.bundle(0)
    values = {**bundle.values, "n0\u202e": Tensor.of(np.zeros(1, np.float32))}
    with pytest.raises(MalformedError, match="not one a state may have"):
        write_bundle(tmp_path / "leaf", replace(bundle, values=values))


def test_no_framework_is_imported(honest: Leaves, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom tallystick.tally.cli.entry import run\n"
        f"assert run(['referee', {str(leaf(honest, 0, tmp_path))!r}]) == 0\n"
        "assert not {'torch', 'jax', 'iree', 'transformers', 'web3', 'sqlalchemy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_what_a_file_asks_was_chosen_by_whoever_made_it(
    tally: Tally, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prover that names a right element, or tries nonces until a wrong one is not drawn, wins nothing."""
    asked: list[LeafRequest] = []

    def noting(bundle: LeafBundle, question: LeafRequest) -> Ruling:
        asked.append(question)
        return rule_leaf(bundle, question)

    monkeypatch.setattr("tallystick.verdicts.leaf.judge.rule_leaf", noting)
    for name, changes, code in (("wrong", {0: shifted(0.1)}, 1), ("right", {}, 0)):
        chosen, out = LeafChallenge(nonce="00ff", element=Element(ref="n0", index=1)), tmp_path / f"{name}.leaf"
        write_bundle(out, opened(tmp_path / name, changes).whole.bundle(0, chosen))
        assert tally("referee", out).code == code
        assert (asked[-1].nonce, asked[-1].element) == (b"", None)
        told = tally("referee", out, "--nonce", "ab", "--verbose")
        assert (told.code, asked[-1].nonce) == (code, b"\xab")
        assert "drawn after the prover had committed" in told.out
