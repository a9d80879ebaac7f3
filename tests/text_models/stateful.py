"""Tiny text-only models whose layers keep a state: what of their configuration must be right in the engine."""

from __future__ import annotations

from typing import Any

_GROUPED: dict[str, Any] = {"intermediate_size": 96, "num_key_value_heads": 2}
_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LINEAR_AROUND_FULL = ["linear_attention", "full_attention", "linear_attention"]

MAIN: dict[str, dict[str, Any]] = {
    "Lfm2ForCausalLM": {
        **_GROUPED,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 3,
    },
    "Qwen3NextForCausalLM": {
        **_GROUPED,
        **_DELTA,
        **_EXPERTS,
        "head_dim": 16,
        "num_hidden_layers": 3,
        "layer_types": _LINEAR_AROUND_FULL,
        "shared_expert_intermediate_size": 32,
    },
    "GraniteMoeHybridForCausalLM": {
        **_GROUPED,
        **_MAMBA2,
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 32,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.5,
    },
    "Mamba2ForCausalLM": {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1, "chunk_size": 8},
    "JambaForCausalLM": {
        **_GROUPED,
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 16,
        "mamba_dt_rank": 8,
        "use_mamba_kernels": False,
    },
}
"""A short convolution, the gated delta rule, Mamba 2 with and without attention, Mamba 1 (whose prompts go on token by
token after their first chunk) with attention."""

MORE: dict[str, dict[str, Any]] = {
    "Lfm2MoeForCausalLM": {
        **_GROUPED,
        **_EXPERTS,
        "num_dense_layers": 1,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
    },
    "Qwen3_5ForCausalLM": {
        **_GROUPED,
        **_DELTA,
        "head_dim": 16,
        "num_hidden_layers": 4,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
    },
    "BambaForCausalLM": {**_GROUPED, **_MAMBA2, "num_hidden_layers": 3, "attn_layer_indices": [1]},
    "MambaForCausalLM": {"state_size": 64, "num_hidden_layers": 4, "tie_word_embeddings": False},
    "FalconMambaForCausalLM": {"state_size": 16, "tie_word_embeddings": False},
    "FalconH1ForCausalLM": {**_GROUPED, **_MAMBA2, "mamba_d_ssm": 128, "ssm_out_multiplier": 4.0},
    "Zamba2ForCausalLM": {
        **_GROUPED,
        "mamba_d_state": 16,
        "n_mamba_heads": 4,
        "mamba_headdim": 32,
        "mamba_ngroups": 1,
        "num_hidden_layers": 3,
        "hybrid_layer_ids": [1],
        "layer_types": ["linear_attention", "hybrid", "linear_attention"],
        "num_mem_blocks": 1,
        "adapter_rank": 8,
        "chunk_size": 8,
    },
    "OlmoHybridForCausalLM": {**_GROUPED, **_DELTA, "num_hidden_layers": 3, "layer_types": _LINEAR_AROUND_FULL},
    "KimiLinearForCausalLM": {
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "layer_types": _LINEAR_AROUND_FULL,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
        **_EXPERTS,
        "n_routed_experts": 4,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "NemotronHForCausalLM": {
        **_GROUPED,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 1,
        "chunk_size": 8,
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "moe", "attention", "mamba"],
        "head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}
"""Experts, attention and a state in the same layer, two modules around each other, latent attention, layers that do
neither."""
