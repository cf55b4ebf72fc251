"""Recorders turn a running workload into a transcript."""

from tallystick.recorders.batches import describe_batch
from tallystick.recorders.loop_recorder import OwnLoopRecorder
from tallystick.recorders.own_loop import record_training
from tallystick.recorders.training import TrainingRun, resume, train

__all__ = ["OwnLoopRecorder", "TrainingRun", "describe_batch", "record_training", "resume", "train"]
