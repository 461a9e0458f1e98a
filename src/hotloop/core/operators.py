"""An operator's name as torch gives it -> what a compiler makes of it: merged with its neighbours, or left as it is."""

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
        # moving elements about, which becomes part of the reads or writes of the pass
        "cat", "constant_pad_nd", "flip", "roll", "select_backward", "slice_backward", "stack",
        # reductions and what is made of them
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
"""Operators that a compiler merges into passes over memory: pointwise ones, normalisations, softmax, reductions."""

REDUCED_THEN_USED = frozenset(
    (
        "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit", "batch_norm",
        "native_group_norm", "native_group_norm_backward", "instance_norm", "group_norm",
    )
)  # fmt: skip
"""Operators that read all of their input once for statistics and again to use them: no pass holds it in between."""

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
"""Operators that multiply matrices: those that no other one of this set calls, so that their FLOPs add up to a step's.
``convolution`` calls ``_convolution`` below the level at which a dispatch mode sees operators."""

COMPILED_RATIO = {
    "sigmoid": 2.2, "gelu": 2.0, "silu": 1.6, "softplus": 1.5, "native_batch_norm": 1.7, "roll": 2.0,
    "tanh": 0.9, "exp": 0.6, "log": 0.45, "sin": 0.4, "cos": 0.4, "sqrt": 0.4, "erf": 0.7, "div": 0.35,
    "gelu_backward": 0.4, "silu_backward": 0.4, "tanh_backward": 0.4, "native_batch_norm_backward": 0.4,
}  # fmt: skip
"""Computing of an operator in the compiler's code over that of torch's own, where it is far from the same.

A result that is shifted, as by roll, is made in memory first. Measured with one thread on an AMD EPYC with AVX-512,
torch 2.13, up to 131 thousand float32 elements, least of 7.
"""

RANDOM = frozenset(("bernoulli", "native_dropout", "dropout", "feature_dropout"))
"""Operators that draw random numbers."""
RANDOM_RATIO = (1.7, 2.6, 3.5)
"""The same for these, at best, likely and at worst: compiled code draws them with another generator, 10.8 ns an element
against 6.4, and draws them again where a pass goes through its elements twice."""


def is_fusable(name: str) -> bool:
    """Whether a compiler merges this operator with its neighbours; in-place forms count as what they compute.

    >>> is_fusable("aten::relu_"), is_fusable("aten::mm")
    (True, False)
    """
    return bare_name(name) in FUSABLE


def bare_name(name: str) -> str:
    """The name without its namespace and without the mark of an in-place form.

    >>> bare_name("aten::add_")
    'add'
    """
    return name.rpartition("::")[2].rstrip("_")


def is_convolution(name: str) -> bool:
    """Whether the operator is a convolution or the backward of one.

    >>> is_convolution("aten::convolution_backward"), is_convolution("aten::mm")
    (True, False)
    """
    return bare_name(name) in ("convolution", "convolution_backward")
