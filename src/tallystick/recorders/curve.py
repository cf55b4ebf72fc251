"""Draws the loss curve of a run as a picture beside its records."""

from __future__ import annotations

from tallystick.store.log import read_lines
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import StepRecord, read_record


def draw_losses(run: RunDirectory) -> None:
    """Write `loss.png`: the recorded loss in nats over the steps, without losses that are not finite."""
    from matplotlib.figure import Figure

    records = (read_record(line, "transcript.jsonl") for line in read_lines(run.transcript_path))
    steps = [record for record in records if isinstance(record, StepRecord)]
    finite = [(step.index, step.loss) for step in steps if not isinstance(step.loss, str)]
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([index for index, _ in finite], [loss for _, loss in finite], linewidth=1.2, color="#35618f")
    axes.set(xlabel="step", ylabel="loss (nats)", title="Recorded loss")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(run.path / "loss.png", dpi=150)
