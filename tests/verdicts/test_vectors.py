import json
from pathlib import Path

import numpy as np
import pytest

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import Tensor
from tallystick.verdicts.buckets import Bucket, BucketClaim, bucket_codes
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.exact import quantise
from tallystick.verdicts.tolerance import ReplayedState

VECTORS = Path(__file__).parents[2] / "vectors"


def read(name):
    return json.loads((VECTORS / name).read_text())


def float_of(text, dtype="<f8"):
    return np.frombuffer(bytes.fromhex(text), dtype)


@pytest.mark.parametrize("case", read("tolerance/codes.json"), ids=lambda case: case["value"])
def test_codes(case):
    for mode, eps, key in (("fp16_rne", 1.0, "fp16_rne"), ("grid", 2.0**-10, "grid_2^-10")):
        if case[key] is None:
            with pytest.raises(MalformedError):
                bucket_codes(float_of(case["value"]), mode, eps)
        else:
            assert bucket_codes(float_of(case["value"]), mode, eps).tolist() == [case[key]]


def test_codes_follow_the_rounding_vectors_of_float16():
    for case in read("float/rne_boundary.json"):
        value, bits = np.uint32(int(case["f32"], 16)).view(np.float32), int(case["fp16"], 16)
        if bits & 0x7FFF < 0x7C00:
            expected = bits if bits < 0x8000 else 0x8000 - bits
            assert bucket_codes(np.array([value]), "fp16_rne").tolist() == [expected]


@pytest.mark.parametrize("case", read("tolerance/buckets.json"))
def test_bucket_digests_and_hints(case):
    bucket = Bucket(case["mode"], case["eps"], case["margin"])
    state = {name: Tensor(t["dtype"], tuple(t["shape"]), bytes.fromhex(t["data"])) for name, t in case["state"].items()}
    claim = BucketClaim(case["digest"], bytes.fromhex(case["hints"]))
    assert bucket.claim(state) == claim
    assert bucket.compare(claim.to_bytes(), ReplayedState(state, state)).agrees
    assert bool(claim.hints) == bool(case["margin"])


@pytest.mark.parametrize("case", read("tolerance/projection.json"))
def test_signs_and_sketches(case):
    projection = Projection(bytes.fromhex(case["seed"]), case["width"])
    for name, signs in case["signs"].items():
        assert projection.signs(name, len(signs)).tolist() == [1 if sign == "+" else -1 for sign in signs]
    state = {name: float_of(data, "<f4") for name, data in case["state"].items()}
    assert projection.summarize(state).hex() == case["summary"]


@pytest.mark.parametrize("case", read("tolerance/loss.json"))
def test_quantised_losses(case):
    assert quantise(float(float_of(case["loss"])[0]), case["decimals"]) == case["quantised"]
