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
_TOWER = {
    "v.class_embd": "embeddings.class_embedding",
    "v.patch_embd": "embeddings.patch_embedding",
    "v.position_embd": "embeddings.position_embedding",
    "v.pre_ln": "pre_layrnorm",
    "v.post_ln": "post_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
    "mm.0": "multi_modal_projector.linear_1",
    "mm.2": "multi_modal_projector.linear_2",
}
"""Of LLaVA: parts of names in files, and in transformers."""
_UNUSED = re.compile(r"vision_tower\..*post_layernorm\.")
"""Parameters of a tower that LLaVA does not use, and files leave out."""
_BLOCK = re.compile(r"v\.blk\.(\d+)\.(\w+)$")


class Source(NamedTuple):
    """A tensor of a file."""

    file: GgufFile
    name: str

    @property
    def stored(self) -> StoredTensor:
        """Where it is, and how."""
        return self.file.tensors[self.name]


class Names(NamedTuple):
    """Where a model's parameters are in files."""

    sources: Mapping[str, list[Source]]
    """By parameter: of several, transformers' processor makes one. Of none, it is unused."""
    by_tensor: Mapping[str, str]
    """Parameters by the text model's tensors, as transformers' processor takes them."""
    text: GgufFile
    processor: TensorProcessor
    """Undoes what llama.cpp changes of values and layouts of the text model."""

    def processor_of(self, source: Source) -> TensorProcessor:
        """Return what undoes changes of a tensor."""
        return self.processor if source.file is self.text else TensorProcessor()


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


def _tower_names(model: nn.Module, tower: GgufFile) -> Iterator[tuple[str, str]]:
    """Yield names of tensors, and of parameters.

    The first files have the names of a layer's two products the other way round: their shapes tell.
    """
    known = {_tail(name): name for name in model.state_dict() if "vision_tower" in name or "projector" in name}
    for name, stored in tower.tensors.items():
        stem, _, last = name.rpartition(".")
        if name == "v.class_embd":
            stem, last = name, ""
        found = _BLOCK.match(stem)
        part = found[2] if found else stem
        if part in ("ffn_up", "ffn_down") and _are_swapped(tower):
            part = "ffn_down" if part == "ffn_up" else "ffn_up"
        if part not in _TOWER or not stored.shape:
            raise _without_place(tower, name)
        tail = f"{_TOWER[part]}.{last}".removesuffix(".")
        place = known.get(f"layers.{found[1]}.{tail}" if found else tail)
        if place is None:
            raise _without_place(tower, name)
        yield name, place


def _are_swapped(tower: GgufFile) -> bool:
    first = tower.tensors.get("v.blk.0.ffn_up.weight")
    width = tower.stated.get("clip.vision.embedding_length")
    return first is not None and len(first.shape) == 2 and first.shape[1] != width


def _tail(name: str) -> str:
    """Return the part of a parameter's name that its place in the model does not change."""
    for start in (".layers.", ".embeddings.", ".pre_layrnorm.", ".post_layernorm.", ".multi_modal_projector."):
        _, found, rest = f".{name}".partition(start)
        if found:
            return start[1:] + rest
    return name


def _without_place(file: GgufFile, name: str) -> CheckpointError:
    return CheckpointError(
        f"{file.path}: the tensor {name!r:.100} has no place in a model of {file.architecture!r:.60}"
    )
