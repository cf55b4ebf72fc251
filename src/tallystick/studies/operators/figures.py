"""The figures of a calibration: per operator how far stacks lie apart, and what happens to a stack left out."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean

from tallystick.commitments import Json
from tallystick.studies.operators.calibrate import OperatorStudy
from tallystick.tolerances.confidence import clopper_pearson
from tallystick.tolerances.threshold import QUANTILES, Threshold


def figures_of(study: OperatorStudy) -> Json:
    """Everything a page shows, as JSON values."""
    profile = study.profile
    return {
        "graph": study.root,
        "operators": len(study.graph.nodes),
        "machines": list(profile.machines),
        "stacks": list(profile.stacks),
        "inputs": profile.inputs,
        "safety": profile.safety,
        "quantiles": list(QUANTILES),
        "kinds": list(_kinds(study)),
        "left_out": list(_left_out(study)),
    }


def _kinds(study: OperatorStudy) -> Iterator[Json]:
    """Per operator: nodes, the largest errors seen, and how much tighter the thresholds are than the bound."""
    names = {f"{node.number}": node.operator for node in study.graph.nodes}
    nodes = study.profile.nodes[study.root]
    for kind, calibrated in study.profile.operators.items():
        operator = kind.rpartition(" ")[0]
        mine = [entry for result, entry in nodes.items() if names[result.partition(".")[0]] == operator]
        allowed = [Threshold(entry.errors(), study.profile.safety).allowed()[-1] for entry in mine]
        tighter = [1.0 / share for share in allowed if share > 0]
        yield {
            "operator": kind,
            "nodes": len(mine),
            "exact": len(mine) - len(tighter),
            "share": list(calibrated.share),
            "absolute": calibrated.absolute[-1],
            "relative_p99": calibrated.relative[2],
            "ulp_p50": calibrated.ulp[0],
            "ulp_p99": calibrated.ulp[2],
            "ulp": calibrated.ulp[-1],
            "tighter": geometric_mean(tighter) if tighter else None,
        }


def _left_out(study: OperatorStudy) -> Iterator[Json]:
    for row in study.left_out:
        low, high = clopper_pearson(row.rejected, row.runs) if row.runs else (0.0, 1.0)
        yield {
            "stack": row.stack,
            "runs": row.runs,
            "rejected": row.rejected,
            "rate_low": low,
            "rate_high": high,
            "results": row.operators,
            "worst": row.worst,
        }
