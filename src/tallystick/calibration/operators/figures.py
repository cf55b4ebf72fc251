"""The figures of a calibration: the errors of each operator, and the results of stacks left out."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean
from typing import Final

import numpy as np

from tallystick.calibration.operators.calibrate import LeftOut, OperatorStudy, leave_out
from tallystick.commitments.encoding import Json
from tallystick.tolerances.confidence import clopper_pearson
from tallystick.tolerances.threshold import QUANTILES, Threshold
from tallystick.transcripts.profile import Calibrated

SAFETIES: Final = (1.0, 1.25, 1.5, 2.0, 3.0)


def figures_of(study: OperatorStudy) -> dict[str, Json]:
    """All figures of the page, as JSON values."""
    profile = study.profile
    return {
        "graph": study.root,
        "operators": len(study.graph.nodes),
        "machines": list(profile.machines),
        "inputs": profile.inputs,
        "safety": profile.safety,
        "quantiles": list(QUANTILES),
        "stacks": [
            {
                "stack": one.stack,
                "differs": one.differs,
                "results": len(one.tables),
                "skipped": dict(one.skipped),
                "beyond": dict(one.beyond),
            }
            for one in study.measured
        ],
        "kinds": list(_kinds(study)),
        "left_out": [_left_out(row) for row in study.left_out],
        "safeties": [_at(study, safety) for safety in SAFETIES],
    }


def _kinds(study: OperatorStudy) -> Iterator[Json]:
    """Per operator: results, the largest errors, and how many times tighter the thresholds are than the bound."""
    safety, kinds = study.profile.safety, study.kinds
    for kind, largest in study.profile.operators.items():
        entries = [entry for result, entry in study.profile.nodes[study.root].items() if kinds[result] == kind]
        tighter = [1.0 / share for share in (_allowed(entry, safety) for entry in entries) if share > 0]
        yield {
            "operator": kind,
            "nodes": len(entries),
            "exact": len(entries) - len(tighter),
            "share": list(largest.share),
            "absolute": largest.absolute[-1],
            "relative_p99": largest.relative[2],
            "ulp_p50": largest.ulp[0],
            "ulp_p99": largest.ulp[2],
            "ulp": largest.ulp[-1],
            "tighter": geometric_mean(tighter) if tighter else None,
            "tighter_p50": _median_tighter(entries, safety),
        }


def _allowed(entry: Calibrated, safety: float, place: int = -1) -> float:
    return Threshold(entry.errors(), safety).allowed()[place]


def _median_tighter(entries: list[Calibrated], safety: float) -> float | None:
    """How many times tighter the threshold of the median is: it limits an adversary who changes every element."""
    shares = [_allowed(entry, safety, 0) for entry in entries]
    tighter = [1.0 / share for share in shares if share > 0]
    return geometric_mean(tighter) if tighter else None


def _left_out(row: LeftOut) -> Json:
    runs = len(row.stretch)
    low, high = clopper_pearson(row.rejected, runs) if runs else (0.0, 1.0)
    stretch = np.quantile(row.stretch, (0.5, 0.99, 1.0), method="higher") if runs else np.zeros(3)
    return {
        "stack": row.stack,
        "alike": list(row.alike),
        "runs": runs,
        "rejected": row.rejected,
        "rate_low": low,
        "rate_high": high,
        "results": row.results,
        "skipped": row.skipped,
        "beyond": dict(row.beyond),
        "differs": row.differs,
        "stretch": [float(multiple) if np.isfinite(multiple) else None for multiple in stretch],
        "where": row.where,
    }


def _at(study: OperatorStudy, safety: float) -> Json:
    """The rejected runs, and the tightness of the thresholds, at another safety factor."""
    rows = list(leave_out(study.graph, study.measured, study.rounding, safety))
    entries = study.profile.nodes[study.root].values()
    tighter = [1.0 / share for share in (_allowed(entry, safety) for entry in entries) if share > 0]
    return {
        "safety": safety,
        "runs": sum(len(row.stretch) for row in rows),
        "rejected": sum(row.rejected for row in rows),
        "tighter": geometric_mean(tighter) if tighter else None,
    }
