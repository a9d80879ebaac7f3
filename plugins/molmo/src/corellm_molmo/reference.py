"""A plain second implementation of Molmo: the oracle of the plugin's tests.

Written from the published description, with loops where the plugin has reshapes, and without code of the plugin: reads
the checkpoint's files by their published names, cuts images and counts tokens itself, runs without a cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from corellm_testing import PlainModel, causal, generate_plain, rotated

Array = np.ndarray[Any, Any]
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
PUBLISHED = {
    "base_image_input_size": [336, 336],
    "do_normalize": True,
    "image_patch_size": 14,
    "max_crops": 12,
    "overlap_margins": [4, 4],
}


class PlainProcessor:
    """Tokens, crops, and which patches belong to which token."""

    def __init__(self, path: Path) -> None:
        self.settings = {**PUBLISHED, **json.loads((path / "preprocessor_config.json").read_text())}
        self.tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self.end: int = self.tokenizer.get_vocab()["<|endoftext|>"]

    def __call__(self, text: str, images: Sequence[Image.Image], max_crops: int | None = None) -> dict[str, Any]:
        """The published names; `image_input_idx` counts from the image's first token, which is the prompt's second."""
        begin, ids = [self.end], self.tokenizer.encode(text, add_special_tokens=False).ids
        if not images:
            return {"input_ids": begin + ids}
        (image,) = images
        tokens, outputs = self.cut(np.array(image.convert("RGB")), max_crops or self.settings["max_crops"])
        return {"input_ids": begin + tokens + ids, "image_tokens": torch.tensor(tokens), **outputs}

    def cut(self, image: Array, max_crops: int) -> tuple[list[int], dict[str, Tensor]]:
        side, patch = self.settings["base_image_input_size"][0], self.settings["image_patch_size"]
        left, right = self.settings["overlap_margins"]
        patches = side // patch
        window = patches - left - right
        total = patch * (left + right)
        rows, columns = self.tiling(image.shape[0] - total, image.shape[1] - total, window * patch, max_crops)
        large, mask = self.resized(image, rows * window * patch + total, columns * window * patch + total)
        whole, _ = self.resized(image, side, side)
        crops, masks = [self.to_patches(whole)], []
        for i in range(rows):
            for j in range(columns):
                here = np.s_[i * window * patch :, j * window * patch :]
                crops.append(self.to_patches(large[here][:side, :side]))
                masks.append(self.to_patches(mask[here][:side, :side, None]).astype(np.float32).mean(-1))
        masks.append(np.full(patches**2, -1, np.float32))

        tokens, place = [], {}  # of a square of 2 x 2 patches: (part, row, column), counted in the part's patches
        name = self.tokenizer.get_vocab().__getitem__
        parts = ((patches, patches), (rows * window + left + right, columns * window + left + right))
        for part, (height, width) in enumerate(parts):
            tokens.append(name("<im_start>"))
            for row in range(0, height, 2):
                for column in range(0, width, 2):
                    place[part, row, column] = len(tokens)
                    tokens.append(name("<im_patch>"))
                tokens.append(name("<im_col>"))
            tokens.append(name("<im_end>"))
        index = [[place[0, row, column] for row in range(0, patches, 2) for column in range(0, patches, 2)]]
        for i in range(rows):
            for j in range(columns):
                index.append([])
                for row in range(0, patches, 2):
                    for column in range(0, patches, 2):
                        outside = any(
                            (at < left and crop > 0) or (at >= left + window and crop < count - 1)
                            for at, crop, count in ((row, i, rows), (column, j, columns))
                        )
                        index[-1].append(-100 if outside else place[1, i * window + row, j * window + column])
        outputs = {"images": np.stack(crops), "image_masks": np.stack(masks), "image_input_idx": np.array(index)}
        return tokens, {key: torch.from_numpy(value) for key, value in outputs.items()}

    @staticmethod
    def tiling(height: int, width: int, window: int, max_crops: int) -> tuple[int, int]:
        """Return the first tiling that enlarges the image least; if all shrink it, the one that shrinks it least."""
        tilings = [(i, j) for i in range(1, max_crops + 1) for j in range(1, max_crops + 1) if i * j <= max_crops]
        tilings.sort(key=lambda tiling: (tiling[0] * tiling[1], tiling[0]))
        enlarged: list[tuple[float, tuple[int, int]]] = []
        shrunk: list[tuple[float, tuple[int, int]]] = []
        with np.errstate(divide="ignore"):
            for i, j in tilings:
                scale = min(np.float32(i * window) / np.float32(height), np.float32(j * window) / np.float32(width))
                (shrunk if scale < 1 else enlarged).append((float(scale), (i, j)))
        if enlarged:
            least = min(scale for scale, _ in enlarged)
            return next(tiling for scale, tiling in enlarged if scale == least)
        most = max(scale for scale, _ in shrunk)
        return next(tiling for scale, tiling in shrunk if scale == most)

    def resized(self, image: Array, height: int, width: int) -> tuple[Array, Array]:
        """`[height, width, 3]` padded and normalized, and which pixels are the image's."""
        scale = min(np.float32(height) / np.float32(image.shape[0]), np.float32(width) / np.float32(image.shape[1]))
        h, w = int(np.float32(image.shape[0]) * scale), int(np.float32(image.shape[1]) * scale)
        floats = torch.permute(torch.from_numpy(image), [2, 0, 1]).to(torch.float32).div(255)
        small = functional.interpolate(floats[None], (h, w), mode="bilinear", antialias=True)[0]
        canvas, mask = np.zeros((height, width, 3), np.float32), np.zeros((height, width), bool)
        top, left = (height - h) // 2, (width - w) // 2
        canvas[top : top + h, left : left + w] = small.clip(0, 1).permute(1, 2, 0).numpy()
        mask[top : top + h, left : left + w] = True
        if self.settings["do_normalize"]:
            canvas -= MEAN
            canvas /= STD
        return canvas, mask

    def to_patches(self, crop: Array) -> Array:
        """`[side, side, channels]` to `[patches, values]`."""
        size = self.settings["image_patch_size"]
        steps = range(0, len(crop), size)
        return np.stack([crop[y : y + size, x : x + size].reshape(-1) for y in steps for x in steps])


class PlainMolmo(PlainModel):
    """The forward pass of one sequence."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.weights = {name.removeprefix("model."): tensor for name, tensor in self.weights.items()}
        self.vision, self.epsilon = self.config["vision_config"], self.config["layer_norm_eps"]

    # --- images ---------------------------------------------------------------------------------------------------

    def attend(self, x: Tensor, context: Tensor, name: str) -> Tensor:
        query, key, value = (
            self.linear(x, f"{name}.wq"),
            self.linear(context, f"{name}.wk"),
            self.linear(context, f"{name}.wv"),
        )
        size = query.shape[-1] // self.vision["image_num_heads"]
        heads = [
            (q @ k.T / size**0.5).softmax(-1) @ v
            for q, k, v in zip(*(torch.split(part, size, -1) for part in (query, key, value)), strict=True)
        ]
        return self.linear(torch.cat(heads, -1), f"{name}.wo")

    def features(self, crop: Tensor) -> Tensor:
        """`[patches, values]` to `[patches, 2 * width]`."""
        vit = "vision_backbone.image_vit"
        x = torch.cat([self.weights[f"{vit}.class_embedding"][None], self.linear(crop, f"{vit}.patch_embedding")])
        x = self.layer_norm(x + self.weights[f"{vit}.positional_embedding"], f"{vit}.pre_ln", 1e-5)
        outputs = []
        for i in range(self.vision["image_num_layers"]):
            block = f"{vit}.transformer.resblocks.{i}"
            y = self.layer_norm(x, f"{block}.attention_norm", 1e-5)
            x = x + self.attend(y, y, f"{block}.attention")
            y = self.linear(self.layer_norm(x, f"{block}.ffn_norm", 1e-5), f"{block}.feed_forward.w1")
            x = x + self.linear(y * (1.702 * y).sigmoid(), f"{block}.feed_forward.w2")
            outputs.append(x[1:])
        return torch.cat([outputs[-2], outputs[-9]], -1)

    @torch.no_grad()
    def encode(self, crop: Tensor, mask: Tensor) -> Tensor:
        """One crop's `[tokens, hidden_size]`."""
        x, pads = self.features(crop), self.weights["vision_backbone.pad_embed"]
        for i, part in enumerate(mask.tolist()):
            if part == 0:
                x[i] += pads[0]
            elif part < 1:
                x[i] += pads[1]
        side = round(len(x) ** 0.5)
        tokens = []
        for row in range(0, side, 2):
            for column in range(0, side, 2):
                first = row * side + column
                square = x[[first, first + 1, first + side, first + side + 1]]
                tokens.append(self.attend(square.mean(0, keepdim=True), square, "vision_backbone.image_pooling_2d"))
        pooled, name = torch.cat(tokens), "vision_backbone.image_projector"
        return self.linear(
            functional.silu(self.linear(pooled, f"{name}.w1")) * self.linear(pooled, f"{name}.w3"), f"{name}.w2"
        )

    # --- text -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def embed(self, inputs: dict[str, Any]) -> Tensor:
        """The prompt, `[tokens, hidden_size]`: features are added to the embeddings of their tokens."""
        x = self.table[torch.tensor(inputs["input_ids"])]
        for crop, mask, places in zip(
            *(inputs.get(name, ()) for name in ("images", "image_masks", "image_input_idx")), strict=True
        ):
            for place, feature in zip(places.tolist(), self.encode(crop, mask), strict=True):
                if place >= 0:
                    x[1 + place] += feature
        return x

    @property
    def table(self) -> Tensor:
        return torch.cat([self.weights["transformer.wte.embedding"], self.weights["transformer.wte.new_embedding"]])

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of the last token."""
        after = self.config["norm_after"]
        for i in range(self.config["num_hidden_layers"]):
            block = f"transformer.blocks.{i}"
            y = self.attention(x if after else self.rms_norm(x, f"{block}.attn_norm"), block)
            x = x + (self.rms_norm(y, f"{block}.attn_norm") if after else y)
            y = self.linear(x if after else self.rms_norm(x, f"{block}.ff_norm"), f"{block}.ff_proj")
            up, gate = y[:, : y.shape[1] // 2], y[:, y.shape[1] // 2 :]
            y = self.linear(functional.silu(gate) * up, f"{block}.ff_out")
            x = x + (self.rms_norm(y, f"{block}.ff_norm") if after else y)
        return self.linear(self.rms_norm(x[-1], "transformer.ln_f"), "transformer.ff_out")

    def attention(self, x: Tensor, block: str) -> Tensor:
        hidden, heads = self.config["hidden_size"], self.config["num_attention_heads"]
        size, key_heads = hidden // heads, self.config["num_key_value_heads"] or heads
        mixed = self.linear(x, f"{block}.att_proj")
        query = mixed[:, :hidden]
        key = mixed[:, hidden : hidden + key_heads * size]
        value = mixed[:, hidden + key_heads * size :]
        if self.config["attention_layer_norm"]:
            query, key = self.rms_norm(query, f"{block}.q_norm"), self.rms_norm(key, f"{block}.k_norm")
        outputs = []
        for head in range(heads):
            shared = head * key_heads // heads
            q, k, v = (
                part[:, i * size : (i + 1) * size] for part, i in ((query, head), (key, shared), (value, shared))
            )
            q, k = (torch.cat(rotated(*part.chunk(2, -1), base=self.config["rope_theta"]), -1) for part in (q, k))
            outputs.append(causal(q @ k.T / size**0.5) @ v)
        return self.linear(torch.cat(outputs, -1), f"{block}.attn_out")

    def generate(self, inputs: dict[str, Any], max_tokens: int, never: int) -> tuple[list[int], list[float]]:
        """Return greedy tokens, none of them `never`, and their log-probabilities."""
        x = self.embed(inputs)
        return generate_plain(lambda tokens: self.logits(torch.cat([x, self.table[tokens]])), max_tokens, [never])
