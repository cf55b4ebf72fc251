import base64
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tallystick.formats.fingerprints import FingerprintSettings
from tallystick.verdicts import toploc
from tallystick.verdicts.fingerprints import (
    direction_signs,
    encode_rows,
    logit_entries,
    logit_rows,
    measure,
    position_signs,
)

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "vectors" / "fingerprint"
PUBLISHED = [  # README of TOPLOC 0.1.6: 4 values of each; where they lie and what they are follows from the polynomial
    (b"\xff\xd9\xd2\x04d\xea\x91\x91\xf6\xd7", {1: -1.28125, 4: 1.2109375, 13: -2.453125, 14: 1.1796875}),
]


def read(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


@pytest.mark.parametrize("case", read("signs"))
def test_signs(case):
    arguments = case["seed"], case["layer"], case["width"]
    assert direction_signs(*arguments, len(case["direction"])).tolist() == case["direction"]
    assert position_signs(*arguments, 0, len(case["position"])).tolist() == case["position"]
    assert position_signs(*arguments, 2, 2).tolist() == case["position"][2:4]


@pytest.mark.parametrize("case", read("logits"))
def test_logits(case):
    assert logit_entries(case["seed"], case["vocabulary"]).tolist() == case["entries"]
    found = logit_rows(np.array([case["logits"]], np.float32), case["seed"])
    assert np.allclose(found, [case["row"]], atol=1e-6)


@pytest.mark.parametrize("case", read("projection"))
def test_projections(case):
    settings = FingerprintSettings(
        layers=tuple(case["layers"]),
        block=case["block"],
        width=case["width"],
        bits=case["bits"],
        seed=case["seed"],
        grid=case.get("grid"),
    )
    rows = {int(layer): np.array(each, np.float32) for layer, each in case["rows"].items()}
    assert encode_rows(rows, settings).hex() == case["data"]
    assert {each.distance for each in measure(bytes.fromhex(case["data"]), rows, settings)} == {0.0}


def test_the_example_of_the_page_is_a_vector():
    page = (ROOT / "spec" / "fingerprint.md").read_text()
    case = next(each for each in read("projection") if each["bits"] == 8)
    assert f'"data":"{base64.b64encode(bytes.fromhex(case["data"])).decode()}"' in page
    assert f'"seed":"{case["seed"][:8]}…{case["seed"][-4:]}","tokens":9,"width":5' in page
    assert all(len(line) <= 120 for line in page.splitlines())


@pytest.mark.parametrize("case", read("toploc"))
def test_congruences(case):
    assert toploc.encode_block(np.array(case["rows"], np.float32), case["values"]).hex() == case["data"]


@pytest.mark.parametrize(("proof", "values"), PUBLISHED)
def test_a_published_congruence_is_that_of_its_values(proof, values):
    rows = np.zeros((1, 16), np.float32)
    for place, value in values.items():
        rows[0, place] = value
    assert toploc.encode_block(rows, 4) == proof
    assert toploc.compare_block(*toploc.parse_block(proof, 4), rows).exponents == 0


def test_the_vectors_are_made_from_the_page_without_the_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    path = ROOT / "scripts" / "make_fingerprint_vectors.py"
    spec = importlib.util.spec_from_file_location("make_fingerprint_vectors", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["make", str(tmp_path)])
    module.main()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {
        each.name: each.read_bytes() for each in FOLDER.iterdir()
    }
