"""An operator: its name, parameters and definition; families of operators, and the allow-list of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

from tallystick.core.errors import MalformedError
from tallystick.core.tensors import item_size
from tallystick.programs.operators.algebra import Algebra

# An operator: its name, its parameters and its definition; and families of operators.
#
# The parameters are written as in a schema of PyTorch: `Tensor self, Tensor other, *, Scalar alpha=1`. For each
# parameter a node holds an operand (a value) or an attribute (a constant of the program).

Scalar: TypeAlias = bool | int | float
Attribute: TypeAlias = "Scalar | str | tuple[Scalar, ...] | None"
Definition: TypeAlias = Callable[..., Any]
D = TypeVar("D", bound=Definition)

TENSOR_KINDS: Final = frozenset({"Tensor", "Tensor?", "Tensor[]", "Tensor?[]"})
ATTRIBUTE_KINDS: Final = frozenset({"int", "int[]", "float", "float[]", "bool", "bool[]", "Scalar", "str", "dtype"})
_PARAMETER: Final = re.compile(r"(?P<kind>[A-Za-z]+(\?\[\]|\[\]\?|\[\]|\?)?) (?P<name>\w+)(=(?P<default>.+))?")
INTEGER_MAX: Final = 2**53 - 1


class Exactness(StrEnum):
    """How the results of an honest evaluation may differ from the exact ones."""

    MOVES = "moves data"
    EXACT = "exact"
    ROUNDS = "rounds once"
    ACCUMULATES = "accumulates"
    LIBRARY = "library function"
    COMPOSITE = "composite"


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operator; `kind` is one of `TENSOR_KINDS`, or of `ATTRIBUTE_KINDS` with `?` if optional."""

    name: str
    kind: str
    default: str | None = None

    @property
    def is_operand(self) -> bool:
        """Whether nodes hold a value for it, and not a constant of the program."""
        return self.kind in TENSOR_KINDS

    def check(self, attribute: Attribute) -> None:
        """Raise `MalformedError` unless `attribute` has this parameter's kind."""
        if not _has_kind(attribute, self.kind):
            raise MalformedError(f"{self.name} is {attribute!r:.60}, no {self.kind}")


@dataclass(frozen=True)
class Operator:
    """One operator of the allow-list.

    `meaning` describes it in one line. `define` is the definition: a function of an algebra and of the parameters by
    name that returns one value, or a tuple of values and `None`s.
    """

    name: str
    parameters: tuple[Parameter, ...]
    meaning: str
    exactness: Exactness
    define: Definition

    @property
    def dialect(self) -> str:
        """`aten`, `stablehlo` or `tally`."""
        return self.name.partition(".")[0]

    def read(self, algebra: Algebra[Any], arguments: Mapping[str, Any]) -> tuple[Any, ...]:
        """The results in one algebra; `arguments` gives every parameter its value or attribute.

        Raises `MalformedError` if operands or attributes do not fit together.
        """
        results = self.define(algebra, **arguments)
        return results if isinstance(results, tuple) else (results,)


@dataclass
class Family:
    """Operators that are defined in one file."""

    operators: dict[str, Operator] = field(default_factory=dict)

    def operator(self, name: str, parameters: str, meaning: str, exactness: Exactness) -> Callable[[D], D]:
        """A decorator that adds a definition under `name`; several of them give one definition several names."""

        def added(define: D) -> D:
            assert name not in self.operators, f"{name} is described twice"
            self.operators[name] = Operator(name, parse_parameters(parameters), meaning, exactness, define)
            return define

        return added


def parse_parameters(text: str) -> tuple[Parameter, ...]:
    """The parameters in PyTorch's notation; `*` is skipped."""
    parts = [part.strip() for part in re.split(r",\s*(?![^\[]*\])", text)]
    return tuple(_parse_parameter(part) for part in parts if part not in {"", "*"})


def _parse_parameter(text: str) -> Parameter:
    found = _PARAMETER.fullmatch(text)
    assert found is not None, f"{text!r} is no parameter"
    return Parameter(found["name"], found["kind"], found["default"])


def _has_kind(attribute: Attribute, kind: str) -> bool:
    if kind.endswith("?"):
        return attribute is None or _has_kind(attribute, kind[:-1])
    if kind.endswith("[]"):
        return isinstance(attribute, tuple) and all(_has_kind(item, kind[:-2]) for item in attribute)
    return _SCALAR_CHECKS[kind](attribute)


def _is_dtype(attribute: Attribute) -> bool:
    try:
        return isinstance(attribute, str) and item_size(attribute) > 0
    except MalformedError:
        return False


def _is_int(attribute: Attribute) -> bool:
    return isinstance(attribute, int) and not isinstance(attribute, bool) and abs(attribute) <= INTEGER_MAX


_SCALAR_CHECKS: Final[Mapping[str, Callable[[Attribute], bool]]] = {
    "int": _is_int,
    "float": lambda attribute: isinstance(attribute, float),
    "bool": lambda attribute: isinstance(attribute, bool),
    "str": lambda attribute: isinstance(attribute, str),
    "Scalar": lambda attribute: isinstance(attribute, bool | float) or _is_int(attribute),
    "dtype": _is_dtype,
}


# Which module defines which operator, so that a verifier loads only the modules it needs.
#
# A family that is not listed here is not on the allow-list. A test compares the table with the modules.

FAMILIES: Final[Mapping[str, str]] = {
    "tallystick.programs.operators.aten.activation": """
        aten._log_softmax.default aten._log_softmax_backward_data.default aten._safe_softmax.default
        aten._softmax.default aten._softmax_backward_data.default aten.elu.default aten.elu_backward.default
        aten.gelu.default aten.gelu_backward.default aten.glu.default aten.glu_backward.default
        aten.hardsigmoid.default aten.hardsigmoid_backward.default aten.hardswish.default
        aten.hardswish_backward.default aten.hardtanh.default aten.hardtanh_backward.default
        aten.leaky_relu.default aten.leaky_relu_backward.default aten.log_sigmoid.default
        aten.log_sigmoid_backward.default aten.log_sigmoid_forward.default aten.log_softmax.int
        aten.mish.default aten.mish_backward.default aten.relu.default aten.relu6.default
        aten.sigmoid_backward.default aten.silu.default aten.silu_backward.default aten.softmax.int
        aten.softplus.default aten.softplus_backward.default aten.tanh_backward.default aten.threshold.default
        aten.threshold_backward.default
    """,
    "tallystick.programs.operators.aten.attention": """
        aten._scaled_dot_product_attention_math.default
        aten._scaled_dot_product_flash_attention_for_cpu.default
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        aten.scaled_dot_product_attention.default
    """,
    "tallystick.programs.operators.aten.batch_norm": """
        aten._native_batch_norm_legit.default aten._native_batch_norm_legit.no_stats
        aten._native_batch_norm_legit_functional.default aten._native_batch_norm_legit_no_training.default
        aten.batch_norm.default aten.group_norm.default aten.native_batch_norm.default
        aten.native_batch_norm_backward.default aten.native_group_norm.default
        aten.native_group_norm_backward.default
    """,
    "tallystick.programs.operators.aten.comparison": """
        aten.__and__.Scalar aten.__and__.Tensor aten.__or__.Scalar aten.__or__.Tensor aten.__xor__.Scalar
        aten.__xor__.Tensor aten.bitwise_and.Scalar aten.bitwise_and.Tensor aten.bitwise_not.default
        aten.bitwise_or.Scalar aten.bitwise_or.Tensor aten.bitwise_xor.Scalar aten.bitwise_xor.Tensor
        aten.clamp.Tensor aten.clamp.default aten.clamp_max.Tensor aten.clamp_max.default
        aten.clamp_min.Tensor aten.clamp_min.default aten.eq.Scalar aten.eq.Tensor aten.ge.Scalar
        aten.ge.Tensor aten.gt.Scalar aten.gt.Tensor aten.isfinite.default aten.isinf.default
        aten.isnan.default aten.le.Scalar aten.le.Tensor aten.logical_and.default aten.logical_not.default
        aten.logical_or.default aten.logical_xor.default aten.lt.Scalar aten.lt.Tensor aten.masked_fill.Scalar
        aten.masked_fill.Tensor aten.max.other aten.maximum.default aten.min.other aten.minimum.default
        aten.nan_to_num.default aten.ne.Scalar aten.ne.Tensor aten.where.Scalar aten.where.ScalarOther
        aten.where.ScalarSelf aten.where.self
    """,
    "tallystick.programs.operators.aten.contraction": """
        aten._grouped_mm.default aten.addmm.default aten.addmv.default aten.baddbmm.default aten.bmm.default
        aten.dot.default aten.histc.default aten.linear.default aten.matmul.default aten.mm.default
        aten.mv.default aten.vdot.default
    """,
    "tallystick.programs.operators.aten.convolution": """
        aten.conv1d.default aten.conv1d.padding aten.conv2d.default aten.conv2d.padding aten.conv3d.default
        aten.conv3d.padding aten.conv_transpose1d.default aten.conv_transpose2d.input
        aten.conv_transpose3d.input aten.convolution.default aten.convolution_backward.default
    """,
    "tallystick.programs.operators.aten.creation": """
        aten.arange.default aten.arange.start aten.arange.start_step aten.empty.memory_format
        aten.empty_like.default aten.eye.default aten.eye.m aten.fill.Scalar aten.fill.Tensor
        aten.full.default aten.full_like.default aten.linspace.default aten.new_empty.default
        aten.new_full.default aten.new_ones.default aten.new_zeros.default aten.ones.default
        aten.ones_like.default aten.scalar_tensor.default aten.zero.default aten.zeros.default
        aten.zeros_like.default
    """,
    "tallystick.programs.operators.aten.elementwise": """
        aten.abs.default aten.add.Scalar aten.add.Tensor aten.addcdiv.default aten.addcmul.default
        aten.ceil.default aten.cos.default aten.div.Scalar aten.div.Scalar_mode aten.div.Tensor
        aten.div.Tensor_mode aten.erf.default aten.exp.default aten.exp2.default aten.expm1.default
        aten.floor.default aten.floor_divide.Scalar aten.floor_divide.default aten.fmod.Scalar
        aten.fmod.Tensor aten.lerp.Scalar aten.lerp.Tensor aten.log.default aten.log10.default
        aten.log1p.default aten.log2.default aten.mul.Scalar aten.mul.Tensor aten.neg.default aten.pow.Scalar
        aten.pow.Tensor_Scalar aten.pow.Tensor_Tensor aten.reciprocal.default aten.remainder.Scalar
        aten.remainder.Scalar_Tensor aten.remainder.Tensor aten.round.default aten.rsqrt.default
        aten.rsub.Scalar aten.rsub.Tensor aten.sgn.default aten.sigmoid.default aten.sign.default
        aten.sin.default aten.special_xlog1py.default aten.sqrt.default aten.square.default aten.sub.Scalar
        aten.sub.Tensor aten.tan.default aten.tanh.default aten.trunc.default aten.xlogy.Scalar_Other
        aten.xlogy.Scalar_Self aten.xlogy.Tensor
    """,
    "tallystick.programs.operators.aten.embedding": """
        aten._embedding_bag.default aten._embedding_bag_backward.default
        aten._embedding_bag_dense_backward.default aten._embedding_bag_forward_only.default
        aten._embedding_bag_per_sample_weights_backward.default aten.embedding.default
        aten.embedding_dense_backward.default
    """,
    "tallystick.programs.operators.aten.indexing": """
        aten._unsafe_index.Tensor aten._unsafe_index_put.default aten.argsort.default aten.argsort.stable
        aten.diagonal.default aten.diagonal_backward.default aten.diff.default aten.gather.default
        aten.index.Tensor aten.index_add.default aten.index_copy.default aten.index_fill.int_Scalar
        aten.index_fill.int_Tensor aten.index_put.default aten.index_select.default aten.one_hot.default
        aten.scatter.src aten.scatter.value aten.scatter_add.default aten.sort.default aten.sort.stable
        aten.take_along_dim.default aten.topk.default aten.tril.default aten.triu.default
    """,
    "tallystick.programs.operators.aten.joining": """
        aten.cat.default aten.chunk.default aten.constant_pad_nd.default aten.hstack.default
        aten.meshgrid.default aten.meshgrid.indexing aten.narrow.default aten.pad.default aten.repeat.default
        aten.repeat_interleave.self_int aten.roll.default aten.select.int aten.select_backward.default
        aten.select_scatter.default aten.slice.Tensor aten.slice_backward.default aten.slice_scatter.default
        aten.split.Tensor aten.split.sizes aten.split_with_sizes.default aten.stack.default aten.tile.default
        aten.unbind.int aten.unfold.default aten.unfold_backward.default aten.unsafe_chunk.default
        aten.unsafe_split.Tensor aten.unsafe_split_with_sizes.default aten.vstack.default
    """,
    "tallystick.programs.operators.aten.loss": """
        aten.binary_cross_entropy.default aten.binary_cross_entropy_backward.default
        aten.binary_cross_entropy_with_logits.default aten.cross_entropy_loss.default aten.huber_loss.default
        aten.huber_loss_backward.default aten.l1_loss.default aten.mse_loss.default
        aten.mse_loss_backward.default aten.nll_loss2d_backward.default aten.nll_loss2d_forward.default
        aten.nll_loss_backward.default aten.nll_loss_forward.default aten.smooth_l1_loss.default
        aten.smooth_l1_loss_backward.default
    """,
    "tallystick.programs.operators.aten.movement": """
        aten._assert_tensor_metadata.default aten._reshape_alias.default aten._to_copy.default
        aten._unsafe_view.default aten.alias.default aten.broadcast_tensors.default aten.broadcast_to.default
        aten.clone.default aten.contiguous.default aten.copy.default aten.detach.default aten.detach_.default
        aten.expand.default aten.expand_as.default aten.flatten.using_ints aten.flip.default aten.lift.default
        aten.lift_fresh.default aten.lift_fresh_copy.default aten.mT.default aten.movedim.int
        aten.movedim.intlist aten.new_empty_strided.default aten.numpy_T.default aten.permute.default
        aten.reshape.default aten.reshape_as.default aten.resolve_conj.default aten.resolve_neg.default
        aten.squeeze.default aten.squeeze.dim aten.squeeze.dims aten.swapaxes.default aten.t.default
        aten.to.device aten.to.dtype aten.to.dtype_layout aten.to.other aten.transpose.int
        aten.type_as.default aten.unflatten.int aten.unsqueeze.default aten.view.default aten.view_as.default
    """,
    "tallystick.programs.operators.aten.normalization": """
        aten._fused_rms_norm.default aten._fused_rms_norm_backward.default aten._weight_norm_interface.default
        aten._weight_norm_interface_backward.default aten.layer_norm.default aten.native_layer_norm.default
        aten.native_layer_norm_backward.default aten.rms_norm.default
    """,
    "tallystick.programs.operators.aten.pooling": """
        aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool2d_backward.default
        aten.adaptive_avg_pool2d.default aten.avg_pool2d.default aten.avg_pool2d_backward.default
        aten.max_pool2d.default aten.max_pool2d_with_indices.default
        aten.max_pool2d_with_indices_backward.default aten.upsample_nearest1d.default
        aten.upsample_nearest1d.vec aten.upsample_nearest2d.default aten.upsample_nearest2d.vec
        aten.upsample_nearest2d_backward.default
    """,
    "tallystick.programs.operators.aten.reduction": """
        aten.all.default aten.all.dim aten.all.dims aten.amax.default aten.amin.default aten.aminmax.default
        aten.any.default aten.any.dim aten.any.dims aten.argmax.default aten.argmin.default
        aten.count_nonzero.default aten.count_nonzero.dim_IntList aten.cumsum.default
        aten.linalg_vector_norm.default aten.logsumexp.default aten.max.default aten.max.dim aten.mean.default
        aten.mean.dim aten.min.default aten.min.dim aten.norm.Scalar aten.norm.ScalarOpt_dim aten.prod.default
        aten.prod.dim_int aten.std.correction aten.sum.default aten.sum.dim_IntList aten.var.correction
        aten.var.default aten.var.dim aten.var_mean.correction
    """,
    "tallystick.programs.operators.stablehlo.elementwise": """
        stablehlo.abs stablehlo.add stablehlo.and stablehlo.ceil stablehlo.clamp stablehlo.compare
        stablehlo.convert stablehlo.cosine stablehlo.divide stablehlo.erf stablehlo.exponential
        stablehlo.exponential_minus_one stablehlo.floor stablehlo.is_finite stablehlo.log
        stablehlo.log_plus_one stablehlo.logistic stablehlo.maximum stablehlo.minimum stablehlo.multiply
        stablehlo.negate stablehlo.not stablehlo.or stablehlo.power stablehlo.remainder
        stablehlo.round_nearest_even stablehlo.rsqrt stablehlo.select stablehlo.shift_left
        stablehlo.shift_right_arithmetic stablehlo.shift_right_logical stablehlo.sign stablehlo.sine
        stablehlo.sqrt stablehlo.subtract stablehlo.tanh stablehlo.xor
    """,
    "tallystick.programs.operators.stablehlo.indexing": "stablehlo.gather stablehlo.scatter stablehlo.sort",
    "tallystick.programs.operators.stablehlo.movement": """
        stablehlo.broadcast_in_dim stablehlo.concatenate stablehlo.constant stablehlo.dynamic_slice
        stablehlo.dynamic_update_slice stablehlo.iota stablehlo.pad stablehlo.reshape stablehlo.reverse
        stablehlo.slice stablehlo.transpose
    """,
    "tallystick.programs.operators.stablehlo.reduction": """
        stablehlo.convolution stablehlo.dot_general stablehlo.reduce stablehlo.reduce_window
        stablehlo.select_and_scatter
    """,
    "tallystick.programs.operators.tally.generator": "tally.mcg31_mask tally.mt19937_mask tally.mt19937_move",
    "tallystick.programs.operators.tally.optimizer": "tally.fused_adam",
    "tallystick.programs.operators.tally.sampling": """
        tally.add_gumbel_noise tally.cumulative_weights tally.dropout_mask tally.keep_min_p tally.keep_top_k
        tally.keep_top_p tally.mark_token tally.philox_uniform tally.repetition_penalty tally.scale_logits
        tally.select_largest tally.select_token tally.softmax_weights
    """,
}
"""The names of the operators by module."""
HOMES: Final[Mapping[str, str]] = {name: module for module, names in FAMILIES.items() for name in names.split()}
"""The module by operator name."""


# The allow-list: every operator that a graph may hold, by name; a family is loaded at the first use of one of it.


class AllowList(Mapping[str, Operator]):
    """All operators by sorted name; a look-up loads the module that defines the operator, listing names loads none."""

    def __getitem__(self, name: str) -> Operator:
        """The operator of this name; raises `KeyError` for one that is not listed."""
        return _found(name)

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(sorted(HOMES))

    def __len__(self) -> int:
        """How many there are."""
        return len(HOMES)


@cache
def _found(name: str) -> Operator:
    """Kept, because a graph of a thousand nodes asks several times for each; there are no more than are listed."""
    family: Family = import_module(HOMES[name]).FAMILY
    return family.operators[name]


OPERATORS: Final = AllowList()


def operator(name: str) -> Operator:
    """The operator of this name; raises `MalformedError` if it is not on the allow-list."""
    found = OPERATORS.get(name)
    if found is None:
        raise MalformedError(f"operator {name[:80]!r} is not on the allow-list")
    return found
