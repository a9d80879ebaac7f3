"""InternVL keeps the contract: `pytest --pyargs corellm_internvl.contract`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor

from corellm_internvl import InternVLChat
from corellm_testing import AdapterContract, Continuation, Media, Reference, generate_one, plain_weights


class InternVLReference(Reference):
    """Transformers' model with the weights under its names; tiles and text as in the published description.

    Reads the checkpoint's files, and shares no code with the plugin.
    """

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json`, as it is."""
        content: dict[str, Any] = json.loads((self.checkpoint / "config.json").read_text())
        return content

    @cached_property
    def tokenizer(self) -> Any:
        """As published: without a token for `<image>`."""
        return transformers.AutoTokenizer.from_pretrained(self.checkpoint)

    @cached_property
    def model(self) -> Any:
        """Transformers' model in float32; its texts end with `end_token_ids`."""
        vision, text = self.config["vision_config"], self.config["llm_config"]
        config = transformers.InternVLConfig(
            vision_config={
                **{name: vision[name] for name in ("hidden_size", "intermediate_size", "image_size", "patch_size")},
                **{name: vision[name] for name in ("num_hidden_layers", "num_attention_heads", "norm_type")},
                "use_qk_norm": vision["qk_normalization"],
                "attention_bias": vision["qkv_bias"],
            },
            text_config={name: value for name, value in text.items() if name != "attn_implementation"},
            image_token_id=self.tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
            downsample_ratio=self.config["downsample_ratio"],
            tie_word_embeddings=text["tie_word_embeddings"],
        )
        model = transformers.InternVLForConditionalGeneration(config).eval()
        missing, unexpected = model.load_state_dict(_renamed(plain_weights(self.checkpoint)), strict=False)
        assert not unexpected
        assert set(missing) <= ({"lm_head.weight"} if text["tie_word_embeddings"] else set())
        model.tie_weights()
        if self.end_token_ids:
            model.generation_config.eos_token_id = sorted(self.end_token_ids)
        return model

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Replace each `<image>` in the text by as many `<IMG_CONTEXT>` as its tiles take, then tokenize it."""
        settings = {**self.config, **kwargs}
        size, ratio = settings["force_image_size"], settings["downsample_ratio"]
        per_tile = int((size // settings["vision_config"]["patch_size"] * ratio) ** 2)
        tiles = [torch.stack([pixels(tile) for tile in tiled(image, settings)]) for image in media.get("image", ())]
        if text.count("<image>") != len(tiles):
            raise ValueError(f"{len(tiles)} images for {text.count('<image>')} <image>")
        for own in tiles:
            text = text.replace("<image>", f"<img>{'<IMG_CONTEXT>' * per_tile * len(own)}</img>", 1)
        output: dict[str, Any] = dict(self.tokenizer(text, return_tensors="pt"))
        if tiles:
            output["pixel_values"] = torch.cat(tiles)
            output["num_tiles"] = torch.tensor([len(own) for own in tiles])
        return output

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Generate from these tensors; the model does not ask how many tiles are whose."""
        inputs = self.process(text, media, kwargs)
        inputs.pop("num_tiles", None)
        return generate_one(self.model, inputs, max_tokens)


def tiled(image: Image.Image, settings: Mapping[str, Any]) -> list[Image.Image]:
    """The tiles of an image, each cut out by Pillow; last one of all of it, if there are several."""
    size, whole = settings["force_image_size"], image.convert("RGB")
    small = whole.resize((size, size), Image.Resampling.BICUBIC)
    if not settings["dynamic_image_size"]:
        return [small]
    fewest, most = settings["min_dynamic_patch"], settings["max_dynamic_patch"]
    if not 1 <= fewest <= most:
        raise ValueError(f"from {fewest} to {most} tiles")
    best, nearest, ratio = (1, 1), float("inf"), image.width / image.height
    for count in range(fewest, most + 1):
        for columns in (number for number in range(1, count + 1) if count % number == 0):
            distance = abs(ratio - columns / (count // columns))
            large = image.width * image.height > count * size * size / 2
            if distance < nearest or (distance == nearest and large):
                best, nearest = (columns, count // columns), distance
    columns, rows = best
    if columns * rows == 1:
        return [small]
    stretched = whole.resize((columns * size, rows * size), Image.Resampling.BICUBIC)
    corners = [(column * size, row * size) for row in range(rows) for column in range(columns)]
    cut = [stretched.crop((left, top, left + size, top + size)) for left, top in corners]
    return [*cut, small] if settings["use_thumbnail"] else cut


def pixels(tile: Image.Image) -> Tensor:
    """`[3, size, size]`: what torchvision's ToTensor and Normalize do, with the mean and deviation of ImageNet."""
    values = torch.tensor(list(tile.tobytes()), dtype=torch.uint8).view(tile.height, tile.width, 3).permute(2, 0, 1)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (values.float().div(255) - mean[:, None, None]) / deviation[:, None, None]


def _renamed(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by transformers' names, part by part."""
    found: dict[str, Tensor | None] = {
        "lm_head.weight": published.get("language_model.lm_head.weight"),
        "model.vision_tower.embeddings.cls_token": published["vision_model.embeddings.class_embedding"],
        "model.vision_tower.embeddings.position_embeddings": published["vision_model.embeddings.position_embedding"],
    }
    for part in ("weight", "bias"):
        patches = published[f"vision_model.embeddings.patch_embedding.{part}"]
        found[f"model.vision_tower.embeddings.patch_embeddings.projection.{part}"] = patches
        for name, number in (("layer_norm", 0), ("linear_1", 1), ("linear_2", 3)):
            found[f"model.multi_modal_projector.{name}.{part}"] = published[f"mlp1.{number}.{part}"]
    for name, weight in published.items():
        if name.startswith("language_model.model."):
            found["model.language_model" + name[len("language_model.model") :]] = weight
        if name.startswith("vision_model.encoder"):
            _, _, _, layer, *rest = name.split(".")
            for own, piece in _in_layer(".".join(rest), weight):
                found[f"model.vision_tower.encoder.layer.{layer}.{own}"] = piece
    return {name: weight for name, weight in found.items() if weight is not None}


def _in_layer(name: str, weight: Tensor) -> list[tuple[str, Tensor]]:
    """A weight of a layer of the tower: query, key and value lie one behind the other."""
    if name.startswith("attn.qkv"):
        third, part = len(weight) // 3, name.rpartition(".")[2]
        thirds = (weight[:third], weight[third : 2 * third], weight[2 * third :])
        return [(f"attention.{own}_proj.{part}", one) for own, one in zip("qkv", thirds, strict=True)]
    for old, new in (
        ("attn.proj", "attention.projection_layer"),
        ("attn", "attention"),
        ("norm1", "layernorm_before"),
        ("norm2", "layernorm_after"),
        ("ls", "lambda_"),
    ):
        if name.startswith(old):
            return [(new + name[len(old) :], weight)]
    return [(name, weight)]


class TestInternVLChat(AdapterContract):
    """InternViT and Qwen2; four tokens a tile instead of 256, for speed."""

    adapter = InternVLChat
    reference = InternVLReference
    processor_kwargs = ({"max_dynamic_patch": 2}, {"use_thumbnail": False}, {"dynamic_image_size": False})
    # `chat` in modeling_internvl_chat.py and the template `internvl2_5` in conversation.py of OpenGVLab/InternVL
    chat_prompts = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is this <image>\n?<|im_end|>\n"
        "<|im_start|>assistant\nA circle<|im_end|>\n"
        "<|im_start|>user\nWhich colour?<|im_end|>\n"
        "<|im_start|>assistant\nIt is red.<|im_end|>\n"
        "<|im_start|>user\n<image>\nAnd now?<|im_end|>\n"
        "<|im_start|>assistant\n",
        "<|im_start|>system\n你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的"
        "多模态大语言模型。<|im_end|>\n"
        "<|im_start|>user\n<image>\nAnd now?<|im_end|>\n"
        "<|im_start|>assistant\n",
    )
