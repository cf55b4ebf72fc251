import math
from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.errors import MalformedError, UsageError
from tallystick.verdicts.exact import LossBand, quantise

LOSSES = st.floats(-1e6, 1e6)
DECIMALS = st.integers(0, 12)


@settings(max_examples=200, deadline=None)
@given(LOSSES, DECIMALS)
def test_quantising_rounds_the_exact_binary_value(loss, decimals):
    exact = Decimal(loss).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_EVEN)
    assert quantise(loss, decimals) == float(exact)


@settings(max_examples=200, deadline=None)
@given(LOSSES, DECIMALS)
def test_an_equal_replay_always_agrees_without_a_band(loss, decimals):
    band = LossBand(decimals)
    assert band.compare(band.summarize(loss), loss).agrees


@settings(max_examples=200, deadline=None)
@given(LOSSES, DECIMALS, st.floats(0, 1e-2), st.floats(-1, 1))
def test_drift_within_the_band_agrees_on_either_side_of_an_edge(loss, decimals, band, share):
    drifted = loss + 0.999 * share * band * max(1.0, abs(loss) * (1 - band))
    assert LossBand(decimals, band).compare(quantise(loss, decimals), drifted).agrees


def test_a_loss_near_an_edge_is_forgiven_although_its_rounding_differs():
    claimed, replayed = quantise(2.349999, 1), 2.350001
    assert claimed != quantise(replayed, 1)
    assert LossBand(1, 1e-5).compare(claimed, replayed).agrees


def test_an_invented_loss_is_caught():
    finding = LossBand(2, 1e-4).compare(2.10, 2.12)
    assert not finding.agrees
    assert finding.distance == pytest.approx(0.02)
    assert finding.allowed == pytest.approx(0.005 + 1e-4 * 2.12)


def test_more_decimals_are_tighter():
    assert LossBand(1).compare(2.3, 2.34).agrees
    assert not LossBand(2).compare(2.3, 2.34).agrees


def test_there_is_no_negative_zero():
    assert math.copysign(1, quantise(-0.01, 1)) == 1.0


@pytest.mark.parametrize(("loss", "name"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_loss_that_is_not_finite_agrees_only_by_permission_and_kind(loss, name):
    assert quantise(loss, 2) == name
    assert LossBand(2, permits_non_finite=True).compare(name, loss).agrees
    assert not LossBand(2).compare(name, loss).agrees
    assert not LossBand(2, permits_non_finite=True).compare(1.0, loss).agrees
    assert not LossBand(2, permits_non_finite=True).compare(name, 1.0).agrees


def test_kinds_are_told_apart():
    assert not LossBand(2, permits_non_finite=True).compare("inf", -math.inf).agrees


def test_a_recorded_loss_with_more_decimals_is_malformed():
    assert LossBand(2).compare(1.23, 1.23).agrees
    with pytest.raises(MalformedError, match="decimals"):
        LossBand(2).compare(1.234, 1.234)


@pytest.mark.parametrize("settings", [{"decimals": -1}, {"decimals": 13}, {"decimals": 1, "band": math.inf}])
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(UsageError):
        LossBand(**settings)
