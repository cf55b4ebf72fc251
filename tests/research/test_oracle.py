"""The oracle repeats its cases without a difference, and finds the one that is made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from research.oracle import differences, lines_of, untimed
from research.oracle_cases import DRAWN, JUDGED, SAMPLED, attack_lines
from research.oracle_surface import files, signature_of

ROOT = Path(__file__).parents[2]
TWO_CASES = "^loop small$|^tally audit small"


def oracle(verb: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "research.oracle", verb, str(folder), "--only", TWO_CASES]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


def test_of_two_cases_the_one_that_said_something_else_differs_and_nothing_more(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kept = tmp_path / "kept"
    assert oracle("write", kept).returncode == 0
    before = json.loads((kept / "oracle.json").read_text())
    before["judged"][f"tally audit small {DRAWN}"]["out"][0] = "ACCEPTED  in other words"
    (kept / "oracle.json").write_text(json.dumps(before))
    other = oracle("compare", kept)
    assert other.returncode == 1
    assert "-ACCEPTED  in other words" in other.stdout
    assert other.stdout.count(" / judged / ") == 1
    assert other.stdout.count("ACCEPTED") == 2


def test_times_are_left_out_and_nothing_else() -> None:
    one = '{"seconds":0.3,"date":"2026-01-01T00:00:00+00:00","steps":3}'
    assert untimed(one) == untimed(one.replace("0.3", "1.9").replace("2026", "2027"))
    assert untimed(one) != untimed(one.replace('"steps":3', '"steps":4'))
    assert untimed("seconds: 0.1 start-up, 1.9 replay") == untimed("seconds: 2.1 start-up, 0.4 replay")


def test_what_is_gone_and_what_is_new_both_differ() -> None:
    assert [*differences({"a": 1, "b": 2}, {"a": 1, "c": 2})] == [" / b: only before", " / c: only now"]
    assert [*differences({"a": ["one"]}, {"a": ["one"]})] == []


def test_a_forgery_is_audited_as_the_list_of_attacks_says() -> None:
    forge, audits = attack_lines("loop-start-tuned", "`tally audit --initial`, with the directory")
    assert forge == "tally attack loop-start-tuned checkpoint forged-loop-start-tuned --json"
    assert audits == [f"tally audit forged-loop-start-tuned {SAMPLED} --initial start --json"]
    assert (
        attack_lines("x", "`tally audit --full` should see it")[1][-1] == f"tally audit forged-x --full {DRAWN} --json"
    )
    assert attack_lines("x", "", "python -m research.attacks")[0].startswith("python -m research.attacks x recipe ")


def test_the_surface_holds_formats_and_signatures_without_paths_of_modules() -> None:
    assert "spec/README.md" in files()
    assert signature_of(signature_of) == "function(each: 'object') -> 'str'"
    assert len(lines_of(JUDGED, "")) == len(set(lines_of(JUDGED, "")))
