"""Which module defines which operator, so that a verifier loads only the modules it needs.

A family that is not listed here is not on the allow-list. A test compares the table with the modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

FAMILIES: Final[Mapping[str, str]] = {
    "tallystick.operators.aten.activation": """
        aten.elu.default aten.elu_backward.default aten.gelu.default aten.gelu_backward.default aten.glu.default
        aten.glu_backward.default aten.hardsigmoid.default aten.hardsigmoid_backward.default
        aten.hardswish.default aten.hardswish_backward.default aten.hardtanh.default
        aten.hardtanh_backward.default aten.leaky_relu.default aten.leaky_relu_backward.default
        aten.log_sigmoid.default aten.log_sigmoid_backward.default aten.log_sigmoid_forward.default
        aten.mish.default aten.mish_backward.default aten.relu.default aten.relu6.default
        aten.sigmoid_backward.default aten.silu.default aten.silu_backward.default aten.softplus.default
        aten.softplus_backward.default aten.tanh_backward.default aten.threshold.default
        aten.threshold_backward.default
    """,
    "tallystick.operators.aten.attention": """
        aten._scaled_dot_product_attention_math.default aten._scaled_dot_product_flash_attention_for_cpu.default
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        aten.scaled_dot_product_attention.default
    """,
    "tallystick.operators.aten.batch_norm": """
        aten._native_batch_norm_legit.default aten._native_batch_norm_legit.no_stats
        aten._native_batch_norm_legit_functional.default aten._native_batch_norm_legit_no_training.default
        aten.batch_norm.default aten.native_batch_norm.default aten.native_batch_norm_backward.default
    """,
    "tallystick.operators.aten.comparison": """
        aten.__and__.Scalar aten.__and__.Tensor aten.__or__.Scalar aten.__or__.Tensor aten.__xor__.Scalar
        aten.__xor__.Tensor aten.bitwise_and.Scalar aten.bitwise_and.Tensor aten.bitwise_not.default
        aten.bitwise_or.Scalar aten.bitwise_or.Tensor aten.bitwise_xor.Scalar aten.bitwise_xor.Tensor
        aten.clamp.Tensor aten.clamp.default aten.clamp_max.Tensor aten.clamp_max.default aten.clamp_min.Tensor
        aten.clamp_min.default aten.eq.Scalar aten.eq.Tensor aten.ge.Scalar aten.ge.Tensor aten.gt.Scalar
        aten.gt.Tensor aten.isfinite.default aten.isinf.default aten.isnan.default aten.le.Scalar aten.le.Tensor
        aten.logical_and.default aten.logical_not.default aten.logical_or.default aten.logical_xor.default
        aten.lt.Scalar aten.lt.Tensor aten.masked_fill.Scalar aten.masked_fill.Tensor aten.max.other
        aten.maximum.default aten.min.other aten.minimum.default aten.nan_to_num.default aten.ne.Scalar
        aten.ne.Tensor aten.where.Scalar aten.where.ScalarOther aten.where.ScalarSelf aten.where.self
    """,
    "tallystick.operators.aten.contraction": """
        aten.addmm.default aten.addmv.default aten.baddbmm.default aten.bmm.default aten.dot.default
        aten.linear.default aten.matmul.default aten.mm.default aten.mv.default aten.vdot.default
    """,
    "tallystick.operators.aten.convolution": """
        aten.conv1d.default aten.conv1d.padding aten.conv2d.default aten.conv2d.padding aten.conv3d.default
        aten.conv3d.padding aten.conv_transpose1d.default aten.conv_transpose2d.input
        aten.conv_transpose3d.input aten.convolution.default aten.convolution_backward.default
    """,
    "tallystick.operators.aten.creation": """
        aten.arange.default aten.arange.start aten.arange.start_step aten.empty.memory_format
        aten.empty_like.default aten.eye.default aten.eye.m aten.fill.Scalar aten.fill.Tensor aten.full.default
        aten.full_like.default aten.linspace.default aten.new_empty.default aten.new_full.default
        aten.new_ones.default aten.new_zeros.default aten.ones.default aten.ones_like.default
        aten.scalar_tensor.default aten.zero.default aten.zeros.default aten.zeros_like.default
    """,
    "tallystick.operators.aten.elementwise": """
        aten.abs.default aten.add.Scalar aten.add.Tensor aten.ceil.default aten.cos.default aten.div.Scalar
        aten.div.Scalar_mode aten.div.Tensor aten.div.Tensor_mode aten.erf.default aten.exp.default
        aten.exp2.default aten.expm1.default aten.floor.default aten.floor_divide.Scalar
        aten.floor_divide.default aten.fmod.Scalar aten.fmod.Tensor aten.log.default aten.log10.default
        aten.log1p.default aten.log2.default aten.mul.Scalar aten.mul.Tensor aten.neg.default aten.pow.Scalar
        aten.pow.Tensor_Scalar aten.pow.Tensor_Tensor aten.reciprocal.default aten.remainder.Scalar
        aten.remainder.Scalar_Tensor aten.remainder.Tensor aten.round.default aten.rsqrt.default
        aten.rsub.Scalar aten.rsub.Tensor aten.sgn.default aten.sigmoid.default aten.sign.default
        aten.sin.default aten.special_xlog1py.default aten.sqrt.default aten.square.default aten.sub.Scalar
        aten.sub.Tensor aten.tan.default aten.tanh.default aten.trunc.default aten.xlogy.Scalar_Other
        aten.xlogy.Scalar_Self aten.xlogy.Tensor
    """,
    "tallystick.operators.aten.embedding": """
        aten.embedding.default aten.embedding_dense_backward.default
    """,
    "tallystick.operators.aten.embedding_bag": """
        aten._embedding_bag.default aten._embedding_bag_backward.default aten._embedding_bag_dense_backward.default
        aten._embedding_bag_forward_only.default aten._embedding_bag_per_sample_weights_backward.default
    """,
    "tallystick.operators.aten.group_norm": """
        aten.group_norm.default aten.native_group_norm.default aten.native_group_norm_backward.default
    """,
    "tallystick.operators.aten.grouping": """
        aten._grouped_mm.default aten.histc.default
    """,
    "tallystick.operators.aten.indexing": """
        aten._unsafe_index.Tensor aten._unsafe_index_put.default aten.diagonal.default
        aten.diagonal_backward.default aten.gather.default aten.index.Tensor aten.index_add.default
        aten.index_copy.default aten.index_fill.int_Scalar aten.index_fill.int_Tensor aten.index_put.default
        aten.index_select.default aten.one_hot.default aten.scatter.src aten.scatter.value
        aten.scatter_add.default aten.take_along_dim.default
    """,
    "tallystick.operators.aten.joining": """
        aten.cat.default aten.chunk.default aten.constant_pad_nd.default aten.hstack.default
        aten.meshgrid.default aten.meshgrid.indexing aten.narrow.default aten.pad.default aten.repeat.default
        aten.repeat_interleave.self_int aten.roll.default aten.select.int aten.select_backward.default
        aten.select_scatter.default aten.slice.Tensor aten.slice_backward.default aten.slice_scatter.default
        aten.split.Tensor aten.split.sizes aten.split_with_sizes.default aten.stack.default aten.tile.default
        aten.unbind.int aten.unfold.default aten.unfold_backward.default aten.unsafe_chunk.default
        aten.unsafe_split.Tensor aten.unsafe_split_with_sizes.default aten.vstack.default
    """,
    "tallystick.operators.aten.loss": """
        aten.binary_cross_entropy.default aten.binary_cross_entropy_backward.default
        aten.binary_cross_entropy_with_logits.default aten.cross_entropy_loss.default aten.huber_loss.default
        aten.huber_loss_backward.default aten.l1_loss.default aten.mse_loss.default
        aten.mse_loss_backward.default aten.nll_loss2d_backward.default aten.nll_loss2d_forward.default
        aten.nll_loss_backward.default aten.nll_loss_forward.default aten.smooth_l1_loss.default
        aten.smooth_l1_loss_backward.default
    """,
    "tallystick.operators.aten.movement": """
        aten._assert_tensor_metadata.default aten._reshape_alias.default aten._to_copy.default
        aten._unsafe_view.default aten.alias.default aten.broadcast_tensors.default aten.broadcast_to.default
        aten.clone.default aten.contiguous.default aten.copy.default aten.detach.default aten.detach_.default
        aten.expand.default aten.expand_as.default aten.flatten.using_ints aten.flip.default aten.lift.default
        aten.lift_fresh.default aten.lift_fresh_copy.default aten.mT.default aten.movedim.int
        aten.movedim.intlist aten.numpy_T.default aten.permute.default aten.reshape.default
        aten.reshape_as.default aten.resolve_conj.default aten.resolve_neg.default aten.squeeze.default
        aten.squeeze.dim aten.squeeze.dims aten.swapaxes.default aten.t.default aten.to.device aten.to.dtype
        aten.to.dtype_layout aten.to.other aten.transpose.int aten.type_as.default aten.unflatten.int
        aten.unsqueeze.default aten.view.default aten.view_as.default
    """,
    "tallystick.operators.aten.normalization": """
        aten._fused_rms_norm.default aten._fused_rms_norm_backward.default aten.layer_norm.default
        aten.native_layer_norm.default aten.native_layer_norm_backward.default aten.rms_norm.default
    """,
    "tallystick.operators.aten.optimizer": """
        aten.addcdiv.default aten.addcmul.default aten.lerp.Scalar aten.lerp.Tensor
    """,
    "tallystick.operators.aten.ordering": """
        aten.argsort.default aten.argsort.stable aten.diff.default aten.sort.default aten.sort.stable
        aten.topk.default aten.tril.default aten.triu.default
    """,
    "tallystick.operators.aten.pooling": """
        aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool2d_backward.default
        aten.adaptive_avg_pool2d.default aten.avg_pool2d.default aten.avg_pool2d_backward.default
        aten.max_pool2d.default aten.max_pool2d_with_indices.default
        aten.max_pool2d_with_indices_backward.default
    """,
    "tallystick.operators.aten.reduction": """
        aten.all.default aten.all.dim aten.all.dims aten.amax.default aten.amin.default aten.aminmax.default
        aten.any.default aten.any.dim aten.any.dims aten.argmax.default aten.argmin.default
        aten.count_nonzero.default aten.count_nonzero.dim_IntList aten.cumsum.default
        aten.linalg_vector_norm.default aten.logsumexp.default aten.max.default aten.max.dim aten.mean.default
        aten.mean.dim aten.min.default aten.min.dim aten.norm.Scalar aten.norm.ScalarOpt_dim aten.prod.default
        aten.prod.dim_int aten.std.correction aten.sum.default aten.sum.dim_IntList aten.var.correction
        aten.var.default aten.var.dim aten.var_mean.correction
    """,
    "tallystick.operators.aten.resampling": """
        aten.upsample_nearest1d.default aten.upsample_nearest1d.vec aten.upsample_nearest2d.default
        aten.upsample_nearest2d.vec aten.upsample_nearest2d_backward.default
    """,
    "tallystick.operators.aten.softmax": """
        aten._log_softmax.default aten._log_softmax_backward_data.default aten._safe_softmax.default
        aten._softmax.default aten._softmax_backward_data.default aten.log_softmax.int aten.softmax.int
    """,
    "tallystick.operators.aten.strided": """
        aten.new_empty_strided.default
    """,
    "tallystick.operators.aten.weight_norm": """
        aten._weight_norm_interface.default aten._weight_norm_interface_backward.default
    """,
    "tallystick.operators.stablehlo.comparison": """
        stablehlo.and stablehlo.compare stablehlo.convert stablehlo.is_finite stablehlo.not stablehlo.or
        stablehlo.select stablehlo.shift_left stablehlo.shift_right_arithmetic stablehlo.shift_right_logical
        stablehlo.xor
    """,
    "tallystick.operators.stablehlo.contraction": """
        stablehlo.convolution stablehlo.dot_general
    """,
    "tallystick.operators.stablehlo.elementwise": """
        stablehlo.abs stablehlo.add stablehlo.ceil stablehlo.clamp stablehlo.cosine stablehlo.divide
        stablehlo.erf stablehlo.exponential stablehlo.exponential_minus_one stablehlo.floor stablehlo.log
        stablehlo.log_plus_one stablehlo.logistic stablehlo.maximum stablehlo.minimum stablehlo.multiply
        stablehlo.negate stablehlo.power stablehlo.remainder stablehlo.round_nearest_even stablehlo.rsqrt
        stablehlo.sign stablehlo.sine stablehlo.sqrt stablehlo.subtract stablehlo.tanh
    """,
    "tallystick.operators.stablehlo.indexing": """
        stablehlo.gather stablehlo.scatter stablehlo.sort
    """,
    "tallystick.operators.stablehlo.movement": """
        stablehlo.broadcast_in_dim stablehlo.concatenate stablehlo.constant stablehlo.dynamic_slice
        stablehlo.dynamic_update_slice stablehlo.iota stablehlo.pad stablehlo.reshape stablehlo.reverse
        stablehlo.slice stablehlo.transpose
    """,
    "tallystick.operators.stablehlo.reduction": """
        stablehlo.reduce stablehlo.reduce_window stablehlo.select_and_scatter
    """,
    "tallystick.operators.tally.generator": """
        tally.mcg31_mask tally.mt19937_mask tally.mt19937_move
    """,
    "tallystick.operators.tally.optimizer": """
        tally.fused_adam
    """,
    "tallystick.operators.tally.random": """
        tally.dropout_mask tally.philox_uniform
    """,
    "tallystick.operators.tally.sampling": """
        tally.add_gumbel_noise tally.cumulative_weights tally.keep_min_p tally.keep_top_k tally.keep_top_p
        tally.mark_token tally.repetition_penalty tally.scale_logits tally.select_largest tally.select_token
        tally.softmax_weights
    """,
}
"""The names of the operators by module."""
HOMES: Final[Mapping[str, str]] = {name: module for module, names in FAMILIES.items() for name in names.split()}
"""The module by operator name."""
