"""PyTorch models and training steps as graphs: `import tallystick.torch`.

captured = tallystick.torch.capture(model, example_inputs)
step = tallystick.torch.capture_training_step(model, loss, optimizer, batch)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.core.lazy import lazy

if TYPE_CHECKING:
    from tallystick.engines.torch.capture.model import (
        CapturedModel as CapturedModel,
        capture as capture,
        capture_template as capture_template,
    )
    from tallystick.engines.torch.capture.step import CapturedStep as CapturedStep
    from tallystick.engines.torch.capture.training_step import capture_training_step as capture_training_step
    from tallystick.engines.torch.engine import TorchEngine as TorchEngine
    from tallystick.engines.torch.generation.decoding import (
        capture_decode as capture_decode,
        capture_decode_template as capture_decode_template,
        capture_prefill as capture_prefill,
        model_state as model_state,
        verification_binding as verification_binding,
    )
    from tallystick.engines.torch.generation.language_models import (
        GraphLanguageModel as GraphLanguageModel,
        bound_passes as bound_passes,
        captured_passes as captured_passes,
    )
    from tallystick.engines.torch.generation.verification_graph import (
        DecodeProgram as DecodeProgram,
        verification_graph as verification_graph,
    )
    from tallystick.engines.torch.graph_bounds import GraphBounds as GraphBounds, TensorBound as TensorBound
    from tallystick.engines.torch.randomness import (
        explicit_randomness as explicit_randomness,
        seed_tensor as seed_tensor,
    )
    from tallystick.engines.torch.tensors import from_tensor as from_tensor, to_tensor as to_tensor
    from tallystick.engines.torch.training.verifier_stack import capture_recipe_step as capture_recipe_step

__getattr__, __dir__ = lazy(__name__)
