"""PyTorch models and training steps as graphs: `import tallystick.torch`.

captured = tallystick.torch.capture(model, example_inputs)
step = tallystick.torch.capture_training_step(model, loss, optimizer, batch)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tallystick.frameworks.torch.capture.model import CapturedModel as Captured
    from tallystick.frameworks.torch.capture.model import capture as capture
    from tallystick.frameworks.torch.capture.named_dimensions import capture_template as capture_template
    from tallystick.frameworks.torch.capture.training_step import CapturedStep as CapturedStep
    from tallystick.frameworks.torch.capture.training_step import capture_recipe_step as capture_recipe_step
    from tallystick.frameworks.torch.capture.training_step import capture_training_step as capture_training_step
    from tallystick.frameworks.torch.engine import TorchEngine as TorchEngine
    from tallystick.frameworks.torch.randomness import explicit_randomness as explicit_randomness
    from tallystick.frameworks.torch.randomness import seed_tensor as seed_tensor
    from tallystick.frameworks.torch.state import from_tensor as from_tensor
    from tallystick.frameworks.torch.state import to_tensor as to_tensor

__all__ = [
    "Captured",
    "CapturedStep",
    "TorchEngine",
    "capture",
    "capture_recipe_step",
    "capture_template",
    "capture_training_step",
    "explicit_randomness",
    "from_tensor",
    "seed_tensor",
    "to_tensor",
]


def __getattr__(name: str) -> Any:
    """Load PyTorch only when something that needs it is asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tallystick.frameworks.torch import engine, randomness, state
    from tallystick.frameworks.torch.capture import model as capture
    from tallystick.frameworks.torch.capture import named_dimensions, training_step

    modules = (capture, engine, named_dimensions, randomness, state, training_step)
    return next(getattr(module, name) for module in modules if hasattr(module, name))
