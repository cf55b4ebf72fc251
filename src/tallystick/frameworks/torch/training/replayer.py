"""The verifier's trainer, rebuilt from the spec; it reads the committed data."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.commitments.digests import digest
from tallystick.datasets.order import BatchPlan
from tallystick.datasets.samples import Dataset
from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.models import PARAMETERS_MAX
from tallystick.frameworks.torch.training.summaries import Summariser
from tallystick.frameworks.torch.training.trainer import CRASHES, Trainer, first_line
from tallystick.tensors.tensor import Tensor
from tallystick.transcripts.spec import Spec
from tallystick.workloads.plan import classes, micro_batches, projection_seed
from tallystick.workloads.replayer import ReplayedStep


class TorchReplayer:
    """Replays steps with PyTorch on `device`; implements `Replayer`."""

    def __init__(
        self,
        spec: Spec,
        dataset: Dataset,
        plan: BatchPlan,
        device: str | None = None,
        parameters_max: int = PARAMETERS_MAX,
    ) -> None:
        recipe = spec.recipe
        assert recipe is not None  # only a recipe is rebuilt
        self._recipe, self._dataset, self._plan = recipe, dataset, plan
        self._trainer = Trainer(recipe, classes(spec), device, parameters_max)
        self._initial = {name: tensor.copy() for name, tensor in self._trainer.state().items()}
        self._summariser = Summariser(
            recipe.record,
            projection_seed(spec),
            self._trainer.weights(),
            self._trainer.state,
            lambda data: digest("blob", data),
        )

    def initial_state(self) -> Mapping[str, Tensor]:
        """The seeded state before the first step."""
        return self._initial

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`."""
        self._trainer.restore(state)

    def step(self, index: int) -> ReplayedStep:
        """Take step `index`; raises `UnavailableError` if the model of the spec does not run."""
        assert index == self._trainer.index + 1
        try:
            seen = self._trainer.step(micro_batches(self._recipe, self._dataset, self._plan.indices(index)))
        except CRASHES as error:
            raise UnavailableError(f"step {index} does not run here: {first_line(error)}") from error
        return ReplayedStep(seen.loss, seen.gradient_norm, seen.activation, self._summariser.after_step(index))

    def state(self) -> Mapping[str, Tensor]:
        """The full current state; shares memory with the live tensors."""
        return self._trainer.state()
