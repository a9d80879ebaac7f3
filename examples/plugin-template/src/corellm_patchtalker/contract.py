"""PatchTalker keeps the contract: `pytest --pyargs corellm_patchtalker.contract`.

The contract compares the adapter with an oracle: transformers, or one by the author for a model that transformers does
not have. A good oracle is plain and shares no code with the plugin; it may be slow. This one reads the same files,
without `config`, `processor` and `model`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from corellm_testing import AdapterContract, Continuation, Reference, generate_plain, plain_weights

from corellm_patchtalker import PatchTalker


class PlainPatchTalker(Reference):
    """A second PatchTalker: images are cut one patch at a time, text is generated without a cache."""

    def process(self, text: str, media: Mapping[str, Sequence[Any]], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Lay images out in the prompt's text before it is tokenized."""
        import torch

        grids: list[list[int]] = []
        patches: list[Any] = []
        for image in media.get("image", ()):
            cut = self._cut(image.convert("RGB"), kwargs.get("max_patches", self._settings["max_patches"]))
            grids.append([len(cut), len(cut[0])])
            patches += [patch for row in cut for patch in row]
            text = text.replace("<image>", ("\N{NULL}" * len(cut[0]) + "<row>") * len(cut), 1)
        outputs = {"input_ids": torch.tensor([self._tokenizer(text.replace("\N{NULL}", "<image>"))["input_ids"]])}
        if patches:
            outputs |= {"patches": torch.stack(patches), "grids": torch.tensor(grids)}
        return outputs

    def generate(
        self, text: str, media: Mapping[str, Sequence[Any]], kwargs: Mapping[str, Any], max_tokens: int
    ) -> Continuation:
        """Generate the likeliest tokens, without the end token."""
        import torch

        inputs = self.process(text, media, kwargs)
        prompt = inputs["input_ids"][0]
        embeddings = self._llama.get_input_embeddings()
        with torch.inference_mode():
            hidden = embeddings(prompt)
            if "patches" in inputs:
                weights = self._weights
                projected = inputs["patches"] @ weights["projection.weight"].T + weights["projection.bias"]
                hidden[prompt == self._tokenizer.convert_tokens_to_ids("<image>")] = projected

        def next_logits(tokens: list[int]) -> Any:
            behind = embeddings(torch.tensor(tokens, dtype=torch.long))
            return self._llama(inputs_embeds=torch.cat([hidden, behind])[None]).logits[0, -1]

        never = [self._tokenizer.eos_token_id]
        return Continuation(prompt.tolist(), *generate_plain(next_logits, max_tokens, never))

    def _cut(self, image: Any, most: int) -> list[list[Any]]:
        """Return rows of patches."""
        import numpy as np
        import torch
        from PIL import Image

        side = self._settings["patch_size"]
        width, height = image.size
        while (columns := (width + side - 1) // side) * (rows := (height + side - 1) // side) > most:
            width, height = (width + 1) // 2, (height + 1) // 2
        whole = image.resize((columns * side, rows * side), Image.Resampling.BICUBIC)

        def patch(row: int, column: int) -> Any:
            left, top = column * side, row * side
            pixels = np.asarray(whole.crop((left, top, left + side, top + side)), dtype=np.float32)
            return torch.from_numpy(pixels.transpose(2, 0, 1).flatten() / np.float32(127.5) - np.float32(1))

        return [[patch(row, column) for column in range(columns)] for row in range(rows)]

    @cached_property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads((self.checkpoint / "config.json").read_text(encoding="utf-8"))
        return settings

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(self.checkpoint)

    @cached_property
    def _weights(self) -> dict[str, Any]:
        return plain_weights(self.checkpoint)

    @cached_property
    def _llama(self) -> Any:
        """The decoder alone, on transformers' own attention."""
        from transformers import LlamaConfig, LlamaForCausalLM

        llama = LlamaForCausalLM(LlamaConfig(**self._settings["text_config"]))
        own = {name: tensor for name, tensor in self._weights.items() if name.startswith("language_model.")}
        llama.load_state_dict({name.removeprefix("language_model."): tensor for name, tensor in own.items()})
        return llama.eval()


class TestPatchTalker(AdapterContract):
    """Every rule of the contract, on the tiny checkpoint."""

    adapter = PatchTalker
    reference = PlainPatchTalker
    processor_kwargs: ClassVar[Sequence[Mapping[str, Any]]] = [{"max_patches": 6}, {"max_patches": 1}]
    argument_values: ClassVar[Mapping[str, Sequence[Any]]] = {"max_patches": [6, 1]}  # the processor declares none
    # the checkpoint has no chat template; a model's paper or repository shows the form that it was trained on
    chat_prompts = (
        "Be brief.\nUSER: What is this <image>\n?\nASSISTANT: A circle\nUSER: Which colour?\nASSISTANT: It is red.\n"
        "USER: <image>\nAnd now?\nASSISTANT:",
        "USER: <image>\nAnd now?\nASSISTANT:",
    )
