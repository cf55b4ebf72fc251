"""PyTorch models and training steps as graphs: `import tallystick.torch`.

captured = tallystick.torch.capture(model, example_inputs)
step = tallystick.torch.capture_training_step(model, loss, optimizer, batch)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy import lazy

if TYPE_CHECKING:
    from tallystick.frameworks.torch.capture.captured_step import CapturedStep as CapturedStep
    from tallystick.frameworks.torch.capture.model import CapturedModel as CapturedModel
    from tallystick.frameworks.torch.capture.model import capture as capture
    from tallystick.frameworks.torch.capture.named_dimensions import capture_template as capture_template
    from tallystick.frameworks.torch.capture.training_step import capture_training_step as capture_training_step
    from tallystick.frameworks.torch.engine import TorchEngine as TorchEngine
    from tallystick.frameworks.torch.generation.graph_language_model import GraphLanguageModel as GraphLanguageModel
    from tallystick.frameworks.torch.generation.graph_language_model import bound_passes as bound_passes
    from tallystick.frameworks.torch.generation.graph_language_model import captured_passes as captured_passes
    from tallystick.frameworks.torch.randomness import explicit_randomness as explicit_randomness
    from tallystick.frameworks.torch.randomness import seed_tensor as seed_tensor
    from tallystick.frameworks.torch.state import from_tensor as from_tensor
    from tallystick.frameworks.torch.state import to_tensor as to_tensor
    from tallystick.frameworks.torch.training.recipe_step import capture_recipe_step as capture_recipe_step

HOMES = {
    "CapturedModel": "tallystick.frameworks.torch.capture.model",
    "CapturedStep": "tallystick.frameworks.torch.capture.captured_step",
    "GraphLanguageModel": "tallystick.frameworks.torch.generation.graph_language_model",
    "TorchEngine": "tallystick.frameworks.torch.engine",
    "bound_passes": "tallystick.frameworks.torch.generation.graph_language_model",
    "capture": "tallystick.frameworks.torch.capture.model",
    "capture_recipe_step": "tallystick.frameworks.torch.training.recipe_step",
    "capture_template": "tallystick.frameworks.torch.capture.named_dimensions",
    "capture_training_step": "tallystick.frameworks.torch.capture.training_step",
    "captured_passes": "tallystick.frameworks.torch.generation.graph_language_model",
    "explicit_randomness": "tallystick.frameworks.torch.randomness",
    "from_tensor": "tallystick.frameworks.torch.state",
    "seed_tensor": "tallystick.frameworks.torch.randomness",
    "to_tensor": "tallystick.frameworks.torch.state",
}
__all__ = sorted(HOMES)
__getattr__, __dir__ = lazy(__name__, HOMES)
