"""Mistakes with long items."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import AUDIO, QWEN2

MUTANTS = (
    AUDIO.edited(
        "embeddings are counted in 8 bits",
        "test_items_of_any_length_equal_the_hf_processor",
        "get_prompt_updates",
        old="                count = _lengths(int(mask.sum()))[1]\n",
        new="                count = int(_lengths(mask.sum())[1].byte())\n",
    ),
    AUDIO.edited(
        "the encoder counts embeddings in 8 bits",
        "test_items_of_any_length_equal_the_hf_processor",
        "get_multimodal_embeddings",
        old="zip(embeddings, after_pooling.tolist(), strict=True)",
        new="zip(embeddings, after_pooling.byte().tolist(), strict=True)",
    ),
    QWEN2.edited(
        "sizes of items are kept in 8 bits",
        "test_items_of_any_length_equal_the_hf_processor",
        "get_mm_fields_config",
        old="hf_inputs[grids].prod(-1))",
        new="hf_inputs[grids].byte().prod(-1))",
    ),
    AUDIO.edited(
        "audio longer than most is refused",
        "test_items_of_any_length_equal_the_hf_processor",
        ("call_hf_processor", "get_dummy_mm_data"),
        old="        return samples\n",
        new="        return samples * 3 // 4\n",
    ),
    AUDIO.edited(
        "audio that is too long is cut without being asked",
        "test_longer_audio_is_refused_or_cut",
        "call_hf_processor",
        old="        if num_samples > most and not truncation:",
        new="        if False:",
    ),
    AUDIO.edited(
        "a refusal does not say how long audio may be",
        "test_longer_audio_is_refused_or_cut",
        "call_hf_processor",
        old='but the model takes {most} "\n                f"({most / rate:g}); give',
        new='but the model takes "\n                f"less; give',
    ),
)
