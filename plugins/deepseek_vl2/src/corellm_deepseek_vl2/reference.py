"""A plain second implementation of DeepSeek-VL2: the oracle of the plugin's tests.

Written from the published description, with loops where the plugin has reshapes, and without code of the plugin or a
model of transformers: reads the checkpoint's files by their published names, runs one sequence without a cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from corellm_testing import PlainModel, causal, generate_plain, rotated


class PlainProcessor:
    """Tiles, their places in the prompt, and tokens."""

    def __init__(self, path: Path) -> None:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        file = path / "processor_config.json"
        stated = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        vision, ratio = config["vision_config"], config["projector_config"].get("downsample_ratio", 2)
        self.candidates = stated.get("candidate_resolutions", config["candidate_resolutions"])
        self.side: int = self.candidates[0][0]
        self.rows = int(np.ceil(self.side // vision["patch_size"] / ratio))
        self.mean = torch.tensor(stated.get("image_mean", [0.5, 0.5, 0.5]))
        self.std = torch.tensor(stated.get("image_std", [0.5, 0.5, 0.5]))
        self.normalize = stated.get("normalize", True)
        self.image: str = stated.get("image_token", "<image>")
        names = json.loads((path / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self.tokenizer.add_special_tokens([self.image])
        for token in ("<|User|>", "<|Assistant|>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>"):
            self.tokenizer.add_special_tokens([token])
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        self.bos, self.eos, self.image_id = (
            vocabulary[token] for token in (names["bos_token"], names["eos_token"], self.image)
        )

    def encode(self, text: str, tiles: Sequence[tuple[int, int]]) -> list[int]:
        """Tokens of a prompt: BOS, the texts between images each by itself, an image's tokens by its tiles."""
        texts = text.split(self.image)
        assert len(texts) == len(tiles) + 1, f"{len(texts) - 1} placeholders, {len(tiles)} images"
        ids = [self.bos, *self.plain(texts[0])]
        for (across, down), after in zip(tiles, texts[1:], strict=True):
            whole = self.rows * (self.rows + 1)
            local = self.rows * down * (self.rows * across + 1)
            ids += [self.image_id] * (whole + 1 + local)
            ids += self.plain(after)
        return ids

    def plain(self, text: str) -> list[int]:
        """Tokens of a text, nothing added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def resolution(self, image: Image.Image) -> tuple[int, int]:
        """The first of the candidates that keep most pixels and waste fewest."""
        width, height = image.size
        best, most, least = None, 0, float("inf")
        for across, down in self.candidates:
            scale = min(across / width, down / height)
            effective = min(int(width * scale) * int(height * scale), width * height)
            wasted = across * down - effective
            if effective > most or (effective == most and wasted < least):
                best, most, least = (across, down), effective, wasted
        assert best is not None, f"an image of {width} x {height} is not taken"
        return best

    def views(self, image: Image.Image, cropping: bool = True) -> tuple[Tensor, tuple[int, int]]:
        """`[1 + tiles, 3, side, side]`, and the tiles across and down."""
        image = image.convert("RGB")
        width, height = self.resolution(image) if cropping else (self.side, self.side)
        colour = tuple(int(x * 255) for x in self.mean.tolist())
        views = [ImageOps.pad(image, (self.side, self.side), color=colour)]
        padded = ImageOps.pad(image, (width, height), color=colour)
        for top in range(0, height, self.side):
            lefts = range(0, width, self.side)
            views += [padded.crop((left, top, left + self.side, top + self.side)) for left in lefts]
        return torch.stack([self.pixels(view) for view in views]), (width // self.side, height // self.side)

    def pixels(self, view: Image.Image) -> Tensor:
        """What torchvision's ToTensor and Normalize do."""
        tensor = torch.from_numpy(np.array(view)).permute(2, 0, 1).float().div(255)
        return tensor.sub(self.mean[:, None, None]).div(self.std[:, None, None]) if self.normalize else tensor


class PlainDeepseek(PlainModel):
    """The forward pass of one sequence."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.text: dict[str, Any] = self.config["language_config"]
        self.base: float = self.text.get("rope_theta", 10000.0)
        self.epsilon = self.text.get("rms_norm_eps", 1e-6)

    # --- images ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode_image(self, views: Tensor, tiles: tuple[int, int]) -> Tensor:
        """`[tokens, hidden_size]` of views `[1 + tiles, 3, side, side]`."""
        grids = [self.project(self.tower(view)) for view in views]
        across, down = tiles
        newline = self.weights["image_newline"]

        def rows(beside: Sequence[Sequence[Sequence[Tensor]]]) -> list[Tensor]:
            whole: list[Tensor] = []
            for row in range(len(beside[0])):
                for view in beside:
                    whole += list(view[row])
                whole.append(newline)
            return whole

        first = rows([grids[0]])
        local: list[Tensor] = []
        for line in range(down):
            local += rows(grids[1 + line * across : 1 + (line + 1) * across])
        between = [self.weights["view_seperator"]]
        if self.config["global_view_pos"] == "head":
            return torch.stack([*first, *between, *local])
        return torch.stack([*local, *between, *first])

    def tower(self, view: Tensor) -> Tensor:
        """`[patches, width]`."""
        w, vision = self.weights, self.config["vision_config"]
        size = vision["patch_size"]
        count = view.shape[-1] // size
        kernel = w["vision.patch_embed.proj.weight"].flatten(1)
        patches = [
            view[:, size * i : size * (i + 1), size * j : size * (j + 1)].flatten()
            for i in range(count)
            for j in range(count)
        ]
        x = torch.stack(patches) @ kernel.T + w["vision.patch_embed.proj.bias"] + w["vision.pos_embed"][0]
        for i in range(vision["layers"]):
            block = f"blocks.{i}"
            x = x + self.tower_attention(self.layer_norm(x, f"vision.{block}.norm1", 1e-6), f"vision.{block}.attn")
            y = self.linear(self.layer_norm(x, f"vision.{block}.norm2", 1e-6), f"vision.{block}.mlp.fc1")
            x = x + self.linear(functional.gelu(y, approximate="tanh"), f"vision.{block}.mlp.fc2")
        return self.layer_norm(x, "vision.norm", 1e-6)

    def tower_attention(self, x: Tensor, name: str) -> Tensor:
        size = x.shape[-1] // self.config["vision_config"].get("heads", 16)
        q, k, v = (torch.split(part, size, -1) for part in self.linear(x, f"{name}.qkv").chunk(3, dim=-1))
        heads = [(a @ b.T / size**0.5).softmax(-1) @ c for a, b, c in zip(q, k, v, strict=True)]
        return self.linear(torch.cat(heads, -1), f"{name}.proj")

    def project(self, patches: Tensor) -> list[list[Tensor]]:
        """Rows of embeddings: each of a square of patches, channel by channel, zeros beyond the edges."""
        settings = self.config["projector_config"]
        ratio, depth = settings.get("downsample_ratio", 2), settings.get("depth", 2)
        side = round(len(patches) ** 0.5)
        missing = torch.zeros_like(patches[0])
        rows: list[list[Tensor]] = []
        for top in range(0, side, ratio):
            row: list[Tensor] = []
            for left in range(0, side, ratio):
                square = [
                    patches[i * side + j] if i < side and j < side else missing
                    for i in range(top, top + ratio)
                    for j in range(left, left + ratio)
                ]
                x = torch.stack(square, dim=1).flatten()
                for layer in range(depth):
                    x = functional.gelu(x) if layer else x
                    x = self.linear(x, f"projector.layers.{2 * layer}")
                row.append(x)
            rows.append(row)
        return rows

    # --- text -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def hidden(self, ids: Sequence[int], image_id: int, images: Sequence[Tensor]) -> Tensor:
        """`[tokens, hidden_size]`; the images' embeddings replace the first tokens `image_id`."""
        x = self.weights["language.model.embed_tokens.weight"][torch.tensor(ids)]
        places = [i for i, token in enumerate(ids) if token == image_id]
        embeddings = [row for image in images for row in image]
        for place, row in zip(places, embeddings, strict=False):  # tokens that were generated stand for no image
            x[place] = row
        for i in range(self.text["num_hidden_layers"]):
            layer = f"language.model.layers.{i}"
            attend = self.latent_attention if self.text.get("use_mla", True) else self.attention
            x = x + attend(self.rms_norm(x, f"{layer}.input_layernorm"), f"{layer}.self_attn")
            y = self.rms_norm(x, f"{layer}.post_attention_layernorm")
            has_experts = i >= self.text["first_k_dense_replace"]
            x = x + (self.experts(y, f"{layer}.mlp") if has_experts else self.mlp(y, f"{layer}.mlp"))
        return self.rms_norm(x, "language.model.norm")

    def mlp(self, x: Tensor, name: str) -> Tensor:
        inner = functional.silu(self.linear(x, f"{name}.gate_proj")) * self.linear(x, f"{name}.up_proj")
        return self.linear(inner, f"{name}.down_proj")

    def experts(self, x: Tensor, name: str) -> Tensor:
        """The outputs of all experts, weighted with 0 where a token did not choose one, and of the shared ones."""
        text = self.text
        logits = self.linear(x, f"{name}.gate")
        scores = logits.sigmoid() if text.get("scoring_func", "softmax") == "sigmoid" else logits.softmax(-1)
        output = self.mlp(x, f"{name}.shared_experts")
        weights = torch.stack([self.weighted(token, f"{name}.gate") for token in scores])
        for expert in range(text["n_routed_experts"]):
            output = output + weights[:, expert, None] * self.mlp(x, f"{name}.experts.{expert}")
        return output

    def weighted(self, scores: Tensor, name: str) -> Tensor:
        """Weights of the experts for one token, `[experts]`."""
        text, merits = self.text, scores.clone()
        if text["topk_method"] == "noaux_tc":
            merits += self.weights[f"{name}.e_score_correction_bias"]
        if text["topk_method"] == "group_limited_greedy":
            groups = merits.view(text["n_group"], -1)
            best = groups.max(-1).values.topk(text["topk_group"]).indices.tolist()
            for group in set(range(len(groups))) - set(best):
                groups[group] = 0
        chosen = merits.topk(text["num_experts_per_tok"]).indices
        weights = torch.zeros_like(scores)
        weights[chosen] = scores[chosen]
        if text.get("norm_topk_prob", False):
            weights = weights / weights.sum()
        factor: float = text.get("routed_scaling_factor", 1.0)
        return weights * factor

    def attention(self, x: Tensor, name: str) -> Tensor:
        """Return the attention of each head by itself; a head's first half is rotated with its second."""
        size = x.shape[-1] // self.text["num_attention_heads"]
        parts = (torch.split(self.linear(x, f"{name}.{part}"), size, -1) for part in ("q_proj", "k_proj", "v_proj"))
        heads = []
        for q, k, v in zip(*parts, strict=True):
            q, k = (torch.cat(rotated(*part.chunk(2, -1), base=self.base), -1) for part in (q, k))
            heads.append(causal(q @ k.T / size**0.5) @ v)
        return self.linear(torch.cat(heads, -1), f"{name}.o_proj")

    def latent_attention(self, x: Tensor, name: str) -> Tensor:
        """Keys and values of a latent; of each key a part that is rotated, the same in all heads."""
        text = self.text
        plain, turned, value = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"]
        if text["q_lora_rank"] is None:
            queries = self.linear(x, f"{name}.q_proj")
        else:
            queries = self.rms_norm(self.linear(x, f"{name}.q_a_proj"), f"{name}.q_a_layernorm", 1e-6)
            queries = self.linear(queries, f"{name}.q_b_proj")
        joint = self.linear(x, f"{name}.kv_a_proj_with_mqa")
        latent, key_turned = joint[:, :-turned], joint[:, -turned:]
        both = self.linear(self.rms_norm(latent, f"{name}.kv_a_layernorm", 1e-6), f"{name}.kv_b_proj")
        heads = []
        by_head = torch.split(queries, plain + turned, -1), torch.split(both, plain + value, -1)
        for q, kv in zip(*by_head, strict=True):
            scores = q[:, :plain] @ kv[:, :plain].T
            # neighbours are rotated with each other
            a, b = rotated(q[:, plain::2], q[:, plain + 1 :: 2], base=self.base)
            c, d = rotated(key_turned[:, 0::2], key_turned[:, 1::2], base=self.base)
            scores = (scores + a @ c.T + b @ d.T) / (plain + turned) ** 0.5
            heads.append(causal(scores) @ kv[:, plain:])
        return self.linear(torch.cat(heads, -1), f"{name}.o_proj")

    def generate(
        self, ids: Sequence[int], image_id: int, images: Sequence[Tensor], max_tokens: int, never: Sequence[int] = ()
    ) -> tuple[list[int], list[float]]:
        """Return greedy tokens, none of them in `never`, and their log-probabilities."""
        head = self.weights["language.lm_head.weight"]
        return generate_plain(
            lambda tokens: head @ self.hidden([*ids, *tokens], image_id, images)[-1], max_tokens, never
        )
