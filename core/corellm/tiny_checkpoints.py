"""Parts of tiny random checkpoints: a tokenizer trained in place, small sizes, weights random enough for varied output.

Weights are spread wider than by a default initialisation, so that mistakes change the output. Those of a model of
transformers are randomized; those of a model that it does not have are written under their published names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

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
    **arguments: Any,
) -> Any:
    """Return a byte-level BPE tokenizer trained on a few sentences.

    Args:
        special_tokens: the family's own, e.g. `<image>`.
        vocab_size: tokens in all.
        bos, eos, pad, unk: the usual special tokens; None for no such token.
        add_bos: begin every text with `bos`.
        arguments: further ones of `PreTrainedTokenizerFast`, as `extra_special_tokens={"image_token": "<image>"}`:
            the tokenizer then has that attribute.

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
    if "extra_special_tokens" not in arguments:
        arguments["additional_special_tokens"] = [token for token in specials if token not in named.values()]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named, **arguments)
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


def special_token_ids(tokenizer: Any) -> dict[str, Any]:
    """Return the ids of a tokenizer's usual special tokens, by the names that configurations have for them."""
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def layer_sizes(hidden_size: int = 64, num_layers: int = 2, **more: Any) -> dict[str, Any]:
    """Return arguments of a configuration: small sizes, four heads, by the names that most have; and `more`."""
    return {
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        **more,
    }


def decoder_settings(tokenizer: Any, hidden_size: int = 64, num_layers: int = 2, **more: Any) -> dict[str, Any]:
    """Return arguments of a text decoder's configuration: `layer_sizes`, the tokenizer's tokens; and `more`."""
    common = {"vocab_size": len(tokenizer), "max_position_embeddings": 1024, **special_token_ids(tokenizer)}
    return layer_sizes(hidden_size, num_layers, **{**common, **more})


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
            elif parameter.dim() == 2:
                spread = 1.4 / parameter.shape[0 if id(parameter) in inputs_first else 1] ** 0.5
            else:
                spread = 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator, device=device) * spread)
    model.eval()


def with_biases(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of modules' weights and biases, `{"module.weight": shape}`, given those of the weights.

    Args:
        shapes: `{module: shape of its weight}`: of linear layers, convolutions and norms.
    """
    return {
        f"{module}.{part}": part_shape
        for module, shape in shapes.items()
        for part, part_shape in (("weight", shape), ("bias", shape[:1]))
    }


def write_weights(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    spread: Mapping[str, float | Callable[[Tensor], Tensor]] | None = None,
    *,
    num_shards: int = 1,
) -> None:
    """Write random weights under their published names, for a model that transformers does not have.

    Norms are about one, biases about nothing, matrices are spread by the number of their inputs.

    Args:
        path: the checkpoint's directory.
        shapes: `{name: shape}`.
        seed: of the random numbers.
        spread: what differs from that, `{pattern of names: a standard deviation, or a function of normal noise}`; the
            first pattern that fits counts.
        num_shards: files to spread the weights over; more than one come with an index.
    """
    import torch
    from safetensors.torch import save_file

    def spread_out(name: str, noise: Tensor) -> Tensor:
        special = next((value for pattern, value in (spread or {}).items() if fnmatchcase(name, pattern)), None)
        if special is not None:
            return special(noise) if callable(special) else special * noise
        if noise.dim() == 1:
            return 1 + 0.1 * noise if name.endswith("weight") else 0.1 * noise
        root: float = math.prod(noise.shape[1:]) ** 0.5
        return noise * 1.4 / root

    path, generator = Path(path), torch.Generator().manual_seed(seed)
    tensors = {
        name: spread_out(name, torch.randn(shape, generator=generator)) for name, shape in sorted(shapes.items())
    }
    if num_shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return
    files = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    weight_map = {name: files[i % num_shards] for i, name in enumerate(tensors)}
    for file in files:
        held = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        save_file(held, path / file, metadata={"format": "pt"})
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    write_json(path, {"model.safetensors.index.json": index})


def write_json(path: str | Path, files: Mapping[str, Any]) -> None:
    """Write a checkpoint's JSON files.

    Args:
        path: its directory; made if need be.
        files: `{name: content}`.
    """
    Path(path).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (Path(path) / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def set_architecture(path: str | Path, name: str) -> None:
    """Write an architecture's name into a checkpoint's `config.json`: corellm chooses the adapter by it.

    For a model that transformers saves under the name of its own class while your plugin serves it under another.

    Args:
        path: the checkpoint's directory.
        name: of the plugin's entry point.
    """
    config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    write_json(path, {"config.json": {**config, "architectures": [name]}})
