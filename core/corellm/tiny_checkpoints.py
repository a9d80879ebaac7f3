"""Parts of tiny random checkpoints: a tokenizer trained in place, weights random enough for varied output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CORPUS = (
    "What shape is in the picture? A red circle, a blue square, a green triangle.",
    "How many objects are there? one two three four five six seven eight nine ten",
    "USER: Describe the image. ASSISTANT: The quick brown fox jumps over the lazy dog 0123456789",
    "system user assistant You are a helpful assistant. Question: Answer: yes no left right above below",
)


def train_tokenizer(
    special_tokens: Sequence[str],
    *,
    vocab_size: int = 400,
    bos: str | None = None,
    eos: str = "</s>",
    pad: str | None = None,
    unk: str | None = None,
    add_bos: bool = False,
) -> Any:
    """Return a byte-level BPE tokenizer trained on a few sentences.

    Args:
        special_tokens: the family's own, e.g. `<image>`.
        vocab_size: tokens in all.
        bos, eos, pad, unk: the usual special tokens; None for no such token.
        add_bos: begin every text with `bos`.

    Returns:
        A `PreTrainedTokenizerFast`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=unk))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = {"bos_token": bos, "eos_token": eos, "pad_token": pad, "unk_token": unk}
    named = {name: token for name, token in named.items() if token is not None}
    specials = list(dict.fromkeys([*named.values(), *special_tokens]))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 50, trainer)
    if add_bos:
        assert bos is not None, "add_bos needs bos"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    extra = [token for token in specials if token not in named.values()]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=extra, **named)
    fast.model_input_names = ["input_ids", "attention_mask"]
    return fast


def train_sentencepiece(special_tokens: Sequence[str], *, vocab_size: int = 700) -> dict[str, Any]:
    """Return a BPE as SentencePiece trains them: a space is a character like others, unknown characters are bytes.

    Several line breaks are one token.

    Args:
        special_tokens: they get the first ids; `<unk>` must be one of them.
        vocab_size: tokens in all.

    Returns:
        `{"vocab": {token: id}, "merges": [(left, right)]}`, arguments of transformers' tokenizers.
    """
    from tokenizers import Tokenizer, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special_tokens, *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=[chr(code) for code in range(32, 127)],
        max_token_length=8,
        show_progress=False,
    )
    words = [word for line in CORPUS for word in line.replace(" ", " \0").split("\0")]
    tokenizer.train_from_iterator([*words * 50, *["\n" * count for count in range(1, 9)] * 50], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(merge) for merge in model["merges"]]}


def spare(count: int) -> list[str]:
    """Return special tokens without a use: put before a family's own, they give those other ids."""
    return [f"<|spare_{i}|>" for i in range(count)]


def randomize_weights(model: Any, seed: int) -> None:
    """Overwrite weights and biases with wide random values: a default initialisation makes greedy output constant.

    A layer's weights are spread by the number of its inputs, which are the columns; of GPT-2's `Conv1D`, the rows.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    inputs_first = {id(module.weight) for module in model.modules() if isinstance(module, Conv1D)}
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    output, embedding = model.get_output_embeddings(), model.get_input_embeddings().weight
    tied = output is not None and output.weight is embedding
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and name.endswith("weight"):
                continue  # norms stay at one
            if parameter is embedding or "embed_tokens" in name:
                spread = 0.05 if tied else 0.5
            elif name.endswith("sinks"):
                spread = 4.0  # beside the scores of many tokens
            else:
                inputs = parameter.shape[0 if id(parameter) in inputs_first else -1]
                spread = 1.4 / inputs**0.5 if parameter.dim() == 2 else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator, device=device) * spread)
    model.eval()


def set_architecture(path: str | Path, name: str) -> None:
    """Write an architecture's name into a checkpoint's `config.json`: corellm chooses the adapter by it.

    For a model that transformers saves under the name of its own class while your plugin serves it under another.

    Args:
        path: the checkpoint's directory.
        name: of the plugin's entry point.
    """
    file = Path(path) / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["architectures"] = [name]
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
