"""Drawings as SVG: whatever is text or an attribute is escaped, and a missing value leaves a gap."""

from __future__ import annotations

from xml.etree import ElementTree

from tallystick.core.svg import Chart, Scale, strip, tag

EVIL = '"><script>alert(1)</script>'


def test_attributes_and_labels_are_escaped() -> None:
    chart = Chart(EVIL, EVIL, (1, 5), [0.0, 1.0])
    chart.band(1, 5, EVIL, EVIL)
    chart.foot_label(0.0, EVIL)
    chart.mark(2, 0.5, EVIL, "cross")
    chart.bar(0.0, 0.5, 0.0, 1.0, EVIL)
    for drawn in (chart.svg(), strip(EVIL, EVIL, 5, [(1, 2, EVIL)]), tag("a", href=EVIL)):
        assert "<script" not in drawn
        ElementTree.fromstring(drawn)


def test_an_element_has_its_attributes_as_svg_names_them() -> None:
    assert tag("text", "a", class_="label", text_anchor="end", x=1.26, y=3, dx=None) == (
        '<text class="label" text-anchor="end" x="1.3" y="3">a</text>'
    )


def test_a_missing_value_leaves_a_gap() -> None:
    chart = Chart("loss", "", (1, 5), [1.0, 2.0])
    chart.line([(1, 1.0), (2, 2.0), (3, None), (4, 1.0), (5, 1.5)])
    assert chart.svg().count("<polyline") == 2


def test_ticks_are_round_and_within_the_scale() -> None:
    assert Scale(0.0, 1.0).ticks(5) == [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]
    assert Scale(1, 3).ticks(5, whole=True) == [1.0, 2.0, 3.0]
    assert Scale.of([float("nan"), float("inf")]) == Scale(0.0, 1.0)
