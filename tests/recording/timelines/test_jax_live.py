"""A program of JAX, profiled, imported and audited."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.audits.timeline.audit import AuditedTrace, audit_trace
from tallystick.formats.cluster import Cluster, Device
from tallystick.formats.store.traces import TraceFolder
from tallystick.recording.timelines.imported import TraceSubject, import_profile
from tallystick.recording.timelines.torch_calls import DevicePlaces


def test_what_jax_profiles_is_found_in_the_graph_that_it_captured(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    from tallystick.jax import capture

    def step(x, w):
        return jax.numpy.tanh(x @ w).sum()

    ones = jax.numpy.ones((64, 64))
    compiled = jax.jit(step).lower(ones, ones).compile()
    compiled(ones, ones).block_until_ready()
    jax.profiler.start_trace(tmp_path / "profile", create_perfetto_trace=True)
    for _ in range(2):
        compiled(ones, ones).block_until_ready()
    jax.profiler.stop_trace()
    (file,) = (tmp_path / "profile").rglob("perfetto_trace.json.gz")
    (tmp_path / "compiled.txt").write_text(compiled.as_text())
    graph = capture(step, ones, ones).graph
    cluster = Cluster.of([Device(name="host/cpu", kind="cpu")], [])
    subject = TraceSubject(cluster, DevicePlaces("host"), graph, step=0, compiled=tmp_path / "compiled.txt")
    import_profile([file], tmp_path / "trace", subject)
    trace = TraceFolder(tmp_path / "trace")
    assert [row.step for row in trace.events()] == [0, 1]
    assert audit_trace(AuditedTrace(trace, graph)).accepted
