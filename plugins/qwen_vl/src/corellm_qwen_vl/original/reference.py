"""A plain second implementation of the original Qwen-VL: the oracle of the plugin's tests.

Written from the published description, with loops where the plugin has reshapes, and without code of the plugin: reads
the checkpoint's files by their published names, tokenizes by ranks as `tiktoken` does, runs without a cache.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import regex
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from corellm_testing import PlainModel, causal, generate_plain, rotated

PIECES = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", *[f"<|extra_{i}|>" for i in range(205)],
    "<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>", "<img>", "</img>", "<imgpad>",
]  # fmt: skip
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])


class PlainTokenizer:
    """Merges the pair of lowest rank until none is left."""

    def __init__(self, path: Path) -> None:
        self.ranks: dict[bytes, int] = {}
        for line in (path / "qwen.tiktoken").read_text().splitlines():
            token, rank = line.split()
            self.ranks[base64.b64decode(token)] = int(rank)
        self.specials = {token: len(self.ranks) + i for i, token in enumerate(SPECIALS)}
        self.bytes = {rank: token for token, rank in self.ranks.items()}
        self.bytes |= {i: token.encode() for token, i in self.specials.items()}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in regex.split("(" + "|".join(map(regex.escape, SPECIALS)) + ")", unicodedata.normalize("NFC", text)):
            if part in self.specials:
                ids.append(self.specials[part])
                continue
            for piece in PIECES.findall(part):
                ids += self._encode_piece(piece.encode())
        return ids

    def _encode_piece(self, piece: bytes) -> list[int]:
        if piece in self.ranks:
            return [self.ranks[piece]]
        parts = [bytes([byte]) for byte in piece]
        while True:
            pairs = [(self.ranks.get(a + b, len(self.ranks)), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]  # noqa: B905, RUF007
            rank, i = min(pairs, default=(len(self.ranks), 0))
            if rank == len(self.ranks):
                return [self.ranks[part] for part in parts]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    def encode_prompt(self, text: str, num_queries: int) -> list[int]:
        """As `encode`, with every `<img>...</img>` in the published layout, padding in place of the path."""
        bare = regex.sub("<img>.*?</img>", "<img></img>", text)
        return self.encode(bare.replace("<img></img>", "<img>" + "<imgpad>" * num_queries + "</img>"))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.bytes[i] for i in ids).decode(errors="replace")


def pixels(image: Image.Image, size: int) -> Tensor:
    """`[3, size, size]`: what torchvision's Resize (of a PIL image), ToTensor and Normalize do."""
    resized = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    tensor = torch.from_numpy(np.array(resized)).permute(2, 0, 1).float().div(255)
    return tensor.sub(MEAN[:, None, None]).div(STD[:, None, None])


class PlainQwenVL(PlainModel):
    """The forward pass of one sequence."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.visual, self.epsilon = self.config["visual"], self.config["layer_norm_epsilon"]
        self.num_queries: int = self.visual.get("n_queries", 256)

    def visual_norm(self, x: Tensor, name: str) -> Tensor:
        return self.layer_norm(x, f"transformer.visual.{name}", 1e-6)

    # --- images ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode_image(self, image: Image.Image) -> Tensor:
        """`[num_queries, hidden_size]`."""
        w = self.weights
        patch = self.visual["patch_size"]
        x = functional.conv2d(
            pixels(image, self.visual["image_size"])[None], w["transformer.visual.conv1.weight"], stride=patch
        )
        x = x[0].reshape(x.shape[1], -1).T  # [patches, width]
        x = x + self.stretched(w["transformer.visual.positional_embedding"], len(x))
        x = self.visual_norm(x, "ln_pre")
        for i in range(self.visual["layers"]):
            block = f"transformer.resblocks.{i}"
            x = x + self.visual_attention(self.visual_norm(x, f"{block}.ln_1"), f"transformer.visual.{block}.attn")
            y = self.linear(self.visual_norm(x, f"{block}.ln_2"), f"transformer.visual.{block}.mlp.c_fc")
            x = x + self.linear(functional.gelu(y), f"transformer.visual.{block}.mlp.c_proj")
        x = self.visual_norm(self.resample(x), "ln_post")
        return x @ w["transformer.visual.proj"]

    def visual_attention(self, x: Tensor, name: str) -> Tensor:
        mixed = self.linear(x, f"{name}.in_proj")  # for each head in turn: its queries, keys, values
        size = x.shape[-1] // self.visual["heads"]
        heads = []
        for head in range(self.visual["heads"]):
            q, k, v = mixed[:, head * 3 * size : (head + 1) * 3 * size].chunk(3, dim=-1)
            heads.append((q @ k.T / size**0.5).softmax(-1) @ v)
        return self.linear(torch.cat(heads, -1), f"{name}.out_proj")

    def resample(self, x: Tensor) -> Tensor:
        name, w = "transformer.visual.attn_pool", self.weights
        kv = self.visual_norm(self.linear(x, f"{name}.kv_proj"), "attn_pool.ln_kv")
        query = self.visual_norm(w[f"{name}.query"], "attn_pool.ln_q") + w[f"{name}.pos_embed"]
        key = kv + self.stretched(w[f"{name}.pos_embed"], len(kv))
        width = query.shape[-1]
        attention = torch.nn.MultiheadAttention(width, width // 128)
        attention.load_state_dict(
            {
                part: w[f"{name}.attn.{part}"]
                for part in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
            }
        )
        mixed: Tensor = attention(query[:, None], key[:, None], kv[:, None])[0]
        return mixed[:, 0]

    @staticmethod
    def stretched(table: Tensor, count: int) -> Tensor:
        old, new = round(len(table) ** 0.5), round(count**0.5)
        grid = table.T.reshape(1, -1, old, old)
        return functional.interpolate(grid, (new, new), mode="bicubic", align_corners=False)[0].reshape(-1, count).T

    # --- text -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def hidden(self, ids: Sequence[int], images: Sequence[Tensor]) -> Tensor:
        """`[tokens, hidden_size]`; the images' embeddings replace all tokens between `<img>` and `</img>`."""
        w, start = self.weights, self.visual["image_start_id"]
        x = w["transformer.wte.weight"][torch.tensor(ids)]
        begins = [i for i, token in enumerate(ids) if token == start]
        ends = [i for i, token in enumerate(ids) if token == start + 1]
        count = len(images)  # the prompt's come first; tags that were generated stand for no image
        for begin, end, image in zip(begins[:count], ends[:count], images, strict=True):
            x[begin + 1 : end] = image
        for i in range(self.config["num_hidden_layers"]):
            block = f"transformer.h.{i}"
            x = x + self.attention(self.rms_norm(x, f"{block}.ln_1"), f"{block}.attn")
            y = self.rms_norm(x, f"{block}.ln_2")
            y = self.linear(y, f"{block}.mlp.w1") * functional.silu(self.linear(y, f"{block}.mlp.w2"))
            x = x + self.linear(y, f"{block}.mlp.c_proj")
        last: Tensor = self.rms_norm(x, "transformer.ln_f")
        return last

    def attention(self, x: Tensor, name: str) -> Tensor:
        query, key, value = self.linear(x, f"{name}.c_attn").chunk(3, dim=-1)
        size = x.shape[-1] // self.config["num_attention_heads"]
        heads = []
        for q, k, v in zip(*(torch.split(part, size, -1) for part in (query, key, value)), strict=True):
            q, k = (torch.cat(rotated(*part.chunk(2, -1), base=self.config["rotary_emb_base"]), -1) for part in (q, k))
            heads.append(causal(q @ k.T / size**0.5) @ v)
        return self.linear(torch.cat(heads, -1), f"{name}.c_proj")

    def generate(
        self, ids: Sequence[int], images: Sequence[Image.Image], max_tokens: int, never: Sequence[int] = ()
    ) -> tuple[list[int], list[float]]:
        """Return greedy tokens, none of them in `never`, and their log-probabilities."""
        encoded = [self.encode_image(image) for image in images]
        head = self.weights["lm_head.weight"]
        return generate_plain(lambda tokens: head @ self.hidden([*ids, *tokens], encoded)[-1], max_tokens, never)
