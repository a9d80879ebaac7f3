"""A DeepSeek-VL2 checkpoint's `config.json`, and its decoder's part as a configuration of transformers.

Published files state what differs between the checkpoints and leave the rest to defaults of the published code, which
are here. Knows no tensor and no other file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import DeepseekOcr2TextConfig, DeepseekV2Config, DeepseekV3Config, PreTrainedConfig

from corellm.errors import CheckpointError

_VISION = {
    "image_size": 384, "patch_size": 16, "width": 1024, "layers": 24, "heads": 16, "mlp_ratio": 4,
    "class_token": False, "ignore_head": True,
}  # fmt: skip
_PROJECTOR = {
    "projector_type": "downsample_mlp_gelu", "input_dim": 1152, "n_embed": 2048, "depth": 2, "mlp_ratio": 1,
    "downsample_ratio": 2, "token_pooling": False,
}  # fmt: skip
_DECODER = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "moe_intermediate_size": 1407,
    "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": None, "n_shared_experts": None,
    "n_routed_experts": None, "routed_scaling_factor": 1.0, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "topk_method": None, "n_group": None,
    "topk_group": None, "num_experts_per_tok": None, "first_k_dense_replace": 0, "norm_topk_prob": False,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "pad_token_id": None, "bos_token_id": 100000,
    "eos_token_id": 100001, "rope_theta": 10000.0,
}  # fmt: skip
_LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "qk_nope_head_dim")
"""Sizes of latent attention, without a meaning where there is none."""
_SAME_IN_ALL: Mapping[str, Mapping[str, Any]] = {
    "vision_config": {"class_token": False, "ignore_head": True},
    "projector_config": {"projector_type": "downsample_mlp_gelu", "token_pooling": False},
    "language_config": {
        "attention_bias": False, "hidden_act": "silu", "moe_layer_freq": 1, "rope_scaling": None,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
"""`{part: settings that every published checkpoint has}`: others would need other code."""


class DeepseekVLV2Config(PreTrainedConfig):  # type: ignore[misc]  # transformers is not typed
    """The published sections, completed by the published defaults.

    Raises:
        CheckpointError: a section is missing, or asks for what no published checkpoint has.
    """

    model_type = "deepseek_vl_v2"
    has_no_defaults_at_init = True

    vision_config: Any = None
    projector_config: Any = None
    language_config: Any = None
    text_config: Any = None
    """`language_config` as a configuration of transformers, made here."""
    tile_tag: str = ""
    global_view_pos: str = "head"
    """Whether the view of the whole image comes first, `"head"`, or last."""
    candidate_resolutions: Any = ()
    """`[[width, height], ...]` that images are fitted into before they are cut into tiles."""

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_what_is_different()
        self.vision_config = {**_VISION, **self.vision_config}
        self.projector_config = {**_PROJECTOR, **self.projector_config}
        if not isinstance(self.text_config, PreTrainedConfig):
            kind, values = _decoder(self.language_config)
            self.text_config = kind(**(values | (self.text_config or {})))
        check_candidates(self.candidate_resolutions, self.vision_config["image_size"], "config.json")
        super().__post_init__(**kwargs)

    @property
    def tokens_per_side(self) -> int:
        """Rows and columns of embeddings of one view."""
        patches: int = self.vision_config["image_size"] // self.vision_config["patch_size"]
        return -(-patches // int(self.projector_config["downsample_ratio"]))

    def _refuse_what_is_different(self) -> None:
        for part, settings in _SAME_IN_ALL.items():
            stated = getattr(self, part)
            if not isinstance(stated, Mapping):
                raise CheckpointError(f"config.json has no {part!r} section, which every DeepSeek-VL2 has")
            for name, value in settings.items():
                if stated.get(name, value) != value:
                    raise CheckpointError(
                        f"config.json: {name} of {part} is {stated[name]!r}, in every published DeepSeek-VL2 it is "
                        f"{value!r}; this plugin does not compute it"
                    )
        if self.tile_tag != "2D":
            raise CheckpointError(f"config.json: tile_tag is {self.tile_tag!r}; published checkpoints have '2D'")


def check_candidates(candidates: Any, side: int, file: str) -> None:
    """Refuse candidate resolutions that are not made of tiles of the tower's size.

    Raises:
        CheckpointError: names the wrong one.
    """
    wrong = [pair for pair in candidates if len(pair) != 2 or any(one < side or one % side for one in pair)]
    if wrong or not candidates:
        raise CheckpointError(
            f"{file}: candidate_resolutions has {wrong[0] if wrong else 'no entry'}; each must be a width and a height "
            f"in multiples of {side}, the vision tower's image_size"
        )


def _decoder(language: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the class of transformers' configuration whose decoder computes the published one, and its arguments."""
    values = {name: language.get(name, default) for name, default in _DECODER.items()}
    missing = [name for name in ("n_routed_experts", "n_shared_experts", "num_experts_per_tok") if not values[name]]
    if missing:
        raise CheckpointError(f"config.json: language_config lacks {', '.join(missing)}, which every DeepSeek-VL2 has")
    method, scores = values["topk_method"], language.get("scoring_func", "softmax")
    has_latent = language.get("use_mla", True)
    if has_latent and (method, scores, values["n_group"]) == ("noaux_tc", "sigmoid", 1):
        return DeepseekV3Config, values
    if method not in ("greedy", "group_limited_greedy") or scores != "softmax" or values["norm_topk_prob"]:
        raise CheckpointError(
            f"config.json: no published DeepSeek-VL2 chooses experts by topk_method {method!r} and scoring_func "
            f"{scores!r} with these settings; this plugin does not compute it"
        )
    if has_latent:
        return DeepseekV2Config, values
    dense = values.pop("first_k_dense_replace")
    kinds = ["dense" if i < dense else "sparse" for i in range(values["num_hidden_layers"])]
    return DeepseekOcr2TextConfig, {n: v for n, v in values.items() if n not in _LATENT} | {"mlp_layer_types": kinds}
