"""Tiny text-only models of fifteen kinds: an architecture, and what of its configuration must be right."""

from __future__ import annotations

from typing import Any

_GROUPED = {"intermediate_size": 96, "num_key_value_heads": 2}

FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _GROUPED,
    "MistralForCausalLM": {**_GROUPED, "sliding_window": 12, "head_dim": 24},
    "Qwen2ForCausalLM": {**_GROUPED, "use_sliding_window": True, "sliding_window": 10, "max_window_layers": 1},
    "Qwen3ForCausalLM": {**_GROUPED, "head_dim": 32, "tie_word_embeddings": True},
    "Gemma2ForCausalLM": {
        **_GROUPED,
        "head_dim": 16,
        "tie_word_embeddings": False,
        "sliding_window": 10,
        "query_pre_attn_scalar": 50,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "Gemma3nForCausalLM": {
        **_GROUPED,
        "head_dim": 16,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 400,
        "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
        "sliding_window": 10,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": False,
    },
    "Gemma4ForCausalLM": {
        **_GROUPED,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 400,
        "sliding_window": 10,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": False,
    },
    "Phi3ForCausalLM": {
        **_GROUPED,
        "original_max_position_embeddings": 256,  # beyond it transformers takes other angles for short prompts, too
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.3, 1.5],
            "long_factor": [1.0, 2.0, 4.0, 8.0],
            "partial_rotary_factor": 0.5,
        },
        "partial_rotary_factor": 0.5,
    },
    "OPTForCausalLM": {"ffn_dim": 96, "word_embed_proj_dim": 48, "do_layer_norm_before": True},
    "GPT2LMHeadModel": {"n_inner": 96, "scale_attn_by_inverse_layer_idx": True},
    "GPTNeoXForCausalLM": {"intermediate_size": 96, "rotary_pct": 0.25},
    "Olmo2ForCausalLM": _GROUPED,
    "DeepseekV3ForCausalLM": {
        "intermediate_size": 96,
        "num_key_value_heads": 4,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "first_k_dense_replace": 2,
    },
    "OlmoeForCausalLM": {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "GptOssForCausalLM": {
        **_GROUPED,
        "head_dim": 16,
        "sliding_window": 10,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "GraniteSWAForCausalLM": {
        **_GROUPED,
        "sliding_window": 10,
        "attention_multiplier": 0.1,
        "tie_word_embeddings": False,
    },
}
"""Sliding windows on all layers and on some, capped scores and logits, attention sinks, scales of their own, rotation
of a part of each head, learned positions, embeddings of another width, tied ones, several heads to a key-value head,
values of another size than keys, layers that share those of another, experts."""

READ_VALUES = {"OlmoeForCausalLM", "GptOssForCausalLM", "Gemma3nForCausalLM"}
"""Architectures whose experts, or whose sparse activations, read values, so that a step cannot be captured."""
