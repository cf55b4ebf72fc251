"""Answers of vLLM itself, on a small random model, judged by transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import tallystick
from tests.support.vllm_answers import LAYERS, WAYS, write_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: `make vllm` makes an environment"),
]
ENOUGH = 50
"""Tokens of an answer that exclude other samplers; what chance ends before may be inconclusive."""
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("served")
    write_model(out)
    return out


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_every_answer_is_accepted_by_another_stack(served: Path, way: str, tmp_path: Path) -> None:
    out = tmp_path / "answers"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.vllm_answers", served, out, way],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:] + ran.stdout[-3000:]
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(answers) == 12
    for each in answers:
        report = tallystick.verify(each["receipt"], model=served, request=each["request"])
        is_short = len(each["receipt"]["receipt"]["answer"]["tokens"]["ids"]) < ENOUGH
        assert report.accepted or (is_short and report.outcome == "inconclusive"), report
        engine = each["receipt"]["receipt"]["engine"]
        assert engine["name"] == "vllm"
        assert f"{way[:2]} runner, {'compiled' if 'compiled' in way else 'eager'}" in engine["version"]
        [fingerprint] = each["receipt"]["receipt"]["fingerprints"]
        assert fingerprint["layers"][-2:] == [LAYERS, LAYERS + 1]
