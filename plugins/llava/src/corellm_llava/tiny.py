"""A tiny random LLaVA checkpoint, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from corellm.tiny_checkpoints import decoder_settings, layer_sizes, randomize_weights, spare, train_tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() }}: "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %} "
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "another image token": {"spare_tokens": 3, "image_token": "<img>"},
    "features of the last layer": {"vision_feature_layer": -1},
    "features of two layers": {"vision_feature_layer": [-2, 1]},
    "the class token kept, and Mistral": {"text": "mistral", "vision_feature_select_strategy": "full"},
    "SigLIP and Qwen2": {"vision": "siglip", "text": "qwen2"},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    vision: Literal["clip", "siglip"] = "clip",
    text: Literal["llama", "mistral", "qwen2"] = "llama",
    vision_feature_layer: int | list[int] = -2,
    vision_feature_select_strategy: Literal["default", "full"] | None = None,
    hidden_size: int = 64,
    num_layers: int = 2,
    spare_tokens: int = 0,
    image_token: str = "<image>",
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        vision, text: which models it is composed of.
        vision_feature_layer: as in `LlavaConfig`.
        vision_feature_select_strategy: None for what suits the tower (SigLIP has no class token to leave out).
        hidden_size, num_layers: of the text model.
        spare_tokens: special tokens without a use, which shift the image token's id.
        image_token: the text of that token.
    """
    import transformers

    special_tokens = [*spare(spare_tokens), image_token]
    tokenizer = train_tokenizer(special_tokens, bos="<s>", eos="</s>", pad="<pad>", unk="<unk>", add_bos=True)
    strategy = vision_feature_select_strategy or ("default" if vision == "clip" else "full")
    text_class = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
    }[text]
    config = transformers.LlavaConfig(
        vision_config=_vision_config(vision),
        text_config=text_class(**decoder_settings(tokenizer, hidden_size, num_layers, num_key_value_heads=2)),
        image_token_index=tokenizer.convert_tokens_to_ids(image_token),
        vision_feature_layer=vision_feature_layer,
        vision_feature_select_strategy=strategy,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    randomize_weights(model, seed)
    processor = transformers.LlavaProcessor(
        _image_processor(vision),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy=strategy,
        num_additional_image_tokens=1 if vision == "clip" else 0,
        image_token=image_token,
        chat_template=CHAT_TEMPLATE.replace("<image>", image_token),
    )
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return Path(path)


def _vision_config(vision: str) -> Any:
    """A tower of three layers that sees 4 x 4 patches."""
    import transformers

    size = layer_sizes(num_layers=3, image_size=56, patch_size=14)
    if vision == "clip":
        return transformers.CLIPVisionConfig(**size, projection_dim=32)
    return transformers.SiglipVisionConfig(**size, vision_use_head=False)


def _image_processor(vision: str) -> Any:
    """As the tower's family has it: CLIP crops to a square, SigLIP squeezes into one."""
    import transformers

    if vision == "clip":
        return transformers.CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    return transformers.SiglipImageProcessorPil(size={"height": 56, "width": 56})
