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
    from tallystick.frameworks.torch.generation.decode_template import (
        capture_decode_template as capture_decode_template,
    )
    from tallystick.frameworks.torch.generation.decode_template import verification_binding as verification_binding
    from tallystick.frameworks.torch.generation.decoding import capture_decode as capture_decode
    from tallystick.frameworks.torch.generation.decoding import capture_prefill as capture_prefill
    from tallystick.frameworks.torch.generation.decoding import model_state as model_state
    from tallystick.frameworks.torch.generation.graph_language_model import GraphLanguageModel as GraphLanguageModel
    from tallystick.frameworks.torch.generation.graph_language_model import bound_passes as bound_passes
    from tallystick.frameworks.torch.generation.graph_language_model import captured_passes as captured_passes
    from tallystick.frameworks.torch.generation.own_capture import DecodeProgram as DecodeProgram
    from tallystick.frameworks.torch.generation.verification_graph import verification_graph as verification_graph
    from tallystick.frameworks.torch.randomness import explicit_randomness as explicit_randomness
    from tallystick.frameworks.torch.randomness import seed_tensor as seed_tensor
    from tallystick.frameworks.torch.tensors import from_tensor as from_tensor
    from tallystick.frameworks.torch.tensors import to_tensor as to_tensor
    from tallystick.frameworks.torch.training.recipe_step import capture_recipe_step as capture_recipe_step

HOMES = {
    "CapturedModel": "tallystick.frameworks.torch.capture.model",
    "CapturedStep": "tallystick.frameworks.torch.capture.captured_step",
    "DecodeProgram": "tallystick.frameworks.torch.generation.own_capture",
    "GraphLanguageModel": "tallystick.frameworks.torch.generation.graph_language_model",
    "TorchEngine": "tallystick.frameworks.torch.engine",
    "bound_passes": "tallystick.frameworks.torch.generation.graph_language_model",
    "capture": "tallystick.frameworks.torch.capture.model",
    "capture_decode": "tallystick.frameworks.torch.generation.decoding",
    "capture_decode_template": "tallystick.frameworks.torch.generation.decode_template",
    "capture_prefill": "tallystick.frameworks.torch.generation.decoding",
    "capture_recipe_step": "tallystick.frameworks.torch.training.recipe_step",
    "capture_template": "tallystick.frameworks.torch.capture.named_dimensions",
    "capture_training_step": "tallystick.frameworks.torch.capture.training_step",
    "captured_passes": "tallystick.frameworks.torch.generation.graph_language_model",
    "explicit_randomness": "tallystick.frameworks.torch.randomness",
    "from_tensor": "tallystick.frameworks.torch.tensors",
    "model_state": "tallystick.frameworks.torch.generation.decoding",
    "seed_tensor": "tallystick.frameworks.torch.randomness",
    "to_tensor": "tallystick.frameworks.torch.tensors",
    "verification_binding": "tallystick.frameworks.torch.generation.decode_template",
    "verification_graph": "tallystick.frameworks.torch.generation.verification_graph",
}
__all__ = [
    "CapturedModel",
    "CapturedStep",
    "DecodeProgram",
    "GraphLanguageModel",
    "TorchEngine",
    "bound_passes",
    "capture",
    "capture_decode",
    "capture_decode_template",
    "capture_prefill",
    "capture_recipe_step",
    "capture_template",
    "capture_training_step",
    "captured_passes",
    "explicit_randomness",
    "from_tensor",
    "model_state",
    "seed_tensor",
    "to_tensor",
    "verification_binding",
    "verification_graph",
]
__getattr__, __dir__ = lazy(__name__, HOMES)
