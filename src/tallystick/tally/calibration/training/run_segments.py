"""Replays segments of somebody's run on one stack, in a process of its own.

`python -m tallystick.tally.calibration.training.run_segments STACK JOB.json` writes its measurements next to the job.
Stacks are compared with each other and never with the states of the run, of which only the starts are read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tallystick.audits.checked_run import CheckedRun, check_records, read_stated
from tallystick.audits.policy import Policy
from tallystick.audits.tolerant import TrainingKind, workload_of
from tallystick.core.errors import UnavailableError
from tallystick.core.tensor_digests import state_digest
from tallystick.engines.torch.tensors import from_tensor
from tallystick.engines.torch.training.trainer import Sketcher
from tallystick.engines.torch.training.verifier_stack import GraphReplayer, TorchReplayer
from tallystick.formats.step_program import projection_seed
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.step_names import WEIGHTS
from tallystick.tally.calibration.training.segments import keep, kept
from tallystick.tally.calibration.training.stacks import Outcome, Stack, enter, measure, stack_named
from tallystick.verdicts.distances import Projection
from tallystick.verdicts.exact import element_count
from tallystick.verdicts.replayer import ReplayedStep, Replayer
from tallystick.verdicts.verdict import Findings


class RunBench:
    """A finished run that can be replayed from its step graph; `kind` is what limits depend on."""

    def __init__(self, folder: Path) -> None:
        """Raises `UnavailableError` where the run cannot be replayed, with the first reason."""
        run, findings, policy = RunDirectory(folder), Findings(keeps_going=True), Policy(replay="graph")
        stated = read_stated(run, policy, findings)
        if stated is None:
            raise UnavailableError(f"{folder}: {(findings.open_lines or ['the run cannot be read'])[0]}")
        self.run: CheckedRun = check_records(run, stated, policy, findings)
        if self.run.findings.rejected or (self.run.program is None and self.run.plan is None):
            raise UnavailableError(f"{folder}: limits are measured on a run that `tally audit` can replay")
        self.kind: TrainingKind = workload_of(self.run)
        spec = self.run.spec
        self.projection = Projection(projection_seed(spec), spec.recorded.projection_width)

    @property
    def parameters(self) -> int:
        """The number of weights, from the first anchor."""
        first = self.run.run.anchors.read(min(self.run.anchors))
        return element_count(tensor for name, tensor in first.items() if name.startswith(WEIGHTS))

    def replayer(self, device: str) -> Replayer:
        """A replayer of its steps: from the step graph, or from the recipe where there is none."""
        if self.run.program is not None:
            return GraphReplayer(self.run.spec, self.run.program, device)
        assert self.run.dataset is not None  # held by the constructor
        assert self.run.plan is not None
        return TorchReplayer(self.run.spec, self.run.dataset, self.run.plan, device)

    def outcome(self, replayer: Replayer, seen: ReplayedStep) -> Outcome:
        """What was reached after a step, with a copy of the state."""
        state = {name: tensor.copy() for name, tensor in replayer.state().items()}
        weights = {name: from_tensor(tensor) for name, tensor in state.items() if name.startswith(WEIGHTS)}
        return Outcome(state, seen.loss, Sketcher(self.projection, weights).sketch())

    def peak_rate(self, start: int, end: int) -> float:
        """The largest learning rate of steps `start + 1` … `end`."""
        return max(self.kind.rate(step) for step in range(start + 1, end + 1))


def main(stack: Stack, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Replay every segment of the job, and yield its measurements: none on the stack that makes the claims."""
    bench = RunBench(Path(job["run"]))
    replayer = bench.replayer(stack.device)
    for start, end in job["segments"]:
        before = bench.run.run.anchors.read(start)
        replayer.restore(before)
        for step in range(start + 1, end + 1):
            seen = replayer.step(step)
            if step in {start + 1, end}:
                yield from _measured(bench, stack, job, (start, step), before, bench.outcome(replayer, seen))


def _measured(
    bench: RunBench, stack: Stack, job: dict[str, Any], steps: tuple[int, int], before: Any, reached: Outcome
) -> Iterator[dict[str, Any]]:
    folder, (start, end) = Path(job["claims"]), steps
    if job["claiming"]:
        keep(folder, start, end, reached)
        return
    claimed = kept(folder, start, end)
    drift = measure(before, claimed, reached, bench.peak_rate(start, end), bench.projection, bench.kind.dtype)
    same_bits = state_digest(claimed.state) == state_digest(reached.state)
    yield {"stack": stack.name, "start": start, "end": end, "same_bits": same_bits, "drift": drift.to_json()}


if __name__ == "__main__":
    here = stack_named(sys.argv[1])
    enter(here)
    path = Path(sys.argv[2])
    path.with_suffix(".out.json").write_text(json.dumps(list(main(here, json.loads(path.read_text())))))
