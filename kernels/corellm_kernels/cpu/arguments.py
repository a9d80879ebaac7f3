"""The kernels' arguments, as in `csrc/`. `library` checks that sizes agree."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p


class Call(Structure):
    """A kernel and its arguments."""

    _fields_ = [("kernel", c_void_p), ("arguments", c_void_p)]


class LowRankPart(Structure):
    """The factors of some outputs, as `low_rank.h` has them."""

    _fields_ = [
        ("a", c_void_p),
        ("b", c_void_p),
        ("ranks", c_void_p),
        ("most", c_int64),
        ("column", c_int64),
        ("outputs", c_int64),
        ("inner", c_int64),
    ]


class LowRankArguments(Structure):
    """Arguments of products of low rank, as `low_rank.h` has them."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("parts", POINTER(LowRankPart)),
        ("num_parts", c_int64),
        ("slots", c_void_p),
        ("inner", c_void_p),
        ("inner_stride", c_int64),
        ("rows", c_int64),
        ("inputs", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("outputs", c_int64),
    ]


class LinearArguments(Structure):
    """Arguments of a linear layer, as `linear.h` has them."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("weight", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("residual", c_void_p),
        ("residual_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("rows", c_void_p),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("group", c_int64),
        ("low_rank", LowRankArguments),
    ]


class ExpertsArguments(Structure):
    """Arguments of products of experts, as `experts.h` has them."""

    _fields_ = [
        ("product", c_void_p),
        ("first", LinearArguments),
        ("weight_bytes", c_int64),
        ("num_experts", c_int64),
        ("chosen", c_void_p),
        ("starts", c_void_p),
        ("places", c_void_p),
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("ordered", c_void_p),
        ("x_bytes", c_int64),
        ("out_bytes", c_int64),
        ("room_bytes", c_int64),
        ("tokens", c_int64),
        ("top_k", c_int64),
    ]


class ExpertsSumArguments(Structure):
    """Arguments of sums over a token's experts, as `experts.h` has them."""

    _fields_ = [
        ("x", c_void_p),
        ("places", c_void_p),
        ("shares", c_void_p),
        ("out", c_void_p),
        ("tokens", c_int64),
        ("top_k", c_int64),
        ("width", c_int64),
    ]


class PackArguments(Structure):
    """Arguments of packing a weight, as `linear.h` has them."""

    _fields_ = [
        ("weight", c_void_p),
        ("stride", c_int64),
        ("packed", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("scale", c_void_p),
    ]


class PackGroupsArguments(Structure):
    """Arguments of packing a weight in groups, as `formats.h` has them."""

    _fields_ = [
        ("integers", c_void_p),
        ("factors", c_void_p),
        ("packed", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("group", c_int64),
    ]


class RoundGroupsArguments(Structure):
    """Arguments of rounding a weight in groups, as `rounding.h` has them."""

    _fields_ = [
        ("weight", c_void_p),
        ("stride", c_int64),
        ("integers", c_void_p),
        ("scales", c_void_p),
        ("zeros", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("group", c_int64),
        ("shares", c_void_p),
        ("num_shares", c_int64),
        ("steps", c_float),
        ("least", c_float),
        ("dropped", c_int32),
        ("symmetric", c_int32),
    ]


class NormArguments(Structure):
    """Arguments of a norm, as `norms.h` has them."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("residual", c_void_p),
        ("residual_stride", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("rows", c_int64),
        ("heads", c_int64),
        ("width", c_int64),
        ("eps", c_float),
        ("centered", c_int32),
    ]


class ActivationArguments(Structure):
    """Arguments of an activation, as `activations.h` has them."""

    _fields_ = [
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("rows", c_int64),
        ("width", c_int64),
        ("gated", c_int32),
    ]


class AttentionArguments(Structure):
    """Arguments of attention, as `attention_arguments.h` has them."""

    _fields_ = [
        ("query", c_void_p),
        ("key", c_void_p),
        ("value", c_void_p),
        ("query_stride", c_int64),
        ("query_head_stride", c_int64),
        ("key_stride", c_int64),
        ("key_head_stride", c_int64),
        ("value_stride", c_int64),
        ("value_head_stride", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rotary_size", c_int64),
        ("plane_stride", c_int64),
        ("section_ends", c_int64 * 2),
        ("key_cache", c_void_p),
        ("value_cache", c_void_p),
        ("key_strides", c_int64 * 3),
        ("value_strides", c_int64 * 3),
        ("key_scale", c_void_p),
        ("value_scale", c_void_p),
        ("slots", c_void_p),
        ("tables", c_void_p),
        ("table_stride", c_int64),
        ("lens", c_void_p),
        ("starts", c_void_p),
        ("visible", c_void_p),
        ("span_starts", c_void_p),
        ("sinks", c_void_p),
        ("sink_size", c_int64),
        ("bias", c_void_p),
        ("bias_stride", c_int64),
        ("distances", c_int64),
        ("out", c_void_p),
        ("out_stride", c_int64),
        ("out_head_stride", c_int64),
        ("tokens", c_int64),
        ("seqs", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("size", c_int64),
        ("value_size", c_int64),
        ("block_size", c_int64),
        ("window", c_int64),
        ("causal", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
    ]


class SampleArguments(Structure):
    """Arguments of sampling, as `sampling.h` has them."""

    _fields_ = [
        ("logits", c_void_p),
        ("stride", c_int64),
        ("rows", c_int64),
        ("vocab", c_int64),
        ("temperature", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("uniforms", c_void_p),
        ("masks", c_void_p),
        ("words", c_int64),
        ("mask_of", c_void_p),
        ("tokens", c_void_p),
        ("peaks", c_void_p),
    ]


ARGUMENTS: dict[str, type[Structure]] = {
    "linear": LinearArguments,
    "experts": ExpertsArguments,
    "experts_sum": ExpertsSumArguments,
    "pack": PackArguments,
    "round_groups": RoundGroupsArguments,
    "low_rank": LowRankArguments,
    "norm": NormArguments,
    "silu": ActivationArguments,
    "attention": AttentionArguments,
    "sample": SampleArguments,
}
"""Structure of each kernel's arguments, by the kernel's name."""
