"""Traces of torch.profiler: which operator of the graph each kernel is, and what nobody explains."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.timeline.audit import AuditedTrace, audit_trace
from tallystick.core.errors import MalformedError, TallyError
from tallystick.formats.cluster import Cluster, Device
from tallystick.formats.store.traces import TraceEvent, TraceFolder
from tallystick.programs.graph import Graph
from tallystick.recording.timelines import chrome_entries, chrome_entries as sorted_rows
from tallystick.recording.timelines.imported import TraceSubject, import_profile
from tallystick.recording.timelines.torch_calls import DevicePlaces
from tests.support.profiles import BACKWARD, BASE, MAIN, entry, gpu, kineto, launch, operator, small_step, span
from tests.support.traces import ONE, TWO, small_graph, two_nodes

SQUARE = [4, 4]


def one_machine() -> Cluster:
    return Cluster.of([Device(name="host/cpu", kind="cpu"), Device(name="host/gpu0", kind="gpu")], [])


def imported(
    folder: Path, entries: list[dict[str, Any]], step: int | None = 3, graph: Graph | None = None
) -> TraceFolder:
    file = kineto(folder / "kineto.json", entries)
    subject = TraceSubject(one_machine(), DevicePlaces("host"), graph or small_graph(), step=step)
    import_profile([file], folder / "trace", subject)
    return TraceFolder(folder / "trace")


def rows(trace: TraceFolder) -> list[TraceEvent]:
    return list(trace.events())


def test_operators_are_found_by_name_and_shapes(tmp_path: Path) -> None:
    found = rows(imported(tmp_path, small_step()))
    assert [(row.name, row.operator, row.start, row.duration) for row in found] == [
        ("aten::mm", 0, 5000, 20000),
        ("aten::relu_", 1, 40000, 5000),
        ("aten::t", 2, 50000, 1000),
        ("aten::mm", 3, 60000, 10500),
    ]
    assert {(row.device, row.stream, row.step) for row in found} == {("host/cpu", 0, 3)}


def test_a_step_that_was_profiled_is_accepted(tmp_path: Path) -> None:
    trace = imported(tmp_path, small_step())
    assert audit_trace(AuditedTrace(trace, small_graph())).accepted


def test_the_header_says_when_and_no_host(tmp_path: Path) -> None:
    trace = imported(tmp_path, small_step())
    assert trace.statement().began == BASE // 1000 + 100
    assert all(b"secret-host" not in file.read_bytes() for file in trace.path.rglob("*") if file.is_file())


def test_an_operator_too_many_makes_its_kind_ambiguous(tmp_path: Path) -> None:
    extra = operator("aten::mm", 300, 5, [SQUARE, SQUARE])
    found = rows(imported(tmp_path, [*small_step(), extra]))
    assert [(row.name, row.operator) for row in found if row.name != "aten::relu_"] == [
        ("aten::linear", None),
        ("aten::t", 2),
        ("aten::mm", None),
        ("aten::mm", None),
    ]
    assert [row.operator for row in found if row.name == "aten::relu_"] == [1]
    assert audit_trace(AuditedTrace(TraceFolder(tmp_path / "trace"), small_graph())).outcome == "inconclusive"


def test_equal_operators_in_another_order_are_nobodys(tmp_path: Path) -> None:
    """The second product before the ReLU that it reads: honest where equal calls stand in another order."""
    first, second, relu = (
        operator(f"aten::{name}", at, 9, [SQUARE]) for name, at in (("mm", 1), ("mm", 20), ("relu", 40))
    )
    for each in (first, second):
        each["args"]["Input Dims"] = [SQUARE, SQUARE]
    trace = imported(tmp_path, [first, second, relu])
    assert [row.operator for row in rows(trace)] == [None, None, None]
    assert audit_trace(AuditedTrace(trace, small_graph())).outcome == "inconclusive"


def test_many_steps_are_matched_one_by_one(tmp_path: Path) -> None:
    steps = [span(f"ProfilerStep#{number}", 1000 * number, 999) for number in range(7)]
    entries = [*steps, *(each for number in range(7) for each in small_step(1000 * number + 100))]
    found = rows(imported(tmp_path, entries, step=0))
    assert {row.operator for row in found} == {0, 1, 2, 3}
    assert len(found) == 28


def test_what_the_graph_does_not_know_is_one_unexplained_kernel(tmp_path: Path) -> None:
    noise = [operator("aten::randperm", 300, 9, []), operator("aten::empty", 301, 1, [])]
    found = rows(imported(tmp_path, [*small_step(), *noise]))
    assert [(row.name, row.operator) for row in found[4:]] == [("aten::randperm", None)]


def test_marks_decide(tmp_path: Path) -> None:
    entries = [span("tally:step 9", 0, 1000), span("tally:node 3", 10, 50), *small_step(12)[:3]]
    (row,) = rows(imported(tmp_path, entries, step=None))
    assert (row.name, row.operator, row.step, row.duration) == ("tally:node 3", 3, 9, 50000)


def test_steps_of_the_profiler_are_counted_from_the_one_that_is_named(tmp_path: Path) -> None:
    steps = [span("ProfilerStep#5", 0, 999), span("ProfilerStep#6", 1000, 999)]
    found = rows(imported(tmp_path, [*steps, *small_step(), *small_step(1100)]))
    assert [(row.step, row.operator) for row in found] == [(s, n) for s in (3, 4) for n in (0, 1, 2, 3)]


def test_kernels_of_a_gpu_are_found_by_their_launches(tmp_path: Path) -> None:
    first, *_, second = small_step()
    entries = [
        first,
        operator("aten::mm", 105, 20, [SQUARE, SQUARE]),
        launch(1, 110),
        second,
        launch(2, 163),
        gpu(1, 400, 30, bytes=5),
        gpu(2, 500, 10),
        gpu(3, 600, 10),
    ]
    found = rows(imported(tmp_path, entries))
    assert [(row.name, row.operator, row.device, row.stream) for row in found] == [
        ("sgemm_1", 0, "host/gpu0", 7),
        ("sgemm_2", 3, "host/gpu0", 7),
        ("sgemm_3", None, "host/gpu0", 7),
    ]


def test_a_launch_on_the_thread_of_the_backward_pass_is_found(tmp_path: Path) -> None:
    entries = [operator("aten::relu", 200, 20, [SQUARE], BACKWARD), launch(4, 205, BACKWARD), gpu(4, 300, 5)]
    assert [row.operator for row in rows(imported(tmp_path, entries))] == [1]


def test_ranks_name_the_members_of_a_collective(tmp_path: Path) -> None:
    group = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]", "Out msg nelems": 25, "dtype": "Float"}
    files = [
        kineto(tmp_path / f"{rank}.json", [gpu(1, 100 + rank, 50, **group)], distributedInfo={"rank": rank})
        for rank in (0, 1)
    ]
    subject = TraceSubject(two_nodes(), DevicePlaces("host", {0: ONE, 1: TWO}))
    import_profile(files, tmp_path / "trace", subject)
    found = rows(TraceFolder(tmp_path / "trace"))
    assert [(row.kind, row.name, row.device, row.members or (), row.moved) for row in found] == [
        ("collective", "allreduce", ONE, (ONE, TWO), 100),
        ("collective", "allreduce", TWO, (ONE, TWO), 100),
    ]


def test_memory_in_use_is_kept(tmp_path: Path) -> None:
    arguments = {"Device Type": 0, "Device Id": -1, "Total Allocated": 640}
    note = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 141, "tid": 4711, "args": arguments}
    found = rows(imported(tmp_path, [*small_step(), note]))
    assert [row.memory for row in found] == [None, 640, 640, 640]


def test_sorting_on_disk_gives_the_same_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = imported(tmp_path, list(reversed(small_step()))).statement()
    (tmp_path / "small").mkdir()
    monkeypatch.setattr(sorted_rows.SortedRows.__init__, "__defaults__", (2,))
    assert imported(tmp_path / "small", list(reversed(small_step()))).statement() == whole


def test_a_packed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kineto.json.gz"
    path.write_bytes(gzip.compress(kineto(tmp_path / "k", small_step()).read_bytes()))
    subject = TraceSubject(one_machine(), DevicePlaces("host"), small_graph(), step=3)
    assert import_profile([path], tmp_path / "trace", subject).events.size == 4


GOOD = json.dumps({"schemaVersion": 1, "traceEvents": small_step()})
BAD = {
    "cut short": GOOD[: len(GOOD) // 2],
    "no JSON": "hello",
    "not a trace": '{"schemaVersion": 1}',
    "deep": '{"schemaVersion":1,"traceEvents":[' + '{"a":' * 100_000,
    "an event that is none": '{"schemaVersion":1,"traceEvents":[7]}',
    "an event that is too long": '{"schemaVersion":1,"traceEvents":[{"name":"' + "x" * (3 << 20),
    "a time that is none": GOOD.replace("100.0", '"soon"', 1),
    "a negative time": GOOD.replace("100.0", "-1", 1),
    "an infinite time": GOOD.replace("100.0", "1e999", 1),
    "a time beyond every exponent": GOOD.replace("100.0", "1e9999999", 1),
    "a number of thousands of digits": GOOD.replace("100.0", "9" * 5000, 1),
    "a base that is none": '{"schemaVersion":1,"baseTimeNanoseconds":"x","traceEvents":[]}',
    "no event": '{"schemaVersion":1,"traceEvents":[]}',
    "a GPU without a number": json.dumps({"schemaVersion": 1, "traceEvents": [gpu(1, 1, 1, device="a")]}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_trace_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "bad.json").write_text(BAD[name])
    subject = TraceSubject(one_machine(), DevicePlaces("host"), small_graph())
    with pytest.raises(TallyError) as refusal:
        import_profile([tmp_path / "bad.json"], tmp_path / "out" / "trace", subject)
    assert refusal.value.exit_code == 4
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    for number, data in enumerate((b"\x1f\x8bbroken", b'{"schemaVersion":1,"traceEvents":[\xff\xfe')):
        path = tmp_path / f"{number}.json"
        path.write_bytes(data)
        with pytest.raises(MalformedError, match="could not be read"):
            import_profile([path], tmp_path / "trace", TraceSubject(one_machine(), DevicePlaces("host")))


def test_a_packed_bomb_is_refused_and_what_packs_well_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = TraceSubject(one_machine(), DevicePlaces("host"), small_graph(), step=3)
    monkeypatch.setattr(chrome_entries, "UNPACKED_ALWAYS", 1 << 20)
    for number, blanks in enumerate((1 << 17, 4 << 20)):
        path = tmp_path / f"{number}.json.gz"
        path.write_bytes(gzip.compress(GOOD.replace('"traceEvents": [', '"traceEvents": [' + " " * blanks).encode()))
        if number == 0:
            assert import_profile([path], tmp_path / "trace", subject).events.size == 4
            continue
        with pytest.raises(MalformedError, match=r"1\.json\.gz: unpacks to more than 100 times"):
            import_profile([path], tmp_path / "other", subject)
    assert not (tmp_path / "other").exists()


def test_a_packed_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(GOOD.encode() * 20))
    packed[60] ^= 0xFF
    (tmp_path / "a.json.gz").write_bytes(packed)
    with pytest.raises(MalformedError, match=r"a\.json\.gz"):
        import_profile([tmp_path / "a.json.gz"], tmp_path / "trace", TraceSubject(one_machine(), DevicePlaces("host")))


def test_odd_values_are_no_reason_to_stop(tmp_path: Path) -> None:
    odd = gpu(1, 400, 30)
    odd["name"], odd["args"]["correlation"] = "\ud800" * 300, [1]
    odd["args"] |= {"Collective name": "allreduce", "Process Group Ranks": "9" * 5000}
    entries = [odd, operator("aten::mm", 1, 1, [[[4, 4], "x"], {}, [[]], "y"])]
    (row,) = rows(imported(tmp_path, entries))
    assert (row.name, row.operator, row.kind) == ("?" * 256, None, "kernel")


def test_a_trace_that_lasts_longer_than_a_clock_counts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedError, match="start"):
        imported(tmp_path, [operator("aten::mm", 1, 1, []), operator("aten::mm", 2**52, 1, [])])


MARK = "tally:checkpoint sha256:" + "0a" * 32


@pytest.mark.parametrize(
    ("entry_of", "told"),
    [
        (span(MARK + " weights", 101, 3), ("checkpoint", "weights", "sha256:" + "0a" * 32)),
        (span("tally:sample", 101, 3), ("sample", "sample", None)),
        (span("tally:challenge of step 3", 101, 3), ("challenge", "of step 3", None)),
        (entry("cuda_runtime", "cudaDeviceSynchronize", 101, 3, MAIN, {}), ("sync", "cudaDeviceSynchronize", None)),
        (entry("cuda_driver", "cuCtxSynchronize", 101, 3, MAIN, {}), ("sync", "cuCtxSynchronize", None)),
    ],
)
def test_what_happens_beside_the_work_is_an_event(
    tmp_path: Path, entry_of: dict[str, Any], told: tuple[str, ...]
) -> None:
    trace = imported(tmp_path, [*small_step(), entry_of])
    (found,) = [row for row in rows(trace) if row.kind != "kernel"]
    assert (found.kind, found.name, found.subject) == told
    assert (found.device, found.start, found.duration, found.operator, found.step) == ("host/cpu", 1000, 3000, None, 3)
    assert audit_trace(AuditedTrace(trace, small_graph())).accepted


@pytest.mark.parametrize("name", ["tally:kernel", "tally:checkpointing", "cudaSynchronized"])
def test_other_names_are_no_such_events(tmp_path: Path, name: str) -> None:
    trace = imported(tmp_path, [*small_step(), span(name, 101, 3)])
    assert {row.kind for row in rows(trace)} == {"kernel"}


def test_without_a_processor_in_the_cluster_they_are_left_out(tmp_path: Path) -> None:
    file = kineto(tmp_path / "kineto.json", [launch(1, 100), gpu(1, 110, 5), span("tally:sync", 120, 1)])
    cluster = Cluster.of([Device(name="host/gpu0", kind="gpu")], [])
    import_profile([file], tmp_path / "trace", TraceSubject(cluster, DevicePlaces("host"), small_graph(), step=3))
    assert {row.kind for row in rows(TraceFolder(tmp_path / "trace"))} == {"kernel"}
