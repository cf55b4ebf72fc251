"""Work hidden in a span that names nodes is unexplained; what these nodes need is theirs, however it is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.timeline.audit import AuditedTrace, audit_trace
from tallystick.core.tensors import TensorSpec
from tallystick.formats.cluster import Cluster, Device
from tallystick.formats.store.traces import TraceEvent, TraceFolder
from tallystick.programs.graph import Graph, GraphForm, Input, Node, Output, Role
from tallystick.recording.timelines.graph_names import LINEAR, PRODUCT, work_of
from tallystick.recording.timelines.imported import TraceSubject, import_profile
from tallystick.recording.timelines.torch_calls import DevicePlaces
from tests.support.profiles import BACKWARD, gpu, kineto, launch, operator, span

SQUARE, LARGE = [64, 64], [1200, 1200]
Entries = list[dict[str, Any]]


def training_step() -> Graph:
    """A product that gives the gradient, and two operators that update the weight with it."""
    spec = TensorSpec("F32", (64, 64))
    inputs = (Input("inputs.x", Role.INPUT, spec), Input("weights.w", Role.WEIGHT, spec))
    nodes = (
        Node(0, "aten.mm.default", {"self": "inputs.x", "mat2": "weights.w"}, {}, (spec,)),
        Node(1, "aten.relu.default", {"self": "n0"}, {}, (spec,)),
        Node(2, "aten.mul.Tensor", {"self": "n1", "other": "n1"}, {}, (spec,)),
        Node(3, "aten.mul.Tensor", {"self": "weights.w", "other": "n2"}, {}, (spec,)),
    )
    outputs = (Output("gradients.w", "n1"), Output("weights.w", "n3"))
    return Graph("aten", GraphForm.LOGICAL, inputs, (), nodes, outputs)


def imported(folder: Path, entries: Entries, step: int | None = 3) -> list[TraceEvent]:
    devices = [Device(name="host/cpu", kind="cpu"), Device(name="host/gpu0", kind="gpu")]
    subject = TraceSubject(Cluster.of(devices, []), DevicePlaces("host"), training_step(), step=step)
    import_profile([kineto(folder / "kineto.json", entries)], folder / "trace", subject)
    return list(TraceFolder(folder / "trace").events())


def outcome(folder: Path) -> str:
    return audit_trace(AuditedTrace(TraceFolder(folder / "trace"), training_step())).outcome


def body(at: float = 0.0) -> Entries:
    return [operator("aten::mm", at, 10, [SQUARE, SQUARE]), operator("aten::relu", at + 20, 10, [SQUARE])]


def optimizer(*inside: dict[str, Any], at: float = 100.0, lasts: float = 900.0) -> Entries:
    return [span("Optimizer.step#AdamW.step", at, lasts), *inside]


UPDATE = (operator("aten::_foreach_mul_", 110, 20, [[SQUARE], []]), operator("aten::add_", 150, 20, [SQUARE, SQUARE]))
HONEST: dict[str, Entries] = {
    "list operators": [UPDATE[0]],
    "for each parameter": [operator("aten::mul_", 100 + i, 1, [SQUARE, []]) for i in range(20)],
    "fused": [operator("aten::_fused_adamw_", 110, 20, [[SQUARE], [SQUARE], [SQUARE], [SQUARE]])],
    "flat parameters": [operator("aten::add_", 110, 20, [[64 * 64], [64 * 64]])],
    "compiled": [operator("triton_poi_fused_mul_add_0", 110, 20, [SQUARE, SQUARE])],
    "a sketch of the weights": [operator("aten::matmul", 110, 20, [[256], [256, 16]])],
    "a norm": [operator("aten::linalg_vector_norm", 110, 20, [SQUARE])],
    "nothing that the profiler saw": [],
}
HIDDEN: dict[str, tuple[str, list[Any]]] = {
    "a product": ("aten::mm", [LARGE, LARGE]),
    "a batched product": ("aten::bmm", [[8, 300, 300], [8, 300, 300]]),
    "a linear layer": ("aten::linear", [LARGE, LARGE]),
    "a convolution": ("aten::convolution", [[8, 64, 64, 64], [64, 64, 3, 3]]),
    "attention": ("aten::scaled_dot_product_attention", [[8, 8, 512, 64]] * 3),
    "a decomposition": ("aten::linalg_svd", [[64, 64]]),
    "a Fourier transform": ("aten::fft_fft2", [[64, 64]]),
    "elements that the update has not": ("aten::mul_", [[1 << 24], []]),
    "an outer product": ("aten::mul", [[3000, 1], [1, 3000]]),
    "an operator of one's own": ("mine::adamw_", [SQUARE, SQUARE]),
    "a compiled product": ("triton_tem_fused_mm_0", [SQUARE, SQUARE]),
}


@pytest.mark.parametrize("name", HONEST)
def test_the_span_of_an_optimizer_stays_whole_where_its_calls_fit(tmp_path: Path, name: str) -> None:
    found = imported(tmp_path, [*body(), *optimizer(*HONEST[name])])
    assert [(row.operator, row.fused or (), row.duration) for row in found[2:]] == [(2, (3,), 900_000)]
    assert outcome(tmp_path) == "accepted"


@pytest.mark.parametrize("name", HIDDEN)
def test_a_call_that_the_update_does_not_need_is_unexplained(tmp_path: Path, name: str) -> None:
    called, dims = HIDDEN[name]
    found = imported(tmp_path, [*body(), *optimizer(*UPDATE, operator(called, 300, 500, dims))])
    assert [(row.name, row.operator, row.fused or (), row.duration) for row in found[2:]] == [
        ("Optimizer.step#AdamW.step", 2, (3,), 200_000),
        (called, None, (), 500_000),
        ("Optimizer.step#AdamW.step", 2, (), 200_000),
    ]
    assert outcome(tmp_path) == "inconclusive"


@pytest.mark.parametrize("around", ["tally:node 1", "aten::relu"])
def test_so_is_a_product_within_a_call_or_a_mark_of_a_node(tmp_path: Path, around: str) -> None:
    hidden = operator("aten::mm", 200, 500, [LARGE, LARGE])
    holder = span(around, 20, 900) if around.startswith("tally") else operator(around, 20, 900, [SQUARE])
    found = imported(tmp_path, [*body()[:1], holder, hidden, *optimizer(at=1000)])
    assert [(row.operator, row.duration) for row in found[1:4]] == [(1, 180_000), (None, 500_000), (1, 220_000)]
    assert outcome(tmp_path) == "inconclusive"


def test_a_product_in_a_product_is_counted_once(tmp_path: Path) -> None:
    """The twin: a framework takes a call apart, and a mark may stand around all of that."""
    inside = [operator(f"aten::{name}", 2 + at, 5 - at, [SQUARE, SQUARE]) for at, name in enumerate(("matmul", "mm"))]
    found = imported(tmp_path, [span("tally:node 0", 0, 15), *inside, *body()[1:], *optimizer()])
    assert [row.operator for row in found] == [0, 1, 2]
    assert outcome(tmp_path) == "accepted"


def test_the_update_of_a_step_is_computed_once(tmp_path: Path) -> None:
    """A second optimizer has its parameters; the same elements fifty times are work of another kind."""
    twice = [*optimizer(UPDATE[0]), *optimizer(operator("aten::add_", 1100, 5, [SQUARE, SQUARE]), at=1050)]
    assert None not in [row.operator for row in imported(tmp_path / "a", [*body(), *twice])]
    often = [operator("aten::mul_", 110 + 10 * i, 5, [SQUARE, SQUARE]) for i in range(50)]
    assert None in [row.operator for row in imported(tmp_path / "b", [*body(), *optimizer(*often)])]


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()


def test_kernels_of_a_hidden_call_are_nobodys(tmp_path: Path) -> None:
    calls = optimizer(UPDATE[0], launch(1, 111), operator("aten::mm", 300, 50, [LARGE, LARGE]), launch(2, 310))
    late = [operator("aten::add_", 400, 5, [SQUARE, SQUARE]), launch(3, 401), launch(4, 420)]
    found = imported(tmp_path, [*calls, *late, *(gpu(n, 1000 * n, 10) for n in (1, 2, 3, 4))])
    assert [(row.name, row.operator, row.fused or ()) for row in found] == [
        ("sgemm_1", 2, (3,)),
        ("sgemm_2", None, ()),
        ("sgemm_3", 2, ()),
        ("sgemm_4", 2, ()),
    ]


CLOSURE = [operator("autograd::engine::evaluate_function: MmBackward0", 140, 10, [])]


@pytest.mark.parametrize("thread", [None, BACKWARD])
def test_a_closure_in_the_span_is_matched_as_anywhere(tmp_path: Path, thread: int | None) -> None:
    backward = [{**each, "tid": thread or each["tid"]} for each in CLOSURE]
    found = imported(tmp_path, optimizer(*body(110), *backward, operator("aten::mul_", 500, 9, [SQUARE, []])))
    told = [(row.operator, row.start, row.duration) for row in found if row.operator is not None]
    assert told == [(0, 10_000, 10_000), (1, 30_000, 10_000), (2, 50_000, 850_000)]
    assert outcome(tmp_path) != "rejected"


def test_a_product_in_a_closure_is_unexplained(tmp_path: Path) -> None:
    hidden = operator("aten::mm", 131, 8, [LARGE, LARGE])
    found = imported(tmp_path, optimizer(*body(110), hidden, *CLOSURE))
    assert [row.duration for row in found if row.operator is None and row.name == "aten::mm"] == [8_000]


def test_what_runs_beside_the_marked_steps_is_none_of_them(tmp_path: Path) -> None:
    """A whole step more, between two that are marked: it has all operators, and explains nothing."""
    marks = [span(f"tally:step {number}", 10_000 * number, 2000) for number in (1, 2)]
    steps = [each for at in (10_000, 20_000) for each in (*body(at), *optimizer(at=at + 100))]
    more = [*body(15_000), *optimizer(UPDATE[0], at=15_100)]
    found = imported(tmp_path, [*marks, *steps, *more], step=None)
    assert {row.operator for row in found if row.step is None} == {None}
    assert {row.step for row in found if row.operator is not None} == {1, 2}
    assert outcome(tmp_path) != "rejected"


@pytest.mark.parametrize(
    ("name", "shapes", "work"),
    [
        ("aten::mm", [[2, 3], [3, 4]], (PRODUCT, 48)),
        ("aten::mm", [[1, 30], [30, 40]], (LINEAR, 30 * 41)),
        ("aten::mm", [[20, 30], [30, 40]], (PRODUCT, 2 * 20 * 30 * 40)),
        ("aten::addmm", [[40], [20, 30], [30, 40]], (PRODUCT, 2 * 20 * 30 * 40)),
        ("aten::baddbmm_", [[2, 20, 40], [2, 20, 30], [2, 30, 40]], (PRODUCT, 4 * 20 * 30 * 40)),
        ("aten::linear", [[5, 20, 30], [40, 30]], (PRODUCT, 2 * 100 * 30 * 40)),
        ("aten::matmul", [[256], [256, 16]], (LINEAR, 256 * 17)),
        ("aten::resolve_conj", [[4, 4]], (LINEAR, 16)),
        ("aten::_weight_norm", [[4, 4]], (LINEAR, 16)),
        ("aten::slow_conv2d_forward", [[4, 4]], ("convolution", 0)),
        ("aten::add", [[10**30]], (LINEAR, 1 << 62)),
        ("aten::add", [[-1, 4]], (LINEAR, 4)),
    ],
)
def test_the_work_of_a_call(name: str, shapes: list[list[int]], work: tuple[str, int]) -> None:
    assert tuple(work_of(name, shapes)) == work


Loop = Callable[[Any], Any]
LOOPS: dict[str, Loop] = {
    "for loop": lambda p: _torch().optim.AdamW(p, lr=1e-2, foreach=False),
    "foreach": lambda p: _torch().optim.AdamW(p, lr=1e-2, foreach=True),
    "fused": lambda p: _torch().optim.AdamW(p, lr=1e-2, fused=True),
    "momentum": lambda p: _torch().optim.SGD(p, lr=1e-2, momentum=0.9),
    "adafactor": lambda p: _torch().optim.Adafactor(p, lr=1e-2),
    "rmsprop": lambda p: _torch().optim.RMSprop(p, lr=1e-2, foreach=True),
}


def _torch() -> Any:
    return pytest.importorskip("torch")


def recorded(folder: Path, make: Loop, hide: Callable[[], object] | None = None, closure: bool = False) -> Path:
    """A loop of two steps, and the second of them as torch.profiler saw it."""
    torch = _torch()
    import tallystick

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    optimizer = make(model.parameters())
    if hide is not None:
        optimizer.register_step_post_hook(lambda *_: hide())
    with tallystick.record_training(folder / "run", model, optimizer, anchor_stride=2) as recorder:
        for _ in range(2):
            batch = torch.randn(16, 8), torch.randint(0, 4, (16,))

            def inside(batch: Any = batch) -> Any:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
                loss.backward()
                return loss

            with torch.profiler.profile(record_shapes=True) as seen:
                loss = optimizer.step(inside) if closure else inside()
                _ = None if closure else optimizer.step()
            recorder.step(loss, batch=batch)
    seen.export_chrome_trace(str(folder / "kineto.json"))
    return folder


def update_events(folder: Path) -> tuple[int, list[TraceEvent], str]:
    """The first node of the update, all events of the profile, and the outcome of an audit."""
    from tallystick.audits.timeline.audit import open_trace
    from tallystick.programs.inspection import update_nodes
    from tallystick.recording.timelines.imported import placement_of, subject_of

    subject = subject_of(folder / "run", None, None, placement_of("host", []), 2)
    import_profile([folder / "kineto.json"], folder / "trace", subject)
    trace = TraceFolder(folder / "trace")
    verdict = audit_trace(open_trace(trace, folder / "run" / "graphs" / "step.json"))
    assert subject.graph is not None
    return update_nodes(subject.graph)[0], list(trace.events()), verdict.outcome


@pytest.mark.parametrize("name", LOOPS)
def test_no_honest_optimizer_has_a_call_that_does_not_fit(tmp_path: Path, name: str) -> None:
    first, events, verdict = update_events(recorded(tmp_path, LOOPS[name]))
    spans = [row for row in events if row.name.startswith("Optimizer.step#")]
    assert [row.operator for row in spans] == [first]
    assert verdict != "rejected"


def test_an_honest_closure_is_not_rejected(tmp_path: Path) -> None:
    first, events, verdict = update_events(recorded(tmp_path, LOOPS["for loop"], closure=True))
    assert [row.operator for row in events if row.name.startswith("Optimizer.step#")] == [first]
    assert 0 in {row.operator for row in events}
    assert verdict != "rejected"


def test_products_hidden_in_a_real_span_are_not_accepted(tmp_path: Path) -> None:
    torch = _torch()
    square = torch.ones(700, 700)
    _, events, verdict = update_events(recorded(tmp_path, LOOPS["for loop"], lambda: [square @ square for _ in "123"]))
    hidden = [row for row in events if row.operator is None and row.name in ("aten::matmul", "aten::mm")]
    assert len(hidden) == 3
    assert verdict == "inconclusive"
    assert json.loads((tmp_path / "kineto.json").read_text())["traceEvents"]
