"""Which tensors of GGUF files each parameter of a transformers model is made of.

The names of text models are those of the `gguf` package and of transformers; those of towers are here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile, StoredTensor

_NOT_WEIGHTS = re.compile(r"rope_freqs\.weight$|.*\.rope_freqs\.weight$")
"""Tensors that say what the configuration says."""
_LLAVA = {
    "v.class_embd": "embeddings.class_embedding",
    "v.patch_embd.weight": "embeddings.patch_embedding.weight",
    "v.position_embd.weight": "embeddings.position_embedding.weight",
    "v.pre_ln": "pre_layrnorm",
    "v.post_ln": "post_layernorm",
    "mm.0": "multi_modal_projector.linear_1",
    "mm.2": "multi_modal_projector.linear_2",
    "v.blk": "layers",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_QWEN2_VL = {
    "v.patch_embd.weight": "patch_embed.proj.weight",
    "v.patch_embd.weight.1": "patch_embed.proj.weight",
    "v.post_ln": "merger.ln_q",
    "mm.0": "merger.mlp.0",
    "mm.2": "merger.mlp.2",
    "v.blk": "blocks",
    "attn_q": "attn.qkv",
    "attn_k": "attn.qkv",
    "attn_v": "attn.qkv",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ln1": "norm1",
    "ln2": "norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_QWEN2_5_VL = _QWEN2_VL | {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_SIGLIP = {name: place for name, place in _LLAVA.items() if not name.startswith("mm.")} | {
    "v.patch_embd": "embeddings.patch_embedding",
}
_IDEFICS3 = _SIGLIP | {"mm.model.fc": "connector.modality_projection.proj"}
_GEMMA3 = _SIGLIP | {
    "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
    "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
}
_TOWERS: Mapping[str, Mapping[str, str]] = {
    "llava": _LLAVA, "qwen2_vl": _QWEN2_VL, "qwen2_5_vl": _QWEN2_5_VL, "gemma3": _GEMMA3,
    "idefics3": _IDEFICS3,
}  # fmt: skip
"""Parts of names in files and in transformers, by type of model, in the order in which several become one."""
_UNUSED = re.compile(r"vision_tower\..*post_layernorm\.")
"""Parameters of a tower that LLaVA does not use, and files leave out."""
_BLOCK = re.compile(r"v\.blk\.(\d+)\.(\w+)$")


class Source(NamedTuple):
    """A tensor of a file."""

    file: GgufFile
    name: str

    @property
    def stored(self) -> StoredTensor:
        """The tensor's place in the file, and its type."""
        return self.file.tensors[self.name]


class Names(NamedTuple):
    """Where a model's parameters are in files."""

    sources: Mapping[str, list[Source]]
    """Tensors of each parameter. Several are joined: by transformers' processor, or side by side in a tower. A
    parameter without any is not used."""
    by_tensor: Mapping[str, str]
    """Parameters by the text model's tensors, as transformers' processor takes them."""
    text: GgufFile
    processor: TensorProcessor
    """Undoes what llama.cpp changes of values and layouts of the text model."""

    def processor_of(self, source: Source) -> TensorProcessor:
        """Return what undoes changes of a tensor; of a tower's, only those of Gemma 3's own norm are changed."""
        if source.file is self.text or source.name == "mm.soft_emb_norm.weight":
            return self.processor
        return TensorProcessor()


def find_names(model: Any, text: GgufFile, tower: GgufFile | None) -> Names:
    """Return where each parameter of a model is.

    Raises:
        CheckpointError: a tensor has no place in the model, or the architecture has no names.
    """
    processor = TENSOR_PROCESSORS.get(text.architecture, TensorProcessor)(
        config=model.config.get_text_config(decoder=True).to_dict()
    )
    by_tensor = _text_names(model, text, processor)
    sources: dict[str, list[Source]] = defaultdict(list)
    for name in text.tensors:
        place = by_tensor.get(name) or by_tensor.get(name.removesuffix(".weight"))
        if place is not None:
            sources[place].append(Source(text, name))
        elif not _NOT_WEIGHTS.match(name):
            raise _without_place(text, name)
    if tower is not None:
        for name, place in _tower_names(model, tower):
            sources[place].append(Source(tower, name))
        for name in model.state_dict():
            if _UNUSED.search(name):
                sources.setdefault(name, [])
    return Names(sources, by_tensor, text, processor)


def _text_names(model: Any, text: GgufFile, processor: TensorProcessor) -> Mapping[str, str]:
    """Return parameters by tensor; a decoder that is part of a larger model is named as if it stood alone."""
    decoder = model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    config = model.config.get_text_config(decoder=True)
    named = _Renamed(model, path) if config is not model.config else model
    try:
        found = get_gguf_hf_weights_map(named, processor, text.architecture, config.num_hidden_layers)
    except NotImplementedError as error:
        raise CheckpointError(f"{text.path}: no names are known for the architecture {text.architecture!r}") from error
    return found if named is model else {tensor: named.own[place] for tensor, place in found.items()}


class _Renamed:
    """A model of which transformers sees the text model's parameters, under the names that text models have."""

    def __init__(self, model: nn.Module, path: str) -> None:
        self.config, self._state = None, model.state_dict()
        self.own = {re.sub(rf"^{re.escape(path)}\.", "model.", name): name for name in self._state}

    def state_dict(self) -> Mapping[str, Any]:
        """Return the parameters."""
        return {name: self._state[own] for name, own in self.own.items()}

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Return none."""
        return iter(())


def _tower_names(model: Any, tower: GgufFile) -> Iterator[tuple[str, str]]:
    """Yield names of tensors, and of parameters outside the decoder; of a parameter's tensors, in their order.

    The first files have the names of a layer's two products the other way round: their shapes tell.
    """
    parts, decoder = _TOWERS[model.config.model_type], model.get_decoder()
    path = next(name for name, module in model.named_modules() if module is decoder)
    known = [name for name in model.state_dict() if not name.startswith(f"{path}.")]
    order, found = list(parts), []
    for name in tower.tensors:
        part, tail = _place(name, parts, swapped=_are_swapped(tower))
        places = [place for place in known if f".{place}".endswith(f".{tail}")] if part else []
        if len(places) != 1:
            raise _without_place(tower, name)
        found.append((order.index(part), name, places[0]))
    for _, name, place in sorted(found):
        yield name, place


def _place(name: str, parts: Mapping[str, str], *, swapped: bool) -> tuple[str, str]:
    """Return which part of a tower a tensor is, and the end of the parameter's name; nothing for none."""
    if name in parts:
        return name, parts[name]
    stem, _, last = name.rpartition(".")
    if stem in parts:
        return stem, f"{parts[stem]}.{last}"
    block = _BLOCK.match(stem)
    if block is None or block[2] not in parts:
        return "", ""
    other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"} if swapped else {}
    part = other.get(block[2], block[2])
    return part, f"{parts['v.blk']}.{block[1]}.{parts[part]}.{last}"


def _are_swapped(tower: GgufFile) -> bool:
    first = tower.tensors.get("v.blk.0.ffn_up.weight")
    width = tower.stated.get("clip.vision.embedding_length")
    return first is not None and len(first.shape) == 2 and first.shape[1] != width


def _without_place(file: GgufFile, name: str) -> CheckpointError:
    return CheckpointError(
        f"{file.path}: the tensor {name!r:.100} has no place in a model of {file.architecture!r:.60}"
    )
