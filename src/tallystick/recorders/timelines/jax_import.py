"""A trace of JAX's profiler (`perfetto_trace.json.gz`) as events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tallystick.recorders.timelines.chrome_entries import chrome_file
from tallystick.recorders.timelines.compiled_names import CompiledNames
from tallystick.recorders.timelines.made_event import made_event
from tallystick.recorders.timelines.sorted_rows import SortedRows
from tallystick.recorders.timelines.torch_rows import DevicePlaces, nanoseconds
from tallystick.traces.event import EventKind, TraceEvent

ACCELERATOR: Final = re.compile(r"/device:(GPU|TPU):(\d{1,6})")


@dataclass
class JaxImport:
    """Turns the entries of one file into events; executions of the named program are steps, in order of time."""

    placement: DevicePlaces
    names: CompiledNames | None
    first_step: int | None
    devices: dict[int, str] = field(default_factory=dict)
    streams: dict[tuple[int, int], int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    def events(self, rows: SortedRows) -> Iterator[TraceEvent]:
        """The events, in order of time; what runs inside of another instruction on one thread is part of it."""
        for start, minus, _, process, thread, name, operation, module, run in rows:
            stream = self.streams.setdefault((process, thread), len(self.streams))
            if start < self.ends.get(stream, 0):
                continue
            self.ends[stream] = start - minus
            is_named = self.names is not None and module == self.names.module
            nodes = self.names.nodes.get(operation, ()) if self.names is not None and is_named else ()
            kind: EventKind = "memcpy" if name.lower().startswith("memcpy") else "kernel"
            yield made_event(
                kind=kind,
                name=name,
                device=self.devices.get(process, self.placement.cpu(None)),
                stream=stream,
                start=start,
                duration=-minus,
                operator=nodes[0] if nodes else None,
                fused=nodes[1:] or None,
                step=self._step(run) if is_named else None,
            )

    def _step(self, run: str) -> int | None:
        """The step of an execution: the first one is the step that was named."""
        turn = self.runs.setdefault(run, len(self.runs))
        return None if self.first_step is None else self.first_step + turn

    def read(self, files: Sequence[Path], rows: SortedRows) -> None:
        """Gather the instructions that ran; raises `MalformedError` naming the file that is no such trace."""
        for path in files:
            with chrome_file(path) as opened:
                for entry in opened.entries():
                    self._take(entry, rows, opened.name)

    def _take(self, entry: dict[str, Any], rows: SortedRows, name: str) -> None:
        process, found = entry.get("pid"), entry.get("args")
        arguments = found if isinstance(found, dict) else {}
        if type(process) is not int:
            return
        if entry.get("name") == "process_name" and (match := ACCELERATOR.match(str(arguments.get("name")))):
            kind, number = match[1].lower(), int(match[2])
            host = self.placement.cpu(None).removesuffix("/cpu")
            self.devices[process] = self.placement.gpu(number, None) if kind == "gpu" else f"{host}/{kind}{number}"
        is_work = "hlo_op" in arguments or process in self.devices
        if entry.get("ph") != "X" or not is_work or type(entry.get("tid")) is not int:
            return
        start, duration = nanoseconds(entry.get("ts"), name), nanoseconds(entry.get("dur", 0), name)
        texts = [str(arguments.get(key, "")) for key in ("hlo_op", "hlo_module", "run_id")]
        rows.add([start, -duration, rows.count, process, entry["tid"], str(entry.get("name")), *texts])
