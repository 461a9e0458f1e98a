"""An operator's name as torch gives it -> what a compiler does with it: merges it with its neighbors, or leaves it."""

from __future__ import annotations

FUSABLE = frozenset(
    (
        # pointwise
        "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "atan2", "bitwise_and", "bitwise_not", "bitwise_or",
        "ceil", "clamp", "clamp_max", "clamp_min", "clone", "copy", "cos", "cosh", "div", "dropout", "elu", "eq", "erf",
        "erfc", "exp", "exp2", "expm1", "feature_dropout", "fill", "floor", "fmod", "ge", "gelu", "glu", "gt",
        "hardsigmoid", "hardswish", "hardtanh", "isfinite", "isinf", "isnan", "le", "leaky_relu", "lerp", "log",
        "log10", "log1p", "log2", "log_sigmoid_forward", "logical_and", "logical_not", "logical_or", "lt",
        "masked_fill", "maximum", "minimum", "mish", "mul", "native_dropout", "ne", "neg", "pow", "prelu",
        "_prelu_kernel", "reciprocal", "relu", "relu6", "remainder", "round", "rsqrt", "rsub", "sigmoid", "sign", "sgn",
        "silu", "sin", "sinh", "softplus", "sqrt", "square", "sub", "tan", "tanh", "tril", "triu", "true_divide",
        "where", "zero", "zeros_like", "ones_like", "full_like", "zeros", "ones", "full", "_to_copy",
        # moving elements, which becomes part of the reads or writes of the pass
        "cat", "constant_pad_nd", "flip", "roll", "select_backward", "slice_backward", "stack",
        # reductions and operators made of them
        "amax", "amin", "batch_norm", "cross_entropy_loss", "group_norm", "instance_norm", "l1_loss", "layer_norm",
        "_log_softmax", "log_softmax", "logsumexp", "mean", "mse_loss", "native_batch_norm", "native_group_norm",
        "native_layer_norm", "_native_batch_norm_legit", "norm", "linalg_vector_norm", "prod", "rms_norm",
        "_fused_rms_norm", "smooth_l1_loss", "_softmax", "softmax", "std", "sum", "var", "var_mean",
        # backwards of them
        "elu_backward", "gelu_backward", "glu_backward", "hardsigmoid_backward", "hardswish_backward",
        "hardtanh_backward", "leaky_relu_backward", "log_sigmoid_backward", "_log_softmax_backward_data",
        "mish_backward", "mse_loss_backward", "native_batch_norm_backward", "native_dropout_backward",
        "native_group_norm_backward", "native_layer_norm_backward", "_fused_rms_norm_backward", "nll_loss_backward",
        "_prelu_kernel_backward", "sigmoid_backward", "silu_backward", "smooth_l1_loss_backward",
        "_softmax_backward_data", "softplus_backward", "tanh_backward", "threshold_backward",
        "bernoulli",
    )
)  # fmt: skip
"""Operators that a compiler merges into passes over memory: pointwise ones, normalizations, softmax, reductions."""

PRODUCTS = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_convolution", "_cudnn_rnn",
        "_cudnn_rnn_backward", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "convolution_backward",
        "cudnn_convolution_backward", "miopen_convolution_backward", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward", "convolution",
    )
)  # fmt: skip
"""Operators that multiply matrices and that no other operator of this set calls, so their FLOPs add up to a step's.
``convolution`` calls ``_convolution`` below the level at which a dispatch mode sees operators."""


def is_fusable(name: str) -> bool:
    """Whether a compiler merges this operator with its neighbors; in-place forms count as what they compute.

    >>> is_fusable("aten::relu_"), is_fusable("aten::mm")
    (True, False)
    """
    return name.rpartition("::")[2].rstrip("_") in FUSABLE
