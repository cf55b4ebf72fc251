"""PyTorch models and training steps as graphs: `import tallystick.torch`.

captured = tallystick.torch.capture(model, example_inputs)
step = tallystick.torch.capture_training_step(model, loss, optimizer, batch)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.lazy import lazy

if TYPE_CHECKING:
    from tallystick.frameworks.torch.capture.captured_step import CapturedStep as CapturedStep
    from tallystick.frameworks.torch.capture.model import CapturedModel as CapturedModel, capture as capture
    from tallystick.frameworks.torch.capture.named_dimensions import capture_template as capture_template
    from tallystick.frameworks.torch.capture.training_step import capture_training_step as capture_training_step
    from tallystick.frameworks.torch.engine import TorchEngine as TorchEngine
    from tallystick.frameworks.torch.generation.decode_template import (
        capture_decode_template as capture_decode_template,
        verification_binding as verification_binding,
    )
    from tallystick.frameworks.torch.generation.decoding import (
        capture_decode as capture_decode,
        capture_prefill as capture_prefill,
        model_state as model_state,
    )
    from tallystick.frameworks.torch.generation.graph_language_model import (
        GraphLanguageModel as GraphLanguageModel,
        bound_passes as bound_passes,
        captured_passes as captured_passes,
    )
    from tallystick.frameworks.torch.generation.own_capture import DecodeProgram as DecodeProgram
    from tallystick.frameworks.torch.generation.verification_graph import verification_graph as verification_graph
    from tallystick.frameworks.torch.graph_bounds import GraphBounds as GraphBounds, TensorBound as TensorBound
    from tallystick.frameworks.torch.philox_operators import seed_tensor as seed_tensor
    from tallystick.frameworks.torch.randomness import explicit_randomness as explicit_randomness
    from tallystick.frameworks.torch.tensors import from_tensor as from_tensor, to_tensor as to_tensor
    from tallystick.frameworks.torch.training.recipe_step import capture_recipe_step as capture_recipe_step

HOMES = {
    "tallystick.frameworks.torch.capture.captured_step": "CapturedStep",
    "tallystick.frameworks.torch.capture.model": "CapturedModel capture",
    "tallystick.frameworks.torch.capture.named_dimensions": "capture_template",
    "tallystick.frameworks.torch.capture.training_step": "capture_training_step",
    "tallystick.frameworks.torch.engine": "TorchEngine",
    "tallystick.frameworks.torch.generation.decode_template": "capture_decode_template verification_binding",
    "tallystick.frameworks.torch.generation.decoding": "capture_decode capture_prefill model_state",
    "tallystick.frameworks.torch.generation.graph_language_model": "GraphLanguageModel bound_passes captured_passes",
    "tallystick.frameworks.torch.generation.own_capture": "DecodeProgram",
    "tallystick.frameworks.torch.generation.verification_graph": "verification_graph",
    "tallystick.frameworks.torch.graph_bounds": "GraphBounds TensorBound",
    "tallystick.frameworks.torch.philox_operators": "seed_tensor",
    "tallystick.frameworks.torch.randomness": "explicit_randomness",
    "tallystick.frameworks.torch.tensors": "from_tensor to_tensor",
    "tallystick.frameworks.torch.training.recipe_step": "capture_recipe_step",
}
__all__, __getattr__, __dir__ = lazy(__name__, HOMES)
