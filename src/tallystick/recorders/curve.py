"""Draws the loss curve of a run as a picture beside its records."""

from __future__ import annotations

from tallystick.plotting import LIGHT, dress, new_figure, write_png
from tallystick.store.log import read_lines
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import StepRecord, read_record


def draw_losses(run: RunDirectory) -> None:
    """Write `loss.png`: the recorded loss in nats over the steps, without losses that are not finite."""
    records = (read_record(line, "transcript.jsonl") for line in read_lines(run.transcript_path))
    steps = [record for record in records if isinstance(record, StepRecord)]
    finite = [(step.index, step.loss) for step in steps if not isinstance(step.loss, str)]
    figure = new_figure(7, 3.5)
    axes = figure.subplots()
    axes.plot([index for index, _ in finite], [loss for _, loss in finite], linewidth=1.4, color=LIGHT.good)
    axes.set(xlabel="step", ylabel="loss (nats)")
    dress(axes, "Recorded loss")
    write_png(figure, run.path / "loss.png")
