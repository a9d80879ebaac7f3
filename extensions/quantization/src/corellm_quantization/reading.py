"""Reads checkpoints of published formats: transformers loads their tensors, and layers are made of them.

Knows transformers' quantizers; `published` knows the formats.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightRenaming
from transformers.quantizers import HfQuantizer
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from corellm.errors import CheckpointError
from corellm_kernels.grouped_linear import GroupedLinear
from corellm_quantization.model_names import ModelNames
from corellm_quantization.published import Published, Read, published
from corellm_quantization.weight_reads import is_run

logger = logging.getLogger(__name__)

METHOD = "corellm"
"""The name by which transformers knows what is here."""
_TYPES = {"I8": torch.int8, "U8": torch.uint8, "I32": torch.int32, "I64": torch.int64, "F16": torch.float16}
_TYPES |= {"BF16": torch.bfloat16, "F32": torch.float32}
_TYPES |= {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
_OF_A_WEIGHT = (
    re.compile(r"\.weight\.(absmax|nested_absmax|quant_map|nested_quant_map|quant_state)(\.bitsandbytes__\w+)?$"),
    re.compile(r"\._weight_(\w+)$"),
)
"""What bitsandbytes and torchao name as tensors of a tensor."""


@register_quantization_config(METHOD)
class StatedFormat(QuantizationConfigMixin):  # type: ignore[misc]
    """What a checkpoint states, under a name that transformers has no quantizer of its own for."""

    def __init__(self, stated: Mapping[str, Any], **others: Any) -> None:
        self.quant_method, self.stated = METHOD, stated

    @property
    def name(self) -> str:
        """The format's name, as checkpoints have it."""
        return " ".join(str(self.stated[key]) for key in ("quant_method", "format") if key in self.stated)

    @property
    def format(self) -> Published:
        """The format."""
        found = published(self.stated)
        assert found is not None, self.stated
        return found


class _PublishedLinear(nn.Module):
    """A linear layer's tensors as the checkpoint has them."""

    def __init__(self, linear: nn.Linear, tensors: Mapping[str, Tensor], read: Read) -> None:
        super().__init__()
        self.read = read
        self.in_features, self.out_features, self.dtype = linear.in_features, linear.out_features, linear.weight.dtype
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
        if "weight" not in tensors:
            self.weight = torch.empty((1, 1), device="cpu")  # models' own code may want to initialize it


@register_quantizer(METHOD)
class Reader(HfQuantizer):  # type: ignore[misc]
    """Has transformers read the tensors of quantized layers, then makes layers of them."""

    quantization_config: StatedFormat

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Sequence[str], **others: Any) -> Any:
        """Give each layer that the files have quantized the tensors that they have of it."""
        names, form = ModelNames(model), self.quantization_config.format
        for stem, (tensors, note) in _quantized_layers(checkpoint_files, form.marker).items():
            if (name := names.linear(stem)) is None:
                raise CheckpointError(f"{stem} is quantized, and no linear layer of the model has this name")
            linear = model.get_submodule(name)
            model.set_submodule(name, _PublishedLinear(linear, tensors, _read(stem, form, note)))
        return model

    def _process_model_after_weight_loading(self, model: Any, **others: Any) -> Any:
        """Make layers of the tensors, one after another."""
        for module in model.modules():
            if isinstance(module, PreTrainedModel):  # the mark has some run layers that they multiply with otherwise
                vars(module.config).pop("_is_quantized", None)
        widened = 0
        for path, parent in list(model.named_modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, _PublishedLinear):
                    layer = _layer(f"{path}.{name}", child, widen=not is_run(parent, name))
                    setattr(parent, name, layer)
                    widened += isinstance(layer, nn.Linear)
        if widened:
            logger.info(
                "%d x Linear: weights of %s are widened to %s", widened, self.quantization_config.name, model.dtype
            )
        return model

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any = None) -> list[Any]:
        """Give tensors of a weight names beside it. Transformers 5.17 gives no model."""
        return [*(WeightRenaming(found.pattern, r".weight_\1") for found in _OF_A_WEIGHT), *weight_conversions]

    @property
    def is_trainable(self) -> bool:
        """No."""
        return False

    def is_serializable(self) -> bool:
        """No."""
        return False


def _read(name: str, form: Published, note: str | None) -> Read:
    """Return what reads a layer; errors name it."""
    if note is None or form.read_noted is None:
        return form.read
    try:
        return form.read_noted(note)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error


def _layer(name: str, tensors: _PublishedLinear, *, widen: bool) -> GroupedLinear | nn.Linear:
    """Return the layer, one of floats if it is to be widened; errors name it."""
    given = {key: value.detach() for key, value in tensors.named_parameters()}
    try:
        weight = tensors.read(given)
        weight = weight.widened() if widen and not isinstance(weight, Tensor) else weight
        shape = (tensors.out_features, tensors.in_features)
        found = tuple((weight if isinstance(weight, Tensor) else weight.integers).shape)
        if found != shape:
            raise CheckpointError(f"a weight {found}, expected {shape}")
    except KeyError as error:
        raise CheckpointError(f"{name}: the checkpoint lacks {error}; download all files") from error
    except (CheckpointError, RuntimeError, IndexError, ValueError, TypeError, ArithmeticError) as error:  # of torch's
        raise CheckpointError(f"{name}: {error}") from error
    bias = None if "bias" not in given else given["bias"].to(tensors.dtype)
    if not isinstance(weight, Tensor):
        return GroupedLinear(weight, bias, tensors.dtype)
    linear = nn.Linear(tensors.in_features, tensors.out_features, bias=bias is not None, device="meta")
    linear.load_state_dict({"weight": weight.to(tensors.dtype)} | ({} if bias is None else {"bias": bias}), assign=True)
    return linear.requires_grad_(False)


def _quantized_layers(files: Sequence[str], marker: str) -> Mapping[str, tuple[Mapping[str, Tensor], str | None]]:
    """Return the tensors of each layer that has one of this name, by the layers' published names.

    They have no values. Beside them is the note of the layer's weight that a file's header has.
    """
    found: dict[str, dict[str, Tensor]] = defaultdict(dict)
    notes: dict[str, str] = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            notes |= tensors.metadata() or {}
            for name in tensors.keys():  # noqa: SIM118 -- not a mapping
                stem, _, last = _beside(name).rpartition(".")
                part = tensors.get_slice(name)
                if part.get_dtype() in _TYPES:
                    found[stem][last] = torch.empty(part.get_shape(), dtype=_TYPES[part.get_dtype()], device="meta")
    return {stem: (tensors, notes.get(f"{stem}.weight")) for stem, tensors in found.items() if marker in tensors}


def _beside(name: str) -> str:
    """Return a tensor's name, beside its weight's if it is one of a weight."""
    for found in _OF_A_WEIGHT:
        name = found.sub(r".weight_\1", name)
    return name
