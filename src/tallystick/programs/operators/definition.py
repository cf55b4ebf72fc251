"""An operator: its name, parameters and definition; families of operators, and the allow-list of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from inspect import Parameter as Argument, signature
from typing import Any, Final, TypeAlias, TypeVar

from tallystick.core.canonical_json import INTEGER_MAX
from tallystick.core.errors import MalformedError
from tallystick.core.tensors import item_size
from tallystick.programs.operators.algebra import Algebra

# An operator: its name, its parameters and its definition; and families of operators.
#
# The signature of a definition is the operator's schema: after the algebra stand the parameters of PyTorch's schema,
# in its order and with its defaults. For each of them a node holds an operand (a value) or an attribute (a constant
# of the program).

Scalar: TypeAlias = bool | int | float
Ints: TypeAlias = tuple[int, ...]
Dtype: TypeAlias = str
"""A safetensors name."""
Attribute: TypeAlias = "Scalar | str | tuple[Scalar, ...] | None"
Definition: TypeAlias = Callable[..., Any]
D = TypeVar("D", bound=Definition)

TENSOR_KINDS: Final = frozenset({"Tensor", "Tensor?", "Tensor[]", "Tensor?[]"})
ATTRIBUTE_KINDS: Final = frozenset({"int", "int[]", "float", "float[]", "bool", "bool[]", "Scalar", "str", "dtype"})
ANNOTATIONS: Final[Mapping[str, str]] = {
    "V": "Tensor",
    "Sequence[V]": "Tensor[]",
    "Sequence[V | None]": "Tensor?[]",
    "int": "int",
    "Ints": "int[]",
    "float": "float",
    "tuple[float, ...]": "float[]",
    "bool": "bool",
    "tuple[bool, ...]": "bool[]",
    "Scalar": "Scalar",
    "str": "str",
    "Dtype": "dtype",
}
"""The kind of a parameter by its annotation in a definition; ` | None` after it makes it optional."""
REQUIRED: Final = Argument.empty
"""The default of a parameter that has none."""


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
    default: Any = REQUIRED

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

    def operator(self, name: str, meaning: str, exactness: Exactness, /, **kinds: str) -> Callable[[D], D]:
        """A decorator that adds a definition under `name`; several of them give one definition several names.

        `kinds` states the kinds of parameters by name where the annotation leaves a choice, as `V | Scalar` does.
        """

        def added(define: D) -> D:
            assert name not in self.operators, f"{name} is described twice"
            self.operators[name] = Operator(name, _parameters(define, kinds), meaning, exactness, define)
            return define

        return added


def _parameters(define: Definition, kinds: Mapping[str, str]) -> tuple[Parameter, ...]:
    _, *arguments = signature(define).parameters.values()
    assert kinds.keys() <= {each.name for each in arguments}, f"{define} lacks some of {sorted(kinds)}"
    return tuple(Parameter(each.name, kinds.get(each.name) or _kind(each), each.default) for each in arguments)


def _kind(argument: Argument) -> str:
    plain = str(argument.annotation).removesuffix(" | None")
    assert plain in ANNOTATIONS, f"{argument} is of no known kind"
    return ANNOTATIONS[plain] + ("?" if plain != argument.annotation else "")


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
        _log_softmax.default _log_softmax_backward_data.default _safe_softmax.default _softmax.default
        _softmax_backward_data.default elu.default elu_backward.default gelu.default gelu_backward.default glu.default
        glu_backward.default hardsigmoid.default hardsigmoid_backward.default hardswish.default
        hardswish_backward.default hardtanh.default hardtanh_backward.default leaky_relu.default
        leaky_relu_backward.default log_sigmoid.default log_sigmoid_backward.default log_sigmoid_forward.default
        log_softmax.int mish.default mish_backward.default relu.default relu6.default sigmoid_backward.default
        silu.default silu_backward.default softmax.int softplus.default softplus_backward.default tanh_backward.default
        threshold.default threshold_backward.default
    """,
    "tallystick.programs.operators.aten.attention": """
        _scaled_dot_product_attention_math.default _scaled_dot_product_flash_attention_for_cpu.default
        _scaled_dot_product_flash_attention_for_cpu_backward.default scaled_dot_product_attention.default
    """,
    "tallystick.programs.operators.aten.batch_norm": """
        _native_batch_norm_legit.default _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional.default
        _native_batch_norm_legit_no_training.default batch_norm.default group_norm.default native_batch_norm.default
        native_batch_norm_backward.default native_group_norm.default native_group_norm_backward.default
    """,
    "tallystick.programs.operators.aten.comparison": """
        __and__.Scalar __and__.Tensor __or__.Scalar __or__.Tensor __xor__.Scalar __xor__.Tensor bitwise_and.Scalar
        bitwise_and.Tensor bitwise_not.default bitwise_or.Scalar bitwise_or.Tensor bitwise_xor.Scalar bitwise_xor.Tensor
        clamp.Tensor clamp.default clamp_max.Tensor clamp_max.default clamp_min.Tensor clamp_min.default eq.Scalar
        eq.Tensor ge.Scalar ge.Tensor gt.Scalar gt.Tensor isfinite.default isinf.default isnan.default le.Scalar
        le.Tensor logical_and.default logical_not.default logical_or.default logical_xor.default lt.Scalar lt.Tensor
        masked_fill.Scalar masked_fill.Tensor max.other maximum.default min.other minimum.default nan_to_num.default
        ne.Scalar ne.Tensor where.Scalar where.ScalarOther where.ScalarSelf where.self
    """,
    "tallystick.programs.operators.aten.contraction": """
        _grouped_mm.default addmm.default addmv.default baddbmm.default bmm.default dot.default histc.default
        linear.default matmul.default mm.default mv.default vdot.default
    """,
    "tallystick.programs.operators.aten.convolution": """
        conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding
        conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input convolution.default
        convolution_backward.default
    """,
    "tallystick.programs.operators.aten.creation": """
        arange.default arange.start arange.start_step empty.memory_format empty_like.default eye.default eye.m
        fill.Scalar fill.Tensor full.default full_like.default linspace.default new_empty.default new_full.default
        new_ones.default new_zeros.default ones.default ones_like.default scalar_tensor.default zero.default
        zeros.default zeros_like.default
    """,
    "tallystick.programs.operators.aten.elementwise": """
        abs.default add.Scalar add.Tensor addcdiv.default addcmul.default ceil.default cos.default div.Scalar
        div.Scalar_mode div.Tensor div.Tensor_mode erf.default exp.default exp2.default expm1.default floor.default
        floor_divide.Scalar floor_divide.default fmod.Scalar fmod.Tensor lerp.Scalar lerp.Tensor log.default
        log10.default log1p.default log2.default mul.Scalar mul.Tensor neg.default pow.Scalar pow.Tensor_Scalar
        pow.Tensor_Tensor reciprocal.default remainder.Scalar remainder.Scalar_Tensor remainder.Tensor round.default
        rsqrt.default rsub.Scalar rsub.Tensor sgn.default sigmoid.default sign.default sin.default
        special_xlog1py.default sqrt.default square.default sub.Scalar sub.Tensor tan.default tanh.default trunc.default
        xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor
    """,
    "tallystick.programs.operators.aten.embedding": """
        _embedding_bag.default _embedding_bag_backward.default _embedding_bag_dense_backward.default
        _embedding_bag_forward_only.default _embedding_bag_per_sample_weights_backward.default embedding.default
        embedding_dense_backward.default
    """,
    "tallystick.programs.operators.aten.indexing": """
        _unsafe_index.Tensor _unsafe_index_put.default argsort.default argsort.stable diagonal.default
        diagonal_backward.default diff.default gather.default index.Tensor index_add.default index_copy.default
        index_fill.int_Scalar index_fill.int_Tensor index_put.default index_select.default one_hot.default scatter.src
        scatter.value scatter_add.default sort.default sort.stable take_along_dim.default topk.default tril.default
        triu.default
    """,
    "tallystick.programs.operators.aten.joining": """
        cat.default chunk.default constant_pad_nd.default hstack.default meshgrid.default meshgrid.indexing
        narrow.default pad.default repeat.default repeat_interleave.self_int roll.default select.int
        select_backward.default select_scatter.default slice.Tensor slice_backward.default slice_scatter.default
        split.Tensor split.sizes split_with_sizes.default stack.default tile.default unbind.int unfold.default
        unfold_backward.default unsafe_chunk.default unsafe_split.Tensor unsafe_split_with_sizes.default vstack.default
    """,
    "tallystick.programs.operators.aten.loss": """
        binary_cross_entropy.default binary_cross_entropy_backward.default binary_cross_entropy_with_logits.default
        cross_entropy_loss.default huber_loss.default huber_loss_backward.default l1_loss.default mse_loss.default
        mse_loss_backward.default nll_loss2d_backward.default nll_loss2d_forward.default nll_loss_backward.default
        nll_loss_forward.default smooth_l1_loss.default smooth_l1_loss_backward.default
    """,
    "tallystick.programs.operators.aten.movement": """
        _assert_tensor_metadata.default _reshape_alias.default _to_copy.default _unsafe_view.default alias.default
        broadcast_tensors.default broadcast_to.default clone.default contiguous.default copy.default detach.default
        detach_.default expand.default expand_as.default flatten.using_ints flip.default lift.default lift_fresh.default
        lift_fresh_copy.default mT.default movedim.int movedim.intlist new_empty_strided.default numpy_T.default
        permute.default reshape.default reshape_as.default resolve_conj.default resolve_neg.default squeeze.default
        squeeze.dim squeeze.dims swapaxes.default t.default to.device to.dtype to.dtype_layout to.other transpose.int
        type_as.default unflatten.int unsqueeze.default view.default view_as.default
    """,
    "tallystick.programs.operators.aten.normalization": """
        _fused_rms_norm.default _fused_rms_norm_backward.default _weight_norm_interface.default
        _weight_norm_interface_backward.default layer_norm.default native_layer_norm.default
        native_layer_norm_backward.default rms_norm.default
    """,
    "tallystick.programs.operators.aten.pooling": """
        _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default adaptive_avg_pool2d.default
        avg_pool2d.default avg_pool2d_backward.default max_pool2d.default max_pool2d_with_indices.default
        max_pool2d_with_indices_backward.default upsample_nearest1d.default upsample_nearest1d.vec
        upsample_nearest2d.default upsample_nearest2d.vec upsample_nearest2d_backward.default
    """,
    "tallystick.programs.operators.aten.reduction": """
        all.default all.dim all.dims amax.default amin.default aminmax.default any.default any.dim any.dims
        argmax.default argmin.default count_nonzero.default count_nonzero.dim_IntList cumsum.default
        linalg_vector_norm.default logsumexp.default max.default max.dim mean.default mean.dim min.default min.dim
        norm.Scalar norm.ScalarOpt_dim prod.default prod.dim_int std.correction sum.default sum.dim_IntList
        var.correction var.default var.dim var_mean.correction
    """,
    "tallystick.programs.operators.stablehlo.elementwise": """
        abs add and ceil clamp compare convert cosine divide erf exponential exponential_minus_one floor is_finite log
        log_plus_one logistic maximum minimum multiply negate not or power remainder round_nearest_even rsqrt select
        shift_left shift_right_arithmetic shift_right_logical sign sine sqrt subtract tanh xor
    """,
    "tallystick.programs.operators.stablehlo.indexing": "gather scatter sort",
    "tallystick.programs.operators.stablehlo.movement": """
        broadcast_in_dim concatenate constant dynamic_slice dynamic_update_slice iota pad reshape reverse slice
        transpose
    """,
    "tallystick.programs.operators.stablehlo.reduction": """
        convolution dot_general reduce reduce_window select_and_scatter
    """,
    "tallystick.programs.operators.tally.generator": "mcg31_mask mt19937_mask mt19937_move",
    "tallystick.programs.operators.tally.optimizer": "fused_adam",
    "tallystick.programs.operators.tally.sampling": """
        add_gumbel_noise cumulative_weights dropout_mask keep_min_p keep_top_k keep_top_p mark_token philox_uniform
        repetition_penalty scale_logits select_largest select_token softmax_weights
    """,
}
"""The operators that a module defines, without the dialect, which is the folder of the module."""
HOMES: Final[Mapping[str, str]] = {
    f"{module.split('.')[-2]}.{name}": module for module, names in FAMILIES.items() for name in names.split()
}
"""The module by operator name."""


# The allow-list: every operator that a graph may hold, by name; a family module is imported when one of its operators
# is first used.


class AllowList(Mapping[str, Operator]):
    """All operators by sorted name; a look-up loads the module that defines the operator, listing names loads none."""

    def __getitem__(self, name: str) -> Operator:
        """The operator of this name; raises `KeyError` for one that is not listed."""
        return _imported(name)

    def __iter__(self) -> Iterator[str]:
        """The names, sorted."""
        return iter(sorted(HOMES))

    def __len__(self) -> int:
        """How many there are."""
        return len(HOMES)


@cache
def _imported(name: str) -> Operator:
    # Cached, because a graph of a thousand nodes asks several times for each; there are no more than are listed.
    family: Family = import_module(HOMES[name]).FAMILY
    return family.operators[name]


OPERATORS: Final = AllowList()


def operator(name: str) -> Operator:
    """The operator of this name; raises `MalformedError` if it is not on the allow-list."""
    if name not in HOMES:
        raise MalformedError(f"operator {name[:80]!r} is not on the allow-list")
    return OPERATORS[name]
