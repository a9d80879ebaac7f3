"""A tiny random Gemma 3 checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, layer_sizes, randomize_weights, spare, train_sentencepiece

_IMAGE_TOKENS = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<start_of_image>{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}"
    "{% endif %}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "a window shorter than an image": {"sliding_window": 6},
    "every layer sees everything": {"layer_types": ["full_attention", "full_attention"]},
    "other token ids": {"spare_tokens": 3},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    sliding_window: int = 24,
    layer_types: list[str] | None = None,
    spare_tokens: int = 0,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        sliding_window: tokens that most layers see.
        layer_types: of each layer; by default one has a window and one has not.
        spare_tokens: special tokens without a use, which shift the others' ids.
    """
    import transformers

    tokenizer = _tokenizer(spare_tokens)
    layer_types = layer_types or ["sliding_attention", "full_attention"]
    text_config = transformers.Gemma3TextConfig(
        **decoder_settings(tokenizer, num_layers=len(layer_types), num_key_value_heads=2),
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=sliding_window,
        layer_types=layer_types,
        tie_word_embeddings=False,
    )
    config = transformers.Gemma3Config(
        text_config=text_config,
        vision_config=transformers.SiglipVisionConfig(
            **layer_sizes(image_size=56, patch_size=14, vision_use_head=False)
        ),
        mm_tokens_per_image=16,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        image_token_index=tokenizer.image_token_id,
        tie_word_embeddings=False,
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    randomize_weights(model, seed)
    model.model.multi_modal_projector.mm_input_projection_weight.data.mul_(4)  # as large as embeddings of text
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(["<eos>", "<end_of_turn>"])
    processor = transformers.Gemma3Processor(
        transformers.Gemma3ImageProcessorPil(size={"height": 56, "width": 56}),
        tokenizer,
        image_seq_length=16,
        chat_template=CHAT_TEMPLATE,
    )
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return Path(path)


def _tokenizer(spare_tokens: int) -> Any:
    import transformers

    usual = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    special = [*usual, *spare(spare_tokens), *_IMAGE_TOKENS.values()]
    tokenizer = transformers.GemmaTokenizer(
        **train_sentencepiece(special), add_bos_token=True, extra_special_tokens=dict(_IMAGE_TOKENS)
    )
    tokenizer.add_tokens(special, special_tokens=True)
    return tokenizer
