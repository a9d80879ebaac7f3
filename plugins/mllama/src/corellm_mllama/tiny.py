"""A tiny random Mllama checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corellm.tiny_checkpoints import decoder_settings, randomize_weights, spare, special_token_ids, train_tokenizer

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "other token ids": {"spare_tokens": 3},
    "a tokenizer that adds no BOS": {"add_bos": False},
    "more layers of images than of text": {"num_layers": 5, "cross_attention_layers": (0, 1, 3)},
    "two tiles": {"max_tiles": 2},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|image|>' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    num_layers: int = 4,
    cross_attention_layers: Sequence[int] = (1, 3),
    max_tiles: int = 4,
    spare_tokens: int = 0,
    add_bos: bool = True,
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        num_layers: of the text model.
        cross_attention_layers: those that attend to images.
        max_tiles: that an image is divided into.
        spare_tokens: special tokens without a use, which shift the others' ids.
        add_bos: whether the tokenizer adds BOS by itself, as published ones do.
    """
    import transformers

    tokenizer = _tokenizer(spare_tokens, add_bos=add_bos)
    ratios = [[a, b] for a in range(1, max_tiles + 1) for b in range(1, max_tiles + 1) if a * b <= max_tiles]
    vision = transformers.MllamaVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        attention_heads=4,
        num_hidden_layers=3,
        num_global_layers=2,
        image_size=32,
        patch_size=8,
        max_num_tiles=max_tiles,
        supported_aspect_ratios=ratios,
        intermediate_layers_indices=[0, 2],
        vision_output_dim=32 * 3,
    )
    # the image's token is the first behind the output layer's
    sizes = decoder_settings(tokenizer, num_layers=num_layers, num_key_value_heads=2, vocab_size=len(tokenizer) - 1)
    text = transformers.MllamaTextConfig(
        **sizes, cross_attention_layers=list(cross_attention_layers), tie_word_embeddings=False
    )
    config = transformers.MllamaConfig(
        vision_config=vision.to_dict(),
        text_config=text.to_dict(),
        image_token_index=tokenizer.image_token_id,
        tie_word_embeddings=False,
        **special_token_ids(tokenizer),
    )
    model = transformers.MllamaForConditionalGeneration(config)
    randomize_weights(model, seed)
    _open_gates(model)
    images = transformers.MllamaImageProcessorPil(size={"height": 32, "width": 32}, max_image_tiles=max_tiles)
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(["<|end_of_text|>", "<|eot_id|>"])
    model.save_pretrained(path)
    transformers.MllamaProcessor(images, tokenizer, chat_template=CHAT_TEMPLATE).save_pretrained(path)
    return Path(path)


def _open_gates(model: Any) -> None:
    """Let images, places and tiles count, and text, too: gates are closed before training.

    Layers of images look at few states, else each token would get the same of an image.
    """
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "cross_attn_" in name and name.endswith("gate"):
                parameter.fill_(0.4)
            elif "gate" in name.rsplit(".", 1)[-1]:
                parameter.fill_(1.0)
            elif name.endswith("cross_attn.q_norm.weight"):
                parameter.fill_(4.0)


def _tokenizer(spare_tokens: int, *, add_bos: bool) -> Any:
    """With the tokens of conversations; the image's token comes last, behind the text's, as in published ones."""
    from transformers import AddedToken

    own = [*spare(spare_tokens), "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]
    tokenizer = train_tokenizer(
        own,
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
        pad="<|finetune_right_pad_id|>",
        add_bos=add_bos,
        extra_special_tokens={"image_token": "<|image|>"},
    )
    tokenizer.add_tokens([AddedToken("<|image|>", special=True, normalized=False)])
    return tokenizer
