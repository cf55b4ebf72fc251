"""Provers that serve a cheaper model than the promised one, or cheat and defend the result in a dispute."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tallystick.audits.calls import Calls
from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.opening import OpeningSource, gather_whole, graph_replayer, open_operators
from tallystick.core.digests import Digest
from tallystick.core.errors import UsageError
from tallystick.core.files import write_atomically
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.disputes.evidence.statement import CallsStatement
from tallystick.disputes.evidence.traces import RecordTrace, TrainingSource, records_of, torch_engine, trace_of
from tallystick.engines.torch.engine import TorchEngine
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.engines.torch.training.trainer import Observation
from tallystick.formats.claims import call_file
from tallystick.formats.records import AnchorRecord, StepRecord, read_record
from tallystick.formats.spec import Spec
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.formats.store.log import LogWriter
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.execution import Arguments, execute
from tallystick.programs.graph import Node, Ref
from tallystick.programs.step_names import BATCH
from tallystick.tally.attacks.forgers import RATE_EXCESS, with_optimizer
from tallystick.tally.attacks.forging import Batches, DishonestTrainer, find_scene, read_records, train_on

if TYPE_CHECKING:
    from tallystick.disputes.game.protocols import Trace


def integer_weights(language_model: TorchLanguageModel, bits: int) -> Any:
    """Every matrix rounded to 2ᵇⁱᵗˢ − 1 levels per row, as weight-only quantisation does."""
    return with_matrices(language_model, lambda weight: rounded(weight, bits))


def rounded(weight: Any, bits: int) -> Any:
    """A matrix rounded to 2ᵇⁱᵗˢ − 1 levels per row."""
    scale = weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
    return (weight / scale).round() * scale


def with_matrices(language_model: TorchLanguageModel, change: Callable[[Any], Any]) -> Any:
    """A copy with changed matrices of its linear layers; embeddings and the output matrix are not changed."""
    import torch

    model = copy.deepcopy(language_model.model)
    with torch.no_grad():
        for name, part in model.named_modules():
            if isinstance(part, torch.nn.Linear) and not name.endswith("lm_head"):
                part.weight.copy_(change(part.weight))
    return model


class SubstitutingEngine(TorchEngine):
    """PyTorch, but operators that read one of `substitutes` compute with the substitute."""

    def __init__(self, substitutes: Mapping[Ref, Tensor]) -> None:
        super().__init__()
        self._substitutes = {ref: self.load(tensor) for ref, tensor in substitutes.items()}

    def prepare(self, node: Node, differentiable: bool = False) -> Callable[[Arguments], tuple[Any, ...]]:
        """The honest kernel on other operands."""
        run, others = super().prepare(node, differentiable), self._substitutes
        swapped = {name: others[ref] for name, ref in node.operands.items() if isinstance(ref, str) and ref in others}
        return (lambda arguments: run({**arguments, **swapped})) if swapped else run


# A provider promises one model and answers with another: the weights of one layer differ.
#
# The claim has the weights and the graph of the promised model. The outputs, their digests and the transcript are those
# of the model that was really run. In a dispute the forger opens the promised weights, because the claim names their
# digest. But the operators that read this layer compute with the other weights.

PARTS: Final[tuple[Literal["inputs", "outputs"], ...]] = ("inputs", "outputs")


def forge_swapped_layer(run: Path, out: Path, weight: str) -> None:
    """Answer all calls of an inference directory again with another `weight`; the rest is published unchanged.

    Raises `UsageError` if the model has no such weight.
    """
    shutil.copytree(run, out)
    calls = gather_whole(InferenceDirectory(run))
    engine = SubstitutingEngine(swapped(calls, weight))
    fixed = {**calls.constants, **calls.weights()}
    for record in calls.records:
        inputs = {f"{BATCH}{name}": tensor for name, tensor in calls.inputs(record).items()}
        write_state(out / call_file(record.index, "outputs"), execute(calls.graph, fixed | inputs, engine))
    seal(InferenceDirectory(out), calls)


def swapped_layer_trace(run: Path, work: Path, weight: str) -> Trace:
    """The trace of a forged directory."""
    directory = InferenceDirectory(run)
    engine = SubstitutingEngine(swapped(gather_whole(directory), weight))
    return trace_of(CallsStatement(directory), work, engine)


def swapped(calls: Calls, weight: str) -> State:
    """The weight that is really used: the promised one, rounded to 4 bits as in a cheaper model."""
    weights = calls.weights()
    if weight not in weights:
        raise UsageError(f"{weight}: the model has {', '.join(sorted(weights))}")
    promised = weights[weight].values().astype(np.float64)
    step = float(np.abs(promised).max()) / 7
    return {weight: Tensor.of((np.round(promised / step) * step).astype(np.float32), weights[weight].dtype)}


def seal(forged: InferenceDirectory, calls: Calls) -> None:
    """Recompute transcript, tiles and claim from the inputs and outputs in the directory."""
    shutil.rmtree(forged.path / "tiles")
    forged.transcript_path.unlink()
    log = LogWriter(forged.transcript_path)
    for record in calls.records:
        parts = {part: read_state(forged.path / call_file(record.index, part), canonical=True) for part in PARTS}
        named: dict[str, Digest] = {part: state_digest(state) for part, state in parts.items()}
        log.append(record.model_copy(update=named).to_bytes())
    claim = calls.claim.model_copy(update={"transcript": log.close()})
    write_atomically(forged.claim_path, claim.to_bytes())


# Steps of a training are taken at a wrong learning rate; records, anchors and claim are consistent.
#
# In a dispute the forger opens the right schedule, because the spec fixes it. But the operators that read it compute
# with the wrong rate. There its numbers first differ from the right ones.

RATE_FACTOR: Final = 1.1


class OneStepTrainer(DishonestTrainer):
    """Takes one step at a learning rate that is `factor` times the declared one, and reports the declared one."""

    def __init__(self, spec: Spec, step: int, factor: float) -> None:
        super().__init__(spec)
        self._step = step
        self._wrong = with_optimizer(self.declared, learning_rate=self.declared.optimizer.learning_rate * factor)

    def step(self, micro_batches: Batches) -> Observation:
        """One step, at the declared rate or the wrong one."""
        self.recipe = self._wrong if self.index + 1 == self._step else self.declared
        return super().step(micro_batches)


def forge_wrong_rate(run: Path, out: Path, step: int, factor: float = RATE_FACTOR) -> None:
    """Continue from the anchor before `step`, take this step at `factor` times the rate, and publish the run.

    Raises `UsageError` if the run has no such step.
    """
    directory = RunDirectory(run)
    marks = [record.index for record in read_records(directory) if isinstance(record, AnchorRecord)]
    if not 1 <= step <= max(marks):
        raise UsageError(f"{run}: has no step {step}")
    anchor = max(mark for mark in marks if mark < step)
    train_on(run, out, anchor, OneStepTrainer(directory.spec(), step, factor))


def wrong_rate_trace(run: Path, work: Path, step: int, factor: float = RATE_FACTOR) -> Trace:
    """The trace of a forged run: the right schedule is opened, and the operators compute with the wrong one."""
    return _trace(RunDirectory(run), work, range(step, step + 1), factor)


def higher_rate_trace(run: Path, work: Path) -> Trace:
    """As `wrong_rate_trace`, of a run that `tally attack wrong-rate` forged: all steps of its second half are wrong."""
    directory = RunDirectory(run)
    scene = find_scene(directory)
    return _trace(directory, work, range(scene.middle + 1, scene.last + 1), RATE_EXCESS)


def _trace(directory: RunDirectory, work: Path, steps: range, factor: float) -> Trace:
    gather = partial(gather_whole, directory)
    source = TrainingSource(gather, lambda evidence: graph_replayer(_practised(evidence, steps, factor)))
    return _WrongRateTrace(records_of(directory), work, torch_engine(), source, source, steps)


@dataclass(frozen=True)
class _WrongRateTrace(RecordTrace):
    source: TrainingSource
    steps: range

    def open(self, subject: OpeningSource, out: Path) -> None:
        record = read_record(subject.record.line, "record")
        if not isinstance(record, StepRecord) or record.index not in self.steps:
            return super().open(subject, out)
        program = self.source.evidence.program
        assert program is not None  # a subject has a graph
        declared = program.schedule(subject.bindings, record.index)
        wrong = {name: subject.bindings[name] for name in declared}
        shown = replace(subject, bindings={**subject.bindings, **declared})
        open_operators(shown, out, SubstitutingEngine(wrong))
        return None


def _practised(evidence: CheckedRun, steps: range, factor: float) -> CheckedRun:
    """The evidence of a run, with a program that replays the steps as they were really taken."""
    program = evidence.program
    if program is None:
        raise UsageError(f"{evidence.run.path}: the run has no step graph; its steps have no operators to open")

    def rates(index: int) -> tuple[float, ...]:
        return tuple(rate * (factor if index in steps else 1.0) for rate in program.rates(index))

    return replace(evidence, program=replace(program, rates=rates))


# The forgeries of `tally attack` whose forger can be played in a dispute: it opens what it really computed.

FORGERS: Final[dict[str, Callable[[Path, Path], Trace]]] = {"wrong-rate": higher_rate_trace}


def forger_of(name: str) -> Callable[[Path, Path], Trace]:
    """What makes the trace of a forged run, in a folder for its files; raises `UsageError` for an unknown name."""
    if name not in FORGERS:
        raise UsageError(f"--forger {name}: there are {', '.join(FORGERS)}")
    return FORGERS[name]
