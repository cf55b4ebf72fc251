"""The published vectors of the sampler, on NumPy, PyTorch and JAX, and the example on top of its page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.generation.sampler import TorchSampler, choose_on_device
from tallystick.formats.receipt import Sampler
from tallystick.programs.operators.tally import fixed_point
from tallystick.programs.operators.tally.fixed_point import MASKED
from tallystick.programs.operators.values import Values
from tallystick.programs.random_words import position_words
from tallystick.verdicts.sampling.choice import choose
from tallystick.verdicts.sampling.filters import ARRAYS, keys_of
from tests.support.array_libraries import library
from tests.support.sampler_definition import choose_by_definition
from tests.support.sampler_rows import adjusted, kept, keys, scores, weights

ROOT = Path(__file__).parents[3]
CHOICES = json.loads((ROOT / "vectors" / "sampler" / "choices.json").read_text())
ADJUSTED = json.loads((ROOT / "vectors" / "sampler" / "adjusted.json").read_text())
FIXED = json.loads((ROOT / "vectors" / "sampler" / "fixed.json").read_text())


@contextmanager
def algebra(name: str) -> Iterator[Values]:
    import jax

    with jax.enable_x64(True):
        yield Values(library(name))


def given(case: Any) -> tuple[Any, ...]:
    logits = np.array([[float(number) for number in case["logits"]]], np.float32)
    return logits, Sampler.from_json(case["sampler"], "case"), [case["position"]], [case["history"]]


@pytest.mark.parametrize("case", [*CHOICES, *ADJUSTED])
def test_choices(case: Any) -> None:
    row = given(case)
    found = keys_of(adjusted(*row)[0], row[1], case["history"]).tolist()
    assert [None if key == MASKED else key for key in found] == case["keys"]
    assert kept(*row)[0].tolist() == case["kept"]
    if case["token"] is None:
        with pytest.raises(MalformedError, match="no token"):
            choose(*row)
    else:
        assert choose(*row).tolist() == [case["token"]]


def check_definition(name: str, cases: Sequence[Any]) -> None:
    with algebra(name) as values:
        for case in cases:
            expected = -1 if case["token"] is None else case["token"]
            assert choose_by_definition(*given(case), values).tolist() == [expected]


def test_choices_by_the_definition_on_numpy() -> None:
    check_definition("numpy", CHOICES[::2])


def test_choices_by_the_definition_on_torch() -> None:
    check_definition("torch", CHOICES[::3])


def test_choices_by_the_definition_on_jax() -> None:
    check_definition("jax", CHOICES[:36:3])


@pytest.mark.slow
def test_all_choices_by_the_definition_on_jax() -> None:
    check_definition("jax", CHOICES)


def test_choices_in_torch() -> None:
    for case in [*CHOICES, *ADJUSTED]:
        logits, sampler, positions, histories = given(case)
        found = choose_on_device(torch.from_numpy(logits), [sampler], positions, histories)
        assert found == [-1 if case["token"] is None else case["token"]]
        if case["token"] is not None:
            assert TorchSampler([sampler]).choose(torch.from_numpy(logits), positions, histories).tolist() == found


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_fixed_point_functions(name: str) -> None:
    functions = {"exp2": fixed_point.exp2, "log2": fixed_point.log2, "noise": fixed_point.gumbel}
    with algebra(name) as values:
        for which, function in functions.items():
            inputs = [pair[0] if which == "exp2" else signed(pair[0]) for pair in FIXED[which]]
            found = function(values, values.load(tensor(inputs)))  # type: ignore[operator]
            assert values.library.storage(found.array).tolist() == [pair[1] for pair in FIXED[which]]


def test_words() -> None:
    for case in json.loads((ROOT / "vectors" / "sampler" / "words.json").read_text()):
        found = position_words(case["seed"], case["position"], case["token"] + 1)[case["token"]]
        assert found == signed(case["word"])


def test_making_the_vectors_again_gives_the_same(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_sampler_vectors.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (ROOT / "vectors" / "sampler" / path.name).read_bytes()


def test_the_example_on_top_of_the_page() -> None:
    page = (ROOT / "spec" / "sampler.md").read_text()
    document = re.search(r"```json\n(.*?)\n```", page, re.DOTALL)
    assert document is not None
    sampler = Sampler.from_bytes(document[1].encode(), "sampler")
    row: Any = np.array([[2, 1, 0.5, -np.inf, 1.75]], np.float32), sampler, [0], [[0]]
    words = position_words(7, 0, 5)
    lines = {
        "key": [keys_of(row[0][0], sampler, [0])[i] for i in (0, 1, 2, 4)],
        "top-k": [keys(row[0], sampler.model_copy(update={"top_p": 1.0}), [0], [[0]])[0][i] for i in (0, 1, 4)],
        "weight": [weights(row[0], sampler.model_copy(update={"top_p": 1.0}), [0], [[0]])[0][i] for i in (0, 1, 4)],
        "top-p": [keys(*row)[0][i] for i in (0, 4)],
        "word": [f"{int(words[i]) % 2**64:016x}" for i in (0, 4)],
        "noise": [fixed_point.gumbel(ARRAYS, words)[i] for i in (0, 4)],
        "score": [scores(*row)[0][i] for i in (0, 4)],
    }
    for name, numbers in lines.items():
        line = next(line for line in page.splitlines() if line.startswith(f"    {name} "))
        assert [part for part in line.replace("−", "-").split() if part not in {name, "out"}][: len(numbers)] == [
            str(number) for number in numbers
        ]
    assert f"the token is {choose(*row)[0]}" in page


def test_the_polynomials_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "spec" / "sampler.md").read_text().replace("−", "-")
    for coefficients in (fixed_point.EXP2, fixed_point.LOG2, fixed_point.TAIL):
        assert re.search(r"\s+".join(map(str, coefficients)), page)
    assert str(fixed_point.ROOT) in page
    assert str(-fixed_point.LOG2_LN2) in page


def signed(word: str) -> int:
    return (int(word, 16) + 2**63) % 2**64 - 2**63


def tensor(numbers: list[int]) -> Any:
    return Tensor.of(np.array(numbers, np.int64))
