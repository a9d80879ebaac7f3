"""A tiny random Idefics2 checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, layer_sizes, randomize_weights, spare, train_sentencepiece

_IMAGE_TOKENS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].capitalize() }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "images split into quarters": {"split": True},
    "a tokenizer that begins texts behind an image with a space": {"legacy": True},
    "other token ids, larger patches, fewer embeddings": {"spare_tokens": 3, "patch_size": 12, "latents": 5},
    "a window shorter than an image": {"sliding_window": 6},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""
REFUSED: Mapping[str, Mapping[str, Any]] = {"a processor that writes another number of tokens": {"image_seq_len": 5}}
"""The same for checkpoints that are refused at load."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    split: bool = False,
    legacy: bool = False,
    latents: int = 8,
    image_seq_len: int | None = None,
    patch_size: int = 8,
    sliding_window: int | None = None,
    spare_tokens: int = 0,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        split: whether images are split into quarters.
        legacy: whether the tokenizer begins a text behind a special token with a space, as one at the start.
        latents: embeddings of an image, or of each of its crops.
        image_seq_len: tokens that the processor writes for them; as many by default.
        patch_size: of the vision tower, which has learned positions for 4 x 4.
        sliding_window: tokens that the decoder's layers see; all by default.
        spare_tokens: special tokens without a use, which shift the others' ids.
    """
    import transformers
    from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil

    tokenizer = _tokenizer(spare_tokens, legacy=legacy)
    sizes = decoder_settings(tokenizer, num_key_value_heads=2, sliding_window=sliding_window)
    config = transformers.Idefics2Config(
        text_config={"model_type": "mistral", "tie_word_embeddings": False, **sizes},
        vision_config=layer_sizes(48, image_size=4 * patch_size, patch_size=patch_size),
        perceiver_config={
            "hidden_size": 64,
            "resampler_n_latents": latents,
            "resampler_depth": 2,
            "resampler_n_heads": 4,
            "resampler_head_dim": 16,
            "num_key_value_heads": 2,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=False,
    )
    model = transformers.Idefics2ForConditionalGeneration(config)
    randomize_weights(model, seed)
    model.model.connector.perceiver_resampler.latents.data.mul_(8)  # as far apart as what they look at
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(["</s>", "<end_of_utterance>"])
    processor = transformers.Idefics2Processor(
        Idefics2ImageProcessorPil(size={"shortest_edge": 28, "longest_edge": 96}, do_image_splitting=split),
        tokenizer,
        image_seq_len=image_seq_len or latents,
        chat_template=CHAT_TEMPLATE,
    )
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return Path(path)


def _tokenizer(spare_tokens: int, *, legacy: bool) -> Any:
    """Return a tokenizer as the published one, which begins texts with BOS."""
    import transformers

    special = ["<unk>", "<s>", "</s>", *spare(spare_tokens), *_IMAGE_TOKENS]
    tokenizer = transformers.LlamaTokenizer(
        **train_sentencepiece(special), legacy=legacy, add_bos_token=True, pad_token="<unk>"
    )
    tokenizer.add_tokens(special, special_tokens=True)
    return tokenizer
