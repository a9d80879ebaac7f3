"""The model with a published checkpoint's weights: transformers' InternVL, and where each weight belongs in it.

Reads safetensors only, in one file or many; reads no pickle. Every weight of the model is in the checkpoint, and the
reverse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from corellm.errors import CheckpointError
from corellm.hookspecs import LoadConfig

_TOWER = "model.vision_tower."
_PREFIXES = {
    "vision_model.embeddings.class_embedding": f"{_TOWER}embeddings.cls_token",
    "vision_model.embeddings.position_embedding": f"{_TOWER}embeddings.position_embeddings",
    "vision_model.embeddings.patch_embedding.": f"{_TOWER}embeddings.patch_embeddings.projection.",
    "vision_model.": _TOWER,
    "mlp1.0.": "model.multi_modal_projector.layer_norm.",
    "mlp1.1.": "model.multi_modal_projector.linear_1.",
    "mlp1.3.": "model.multi_modal_projector.linear_2.",
    "language_model.lm_head.": "lm_head.",
    "language_model.model.": "model.language_model.",
}
_LAYER = re.compile(r"vision_model\.encoder\.layers\.(\d+)\.(.+?)(\.weight|\.bias|)")
_IN_LAYER = {
    "attn.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attn.q_norm": ("attention.q_norm",),
    "attn.k_norm": ("attention.k_norm",),
    "attn.proj": ("attention.projection_layer",),
    "norm1": ("layernorm_before",),
    "norm2": ("layernorm_after",),
    "ls1": ("lambda_1",),
    "ls2": ("lambda_2",),
    "mlp.fc1": ("mlp.fc1",),
    "mlp.fc2": ("mlp.fc2",),
}
_COMPUTED = re.compile(r".*\.rotary_emb\.inv_freq")
"""Constants in older checkpoints, computed here."""


def load_model(config: Any, load_config: LoadConfig) -> nn.Module:
    """Return transformers' model with the checkpoint's weights; with `load_format="dummy"` they are random.

    Raises:
        CheckpointError: a file is absent or broken, or a weight is missing, misshapen or has no place.
    """
    path, is_dummy = load_config.model_path, load_config.load_format == "dummy"
    attention = {"text_config": load_config.attn_implementation, "vision_config": "sdpa"}
    with load_config.device if is_dummy else torch.device("meta"):
        model = transformers.InternVLForConditionalGeneration._from_config(
            deepcopy(config), dtype=load_config.dtype, attn_implementation=attention
        )
    if not is_dummy:
        decoder = model.get_decoder()
        decoder.rotary_emb = type(decoder.rotary_emb)(decoder.config)  # its frequencies are computed, not loaded
        state = _state(path, load_config)
        if config.tie_word_embeddings:
            state["lm_head.weight"] = state.get("model.language_model.embed_tokens.weight", torch.empty(0))
        _check(path, model.state_dict(), state)
        model.load_state_dict(state, assign=True)
        model.tie_weights()
    if (path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    loaded: nn.Module = model.to(load_config.device).eval()
    return loaded


def weight_names(name: str) -> tuple[str, ...]:
    """Return transformers' names of a published weight: it is split equally among several, and skipped for none."""
    if _COMPUTED.fullmatch(name):
        return ()
    match = _LAYER.fullmatch(name)
    if match is not None and match[2] in _IN_LAYER:
        return tuple(f"{_TOWER}encoder.layer.{match[1]}.{part}{match[3]}" for part in _IN_LAYER[match[2]])
    for prefix, theirs in _PREFIXES.items():
        if name.startswith(prefix):
            return (theirs + name.removeprefix(prefix),)
    return (name,)


def _state(path: Path, load_config: LoadConfig) -> dict[str, Tensor]:
    """Return the checkpoint's weights by transformers' names."""
    state: dict[str, Tensor] = {}
    for name, tensor in _read(_files(path)):
        if names := weight_names(name):
            tensor = tensor.to(load_config.device, load_config.dtype)
            state.update(zip(names, tensor.tensor_split(len(names)) if len(names) > 1 else (tensor,), strict=True))
    return state


def _files(path: Path) -> list[Path]:
    """Return the files with weights: those that the index names, else all."""
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        if files := sorted(path.glob("*.safetensors")):
            return files
        raise CheckpointError(
            f"{path} has no *.safetensors; download all files. Pickles (*.bin) can run code and are not loaded"
        )
    try:
        files = [path / name for name in sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index}: not a readable index of weights ({error})") from error
    if missing := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{path} lacks {', '.join(missing[:3])}, which {index.name} names; download all files")
    return files


def _read(files: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 -- not a mapping
                    yield name, tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: the weights cannot be read ({error}); download the file again") from error


def _check(path: Path, wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    shapes = {name: (list(tensor.shape), list(wanted[name].shape)) for name, tensor in state.items() if name in wanted}
    misshapen = [f"{name} {ours} (not {theirs})" for name, (ours, theirs) in shapes.items() if ours != theirs]
    for names, meaning in (
        (sorted(set(wanted) - set(state)), "the checkpoint lacks weights the model needs"),
        (sorted(set(state) - set(wanted)), "the checkpoint has weights the model has no place for"),
        (sorted(misshapen), "weights have another shape than the model's"),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"{path}: {meaning}: {', '.join(names[:3])}{more}")
