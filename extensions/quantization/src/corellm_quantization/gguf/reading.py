"""Reads the weights of GGUF files into a transformers model: integers in groups as they are, others widened.

Knows transformers' quantizers; `names` knows names, `blocks` the types.
"""

from __future__ import annotations

import logging
import shutil
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor, TensorProcessor
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from corellm.errors import CheckpointError
from corellm_kernels.grouped_linear import EncodedWeight, GroupedLinear, GroupedWeight
from corellm_quantization.gguf.blocks import FLOATS, FORMS, can_widen, decoded, widened
from corellm_quantization.gguf.file import read_file
from corellm_quantization.gguf.names import Names, Source, find_names

logger = logging.getLogger(__name__)

METHOD = "corellm-gguf"
"""The name by which transformers knows what is here."""
_WIDENED_AT_ONCE = 1 << 22
"""So many numbers are in float32 at once."""


@register_quantization_config(METHOD)
class GgufFiles(QuantizationConfigMixin):  # type: ignore[misc]
    """Where the weights are."""

    def __init__(self, files: list[list[str]], states: list[list[int]], **others: Any) -> None:
        self.quant_method, self.files, self.states = METHOD, files, states


class _Place(nn.Module):
    """Stands for a linear layer until its weight is there; transformers reads its bias."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.shape, self.dtype, self.bias = tuple(linear.weight.shape), linear.weight.dtype, linear.bias


@register_quantizer(METHOD)
class GgufReader(HfQuantizer):  # type: ignore[misc]
    """Has transformers take each parameter from the files, and gives linear layers their integers."""

    quantization_config: GgufFiles

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: list[str], **others: Any) -> Any:
        """Find the tensors; take out linear layers that keep their integers; name the other parameters in a file.

        Transformers reads what a safetensors file lists: one that lists empty tensors, for which values are given.
        """
        given = self.quantization_config
        files = [read_file([Path(part) for part in parts]) for parts in given.files]
        for file, state in zip(files, given.states, strict=True):
            file.require_state(state)
        self._tensors = _Tensors(find_names(model, files[0], files[1] if len(files) > 1 else None))
        self._linears = {}
        names = dict(self._tensors.names.sources)
        for name, sources in self._tensors.names.sources.items():
            path, _, last = name.rpartition(".")
            module = model.get_submodule(path)
            if last == "weight" and type(module) is nn.Linear and self._tensors.stays(sources):
                self._linears[path] = names.pop(name)[0]
                model.set_submodule(path, _Place(module))
        folder = mkdtemp(prefix="corellm-gguf-")
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # also where a load fails
        listed = Path(folder) / "model.safetensors"
        save_file({name: torch.empty(0, device="cpu") for name in names}, listed)
        checkpoint_files[:] = [str(listed)]
        return model

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any = None) -> list[Any]:
        """Replace those of checkpoints in the Hugging Face layout: names are the model's own.

        Transformers 5.17 gives no model.
        """
        return [WeightConverter("(.+)", r"\1", [_Take(self._tensors)])]

    def _process_model_after_weight_loading(self, model: Any, **others: Any) -> Any:
        """Put linear layers in their places."""
        self._remove()
        kept = Counter[str]()
        for path, source in self._linears.items():
            place = model.get_submodule(path)
            model.set_submodule(path, _linear(source, self._tensors.rows(source), place))
            kept[source.stored.kind.name] += 1
        if kept:
            logger.info("weights as they are: %s", _listed(kept))
        if self._tensors.widened:
            logger.info("weights widened to %s: %s", model.dtype, _listed(self._tensors.widened))
        return model

    @property
    def is_trainable(self) -> bool:
        """No."""
        return False

    def is_serializable(self) -> bool:
        """No."""
        return False


class _Take(ConversionOps):  # type: ignore[misc]
    """Gives a parameter its values."""

    def __init__(self, tensors: _Tensors) -> None:
        self._tensors = tensors

    def __deepcopy__(self, memo: Any) -> _Take:
        """Return this one: it has no state of one parameter."""
        return self

    def convert(self, input_dict: Any, *, full_layer_name: str, model: Any, **others: Any) -> dict[str, Tensor]:
        """Return the parameter of a name."""
        like = model.get_parameter_or_buffer(full_layer_name)
        return {full_layer_name: self._tensors.parameter(full_layer_name, like)}


class _Tensors:
    """The tensors of files, by the parameters that they are."""

    def __init__(self, names: Names) -> None:
        self.names, self.widened = names, Counter[str]()
        kinds = {source.stored.kind for sources in names.sources.values() for source in sources}
        if unknown := ", ".join(sorted(kind.name for kind in kinds if not can_widen(kind))):
            raise CheckpointError(
                f"{names.text.path}: weights in {unknown} cannot be read; take another file of the model"
            )

    def stays(self, sources: Sequence[Source]) -> bool:
        """Whether a linear layer's weight is one tensor of integers whose rows are at most put in another order."""
        return len(sources) == 1 and sources[0].stored.kind in FORMS and self._keeps_rows(sources[0])

    def _keeps_rows(self, source: Source) -> bool:
        """Whether what llama.cpp changes of a tensor is at most the order of its rows."""
        return type(self.names.processor_of(source)) in (TensorProcessor, LlamaTensorProcessor)

    def rows(self, source: Source) -> Tensor:
        """Return a tensor's bytes, uint8 `[..., bytes of a row]`: mapped, but for rows in another order."""
        stored = source.stored
        rows = stored.raw.reshape(*stored.shape[:-1], stored.bytes_per_row)
        if self._keeps_rows(source):
            rows = self.names.processor_of(source).process(rows, source.name).weights
        return torch.from_numpy(rows)

    def parameter(self, name: str, like: Tensor) -> Tensor:
        """Return a parameter's values, in the type of another tensor; zeros of its shape if they are unused."""
        sources, dtype = self.names.sources[name], like.dtype
        if not sources:
            return torch.zeros(like.shape, dtype=dtype)
        self.widened.update(source.stored.kind.name for source in sources if source.stored.kind not in FLOATS)
        if len(sources) == 1 and self._keeps_rows(sources[0]):
            return self._widened(sources[0], dtype)
        if sources[0].file is not self.names.text and len(sources) > 1:
            parts = [self._widened(source, dtype) for source in sources]
            return torch.stack(parts, 2) if parts[0].dim() == 4 else torch.cat(parts)  # of a convolution, its frames
        made: dict[str, dict[str, Tensor]] = {"tensors": {}}
        for source in sources:
            result = self.names.processor.process(
                self._widened(source, torch.float32).numpy(),
                name=source.name,
                tensor_key_mapping=self.names.by_tensor,
                parsed_parameters=made,
            )
            if result.name is not None:
                made["tensors"][name] = torch.from_numpy(np.ascontiguousarray(result.weights))
        return made["tensors"][name].to(dtype)

    def _widened(self, source: Source, dtype: torch.dtype) -> Tensor:
        """Return a tensor in a type, made some rows at a time."""
        stored = source.stored
        rows = self.rows(source).reshape(-1, stored.bytes_per_row)
        out = torch.empty((len(rows), stored.shape[-1]), dtype=dtype)
        at_once = max(1, _WIDENED_AT_ONCE // stored.shape[-1])
        for first in range(0, len(rows), at_once):
            part = slice(first, first + at_once)
            out[part] = widened(stored.kind, rows[part], dtype)
        return out.reshape(stored.shape)


def _linear(source: Source, rows: Tensor, place: _Place) -> GroupedLinear:
    if source.stored.shape != place.shape:
        raise CheckpointError(
            f"{source.file.path}: the tensor {source.name} is {source.stored.shape}, expected {place.shape}"
        )
    bias = None if place.bias is None else place.bias.detach().to(place.dtype)
    return GroupedLinear(EncodedWeight([rows], _decode(source.stored.kind)), bias, place.dtype)


@cache
def _decode(kind: GGMLQuantizationType) -> Callable[[Tensor], GroupedWeight]:
    """Return one function for a type: layers of one function can be joined."""
    return partial(decoded, kind)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
