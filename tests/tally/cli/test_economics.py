"""`tally economics`: a verdict on a design by its exit code, every number as an option, and what is refused."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tallystick.disputes.economics.conditions import conditions
from tallystick.disputes.economics.costs import DEFAULT_RULES, ClaimKind, Economy
from tallystick.disputes.economics.report import regions, report
from tallystick.tally.cli.economics import economics

Tally = Callable[..., Any]


def test_the_defaults_are_accepted_with_a_table_of_all_conditions(tally: Tally) -> None:
    told = tally("economics")
    assert told.code == 0
    assert told.out.startswith("ALL CONDITIONS HOLD")
    for each in conditions(Economy()):
        line = next(line for line in told.out.splitlines() if line.startswith(f"{each.name} "))
        assert line.split()[-1] == "yes"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--bond", "100000"], "cheating does not pay, accused by a friend"),
        (["--audit-probability", "0.01"], "cheating does not pay"),
        (["--planted", "0"], "looking pays"),
        (["--honesty", "0.6"], "disputes rarely end wrongly"),
        (["--gas-price", "1"], "a falsely challenged prover is compensated"),
        (["--vote-fee", "0"], "a vote's fee pays its work"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_design_that_does_not_hold_is_rejected_and_says_why(tally: Tally, options: list[str], name: str) -> None:
    told = tally("economics", *options)
    assert told.code == 1
    assert "NOT MET" in told.out.splitlines()[0]
    line = next(line for line in told.out.splitlines() if line.startswith(f"{name} "))
    assert line.split()[-1] == "no"


def test_json_is_the_report(tally: Tally) -> None:
    told = tally("economics", "--json")
    assert (told.code, json.loads(told.out)) == (0, json.loads(json.dumps(report(Economy()))))
    told = tally("economics", "--json", "--bond", "100000")
    assert (told.code, json.loads(told.out)["met"]) == (1, False)


def test_the_region_is_printed_as_tables_and_as_json(tally: Tally) -> None:
    assert "least bond ÷ saving" not in tally("economics").out
    assert "least bond ÷ saving" in tally("economics", "--region").out
    told = json.loads(tally("economics", "--region", "--json").out)
    assert told["regions"] == json.loads(json.dumps(regions(Economy())))


def test_the_region_is_drawn(tally: Tally, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert tally("economics", "--plot", tmp_path / "region").code == 0
    assert (tmp_path / "region").read_bytes().startswith(b"\x89PNG")
    assert tally("economics", "--plot", tmp_path / "none" / "region.png").code == 4


def test_a_design_without_any_region_can_be_drawn(tally: Tally, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert tally("economics", "--plot", tmp_path / "none.png", "--revenue", "0").code == 1
    assert (tmp_path / "none.png").is_file()


def test_each_number_of_a_workload_is_an_option(tally: Tally) -> None:
    parameters = set(inspect.signature(economics).parameters)
    assert {each.name for each in fields(ClaimKind)} <= parameters
    ruled = parameters & set(type(DEFAULT_RULES).model_fields)
    assert {"prover_bond", "challenger_bond", "appeal_bond", "stake", "vote_fee", "reward", "committee"} <= ruled
    for name in sorted(parameters & {each.name for each in fields(ClaimKind)}):
        value = getattr(ClaimKind(), name)
        changed = value + 1 if isinstance(value, int) and value else 0.25
        option, given = f"--{name.replace('_', '-')}", int(changed) if name == "pool" else changed
        assert json.loads(tally("economics", "--json", option, given).out)["workload"][name] == given


def test_rules_are_read_from_a_file_and_changed_by_options(tally: Tally, tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"prover_bond": 2000000, "reward": 400}')  # the rest has its default, as for a coordinator
    told = json.loads(tally("economics", "--json", "--rules", path, "--reward", "300").out)
    assert (told["rules"]["prover_bond"], told["rules"]["reward"]) == (2_000_000, 300)


@pytest.mark.parametrize("text", ["{", "[]", '{"treasury":"nobody"}', '{"prover_bond":1}'], ids=str)
def test_a_file_that_holds_no_rules_is_refused(tally: Tally, tmp_path: Path, text: str) -> None:
    (tmp_path / "rules.json").write_text(text)
    told = tally("economics", "--rules", tmp_path / "rules.json")
    assert (told.code, told.out) == (4, "")
    assert told.complaint.startswith("tally: rules.json: ")


def test_a_file_that_is_not_there_is_named(tally: Tally, tmp_path: Path) -> None:
    told = tally("economics", "--rules", tmp_path / "rules.json")
    assert (told.code, told.complaint) == (4, f"tally: {tmp_path / 'rules.json'}: no such rules")


@pytest.mark.parametrize(
    "options",
    [
        ["--honesty", "1.2"],
        ["--honesty", "nan"],
        ["--revenue", "inf"],
        ["--cost-honest", "-1"],
        ["--records", "1e9"],
        ["--reward", "1001"],
        ["--committee", "64"],
        ["--bond", "-1"],
        ["--bond", "13999"],
        ["--vote-fee", "200001"],
        ["--colour", "red"],
    ],
    ids=" ".join,
)
def test_numbers_that_make_no_sense_are_refused(tally: Tally, options: list[str]) -> None:
    told = tally("economics", *options)
    assert (told.code, told.out) == (2, "")
    assert told.complaint.startswith("tally: ")
