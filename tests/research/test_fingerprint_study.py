import dataclasses
import json

import numpy as np
import pytest

from research.fingerprints import calibrate, compare, producers, states
from tallystick.audits.answers.limits import FingerprintRule
from tallystick.core.safetensors import write_state
from tallystick.core.tensors import Tensor
from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.tally.calibration.answer_limits import compare_answer

LAYERS, COUNTS = (0, 1, 2), (40, 3, 64, 33)
SIZES = {"model": (1, 24)}
QUIET, NOISY = 1e-3, 5e-2


def rows_with(noise, seed=0):
    rng = np.random.default_rng(0)
    exact = {layer: rng.normal(size=(sum(COUNTS), 24)) for layer in LAYERS}
    added = np.random.default_rng(seed)
    return {
        layer: (each * (1 + noise * added.normal(size=each.shape))).astype(np.float32) for layer, each in exact.items()
    }


def computed(noise, seed=0):
    return compare.Computed(rows_with(noise, seed), COUNTS)


@pytest.fixture
def study(tmp_path):
    """Three producers whose rows differ by little, and a cheat whose rows differ by much."""
    made = (
        producers.Producer("base", "prefill", is_verifier=True, dtypes=("F32",)),
        producers.Producer("base", "batched", dtypes=("F32",)),
        producers.Producer("all portable", "prefill", is_verifier=True, held_out=True, dtypes=("F32",)),
        producers.Producer("base", "batched", "int8", dtypes=("F32",)),
    )
    for seed, each in enumerate(made):
        rows = rows_with(NOISY if each.cheat else QUIET, seed)
        path = tmp_path / states.file_name(each.name, "model", "F32")
        write_state(path, {str(layer): Tensor.of(found) for layer, found in rows.items()}, durable=False)
    return calibrate.Study(tmp_path, {"model": tuple({"count": count} for count in COUNTS)}, made, SIZES)


def test_limits_accept_the_honest_and_reject_the_cheat(study):
    rule = FingerprintRule(rows=calibrate.calibrate(study).rows)
    trials = {
        "all": calibrate.Trial(FingerprintSettings(), (0, -2, -1)),
        "few": calibrate.Trial(FingerprintSettings(bits=1, width=2)),
    }
    honest = [*calibrate.honest_pairs(study, held_out=True)]
    assert len(honest) == 3
    found = calibrate.rejections(study, honest, trials, rule, "F32", 1)
    assert list(found) == ["all"]  # two codes of one bit say nothing
    assert (found["all"]["rejected"], found["all"]["of"]) == (0, 6)
    cheats = [(study.producers[-1], study.producers[0])]
    assert calibrate.rejections(study, cheats, trials, rule, "F32", 32)["all"]["rejected"] == 2
    assert {(each.place, each.layer_max) for each in rule.table} == {("block", 0), ("final", None), ("logits", None)}


def test_limits_carry_the_models_that_they_were_measured_on(study, tmp_path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 6, "hidden_size": 128}')
    assert calibrate.size_of(tmp_path) == (6, 128)
    sizes = {"deep": (6, 64), "wide": (2, 128)}
    [measured] = calibrate.measured(dataclasses.replace(study, sizes=sizes))
    assert (measured.dtype, measured.layers, measured.width, measured.answers) == ("F32", 6, 128, 4)
    assert {(each.layers, each.width, each.answers) for each in calibrate.calibrate(study).rows} == {(1, 24, 4)}


def test_only_producers_that_are_not_held_out_set_limits(study):
    pairs = [*calibrate.honest_pairs(study, held_out=False)]
    assert [(a.name, b.name) for a, b in pairs] == [("base, batched", "base, prefill")]
    assert calibrate.calibrate(study).held_out == ("all portable, prefill",)


def test_every_producer_belongs_to_a_stack_and_has_a_file_of_its_own():
    names = {states.file_name(each.name, "m", "F32") for each in producers.PRODUCERS}
    assert len(names) == len(producers.PRODUCERS)
    assert {stack.name for stack in producers.stacks_of(producers.PRODUCERS)} == {p.stack for p in producers.PRODUCERS}
    assert json.dumps([producers.job_of(each) for each in producers.PRODUCERS])


@pytest.mark.usefixtures("one_thread")
def test_every_way_on_one_stack_gives_the_same_rows_up_to_rounding(model_directory, tmp_path):
    answers = calibrate.feed(model_directory, "The stick is split and the halves must match. " * 20, 3, 0)
    ways = [
        each for each in producers.PRODUCERS if each.stack == "base" and each.way in ("prefill", "decode", "batched")
    ]
    jobs = [producers.job_of(each) | {"dtypes": ["F32"]} for each in ways]
    job = {"folder": str(tmp_path), "producers": jobs, "models": {str(model_directory): answers}}
    assert states.compute(job, "eager") == []
    study = calibrate.Study(tmp_path, {str(model_directory): answers}, tuple(ways))
    found = {each.name: study.computed(each, str(model_directory), "F32") for each in ways}
    own = found["base, prefill"]
    for name, claimed in found.items():
        seen = [compare_answer(claimed.answer(n), own.answer(n), 2) for n in range(3)]
        gap = max(each.largest for answer in seen for each in answer.values())
        assert {each.place for each in seen[0]} == {"block", "final", "logits"}
        assert (gap < 1e-5) == (not name.endswith(("int8", "int4"))), name
