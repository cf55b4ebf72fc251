"""Makes vectors/optimizer/rules.json from spec/optimizer.md alone: it shares no code with the package."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parents[1] / "vectors" / "optimizer" / "rules.json"
OLD = {"betas": [0.9, 0.95], "eps": 1e-8, "maximize": False, "momentum": 0.0, "nesterov": False, "weight_decay": 0.1}
ADAM = {"betas": [0.9, 0.95], "eps": 1e-8, "maximize": False, "weight_decay": 0.1}
MATRIX = ["F32", [3, 5]]
RATE, STEPS = 0.0123, (1, 2, 40)
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("an unknown kind", {**OLD, "kind": "lbfgs"}),
    ("no kind", OLD),
    ("a field of another kind", {**OLD, "kind": "adamw", "alpha": 0.9}),
    ("a number out of its range", {**OLD, "kind": "sgd", "momentum": 1.5}),
    ("a list of another length", {"kind": "lion", "betas": [0.9], "weight_decay": 0.0}),
    ("a power that grows without bound", {"kind": "adafactor", "beta2_decay": 1e300, "weight_decay": 0.0}),
    ("another dtype", {**OLD, "kind": "adamw", "rate_dtype": "BF16"}),
]


def main() -> None:
    """Write rules, their scalars and slots, and rules to refuse."""
    rules = [{"name": name, "rule": rule, "slots": slots, "scalars": scalars_of(rule)} for name, rule, slots in RULES]
    refused = [{"name": name, "rule": rule} for name, rule in REFUSED]
    value = {"learning_rate": RATE, "refused": refused, "rules": rules, "weight": MATRIX}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def scalars_of(rule: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The scalars of some steps, by the step number."""
    return {str(step): scalars(rule, step) for step in STEPS}


def scalars(rule: dict[str, Any], t: int) -> dict[str, float]:
    """The scalars of one step, from the table of the page."""
    kind, eta, decay = rule["kind"], RATE, rule["weight_decay"]
    first, second = (rule.get("betas") or [0.0, 0.0])[:2]
    left = {"decay": 1 - eta * decay} if decay else {}
    if rule.get("fused"):
        return {"learning_rate": eta}
    if rule.get("rate_dtype"):
        f = np.float32
        size, left = f(eta) / f(1 - first**t), {"decay": float(f(1) - f(eta) * f(decay))}
        return {"root_correction": (1 - second**t) ** 0.5, "step_size": -float(size), **left}
    if kind in {"adam", "adamw"}:
        found = {"root_correction": (1 - second**t) ** 0.5, "step_size": -(eta / (1 - first**t))}
        return found | (left if kind == "adamw" else {})
    if kind == "sgd":
        delta = rule.get("dampening", 0.0)
        share = {"gradient_share": 1.0 if t == 1 else 1 - delta} if delta and rule["momentum"] else {}
        return {"step_size": -eta, **share}
    if kind == "adagrad":
        return {"step_size": -(eta / (1 + (t - 1) * rule["lr_decay"]))}
    if kind == "adamax":
        return {"step_size": -(eta / (1 - first**t))}
    if kind == "nadam":
        now, following = (first * (1 - 0.5 * 0.96 ** (s * rule["momentum_decay"])) for s in (t, t + 1))
        sizes = {"gradient_size": -eta * (1 - now), "mean_size": -eta * following}
        return {"mu": now, "mu_next": following, **sizes, "correction": 1 - second**t} | (
            left if rule["decoupled"] else {}
        )
    if kind == "radam":
        corrections = {"correction": 1 - first**t, "root_correction": (1 - second**t) ** 0.5}
        found = {"learning_rate": eta, "rectification": rectification(second, t), **corrections}
        return found | (left if rule["decoupled"] else {})
    if kind == "adafactor":
        return {"moment_share": float(t) ** rule["beta2_decay"], "rho": min(eta, 1 / t**0.5), **left}
    if kind == "adafactor-transformers":
        kept = 1 - t ** rule["decay_rate"]
        relative = min(1e-6 * t if rule["warmup_init"] else 1e-2, 1 / math.sqrt(t))
        return {"moment_decay": kept, "moment_share": 1 - kept, "rate": relative if rule["relative_step"] else eta}
    if kind in {"lion", "muon"}:
        return {"decay": 1 - eta * decay, "step_size": -eta}
    return {"step_size": -eta}


def rectification(beta: float, t: int) -> float:
    """The factor r of RAdam, or 0."""
    m = 2 / (1 - beta) - 1
    length = m - 2 * t * beta**t / (1 - beta**t)
    if length <= 5:
        return 0.0
    return float(((length - 4) * (length - 2) * m / ((m - 4) * (m - 2) * length)) ** 0.5)


def slots(*names: str, **others: list[Any]) -> dict[str, list[Any]]:
    """Dtype, shape and first value of slots: those of the weight beginning at 0, and others."""
    return {name: [*MATRIX, 0.0] for name in names} | others


COUNT = ["F32", [], 0.0]
SHAPED: dict[str, list[Any]] = {"row_var": ["F32", [3, 1], 0.0], "col_var": ["F32", [1, 5], 0.0]}
PARTS: dict[str, list[Any]] = {"exp_avg_sq_row": ["F32", [3], 0.0], "exp_avg_sq_col": ["F32", [5], 0.0]}
SETTINGS = {"scale_parameter": True, "relative_step": True, "clip_threshold": 1.0, "decay_rate": -0.8}
RULES: list[tuple[str, dict[str, Any], dict[str, list[Any]]]] = [
    ("adamw", {**OLD, "kind": "adamw"}, slots("exp_avg", "exp_avg_sq", step=COUNT)),
    ("adam", {**OLD, "kind": "adam"}, slots("exp_avg", "exp_avg_sq", step=COUNT)),
    (
        "amsgrad",
        {**OLD, "kind": "adam", "amsgrad": True},
        slots("exp_avg", "exp_avg_sq", "max_exp_avg_sq", step=COUNT),
    ),
    ("fused", {**OLD, "kind": "adamw", "fused": True}, slots("exp_avg", "exp_avg_sq", step=COUNT)),
    (
        "a tensor as learning rate",
        {**OLD, "kind": "adamw", "rate_dtype": "F32"},
        slots("exp_avg", "exp_avg_sq", step=COUNT),
    ),
    ("sgd", {**OLD, "kind": "sgd"}, {}),
    (
        "dampening",
        {**OLD, "kind": "sgd", "momentum": 0.9, "dampening": 0.25},
        slots(momentum_buffer=[*MATRIX, -0.0]),
    ),
    (
        "rmsprop",
        {
            "kind": "rmsprop",
            "alpha": 0.99,
            "eps": 1e-8,
            "momentum": 0.5,
            "centered": True,
            "maximize": False,
            "weight_decay": 0.0,
        },
        slots("square_avg", "momentum_buffer", "grad_avg", step=COUNT),
    ),
    (
        "adagrad",
        {
            "kind": "adagrad",
            "lr_decay": 0.1,
            "eps": 1e-10,
            "initial_accumulator_value": 0.25,
            "maximize": False,
            "weight_decay": 0.0,
        },
        slots(step=COUNT, sum=[*MATRIX, 0.25]),
    ),
    (
        "adadelta",
        {"kind": "adadelta", "rho": 0.9, "eps": 1e-6, "maximize": False, "weight_decay": 0.0},
        slots("square_avg", "acc_delta", step=COUNT),
    ),
    ("adamax", {**ADAM, "kind": "adamax"}, slots("exp_avg", "exp_inf", step=COUNT)),
    (
        "nadam",
        {**ADAM, "kind": "nadam", "momentum_decay": 0.004, "decoupled": True},
        slots("exp_avg", "exp_avg_sq", step=COUNT, mu_product=["F32", [], 1.0]),
    ),
    ("radam", {**ADAM, "kind": "radam", "decoupled": True}, slots("exp_avg", "exp_avg_sq", step=COUNT)),
    (
        "adafactor",
        {
            "kind": "adafactor",
            "beta2_decay": -0.8,
            "eps2": 1e-3,
            "clip": 1.0,
            "maximize": False,
            "weight_decay": 0.1,
        },
        {"step": COUNT, **SHAPED},
    ),
    (
        "adafactor of transformers",
        {
            **SETTINGS,
            "kind": "adafactor-transformers",
            "eps": [1e-30, 1e-3],
            "warmup_init": True,
            "weight_decay": 0.0,
        },
        {"step": ["F64", [], 0.0], "RMS": COUNT, **PARTS},
    ),
    (
        "adafactor of transformers, a learning rate and a first moment",
        {
            **SETTINGS,
            "kind": "adafactor-transformers",
            "eps": [1e-30, 1e-3],
            "warmup_init": False,
            "weight_decay": 0.0,
            "relative_step": False,
            "beta1": 0.9,
        },
        slots("exp_avg", step=["F64", [], 0.0], RMS=COUNT, **PARTS),
    ),
    ("lion", {"kind": "lion", "betas": [0.9, 0.99], "weight_decay": 0.1}, slots("exp_avg")),
    (
        "muon",
        {
            "kind": "muon",
            "momentum": 0.95,
            "nesterov": True,
            "coefficients": [3.4445, -4.775, 2.0315],
            "eps": 1e-7,
            "steps": 5,
            "adjust": "original",
            "weight_decay": 0.1,
        },
        slots("momentum_buffer"),
    ),
]

if __name__ == "__main__":
    main()
