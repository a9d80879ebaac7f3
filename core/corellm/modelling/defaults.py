"""The core's implementations of the model hooks, on transformers' own modelling code.

Registered last in every model's plugin manager, so an adapter's own implementation comes first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError, ContractError, install_hint
from corellm.hookspecs import LoadConfig, ModelContext, hookimpl
from corellm.modelling.checkpoint_files import require_weights
from corellm.modelling.decoder_attention import attention_configs, set_attention
from corellm.modelling.unused_layers import skip_unused_layers
from corellm.modelling.weights import check_names
from corellm.multimodal.merging import check_embeddings, write_rows
from corellm.plugin.extensions import first_result
from corellm.system.transfers import upload

_OF_CORELLM_QUANTIZATION = ("gptq", "awq", "compressed-tensors", "bitsandbytes", "torchao", "hqq")


class MergeRows(Protocol):
    """A function of an extension that writes item embeddings over the text embeddings of their tokens."""

    def __call__(self, inputs_embeds: Tensor, rows: Tensor, counts: Tensor) -> None:
        """Write into `inputs_embeds`.

        Args:
            inputs_embeds: `[num_tokens, width]`.
            rows: item embeddings `[num_rows, width]`, of any float type.
            counts: `[num_tokens]` int32, number of tokens up to and with each that take one; the last is `num_rows`.
        """
        ...


class ModelDefaults:
    """Defaults of the hooks that run in the worker.

    Args:
        context: of the model.
        merge_rows: an extension's function; None for plain torch.
    """

    def __init__(self, context: ModelContext, merge_rows: MergeRows | None = None) -> None:
        self.context, self._merge_rows = context, merge_rows

    @hookimpl(trylast=True)
    def load_model(self, load_config: LoadConfig) -> nn.Module:
        """Load the transformers class of the checkpoint's architecture."""
        hf_config = self.context.hf_config
        return load_transformers_model(transformers_class(hf_config), hf_config, load_config)

    @hookimpl(trylast=True)
    def get_language_model(self, model: nn.Module) -> nn.Module:
        """Return what `get_decoder` finds; of an encoder-decoder, without its encoder."""
        if not hasattr(model, "get_decoder"):
            raise ContractError(
                f"{type(model).__name__} has no get_decoder; the adapter must implement get_language_model"
            )
        decoder: nn.Module = text_decoder(model, self.context.hf_config)
        return decoder

    @hookimpl(trylast=True)
    def get_input_embeddings(self, model: nn.Module, input_ids: Tensor) -> Tensor:
        """Return the model's token embeddings."""
        embeds: Tensor = model.get_input_embeddings()(input_ids)  # type: ignore[operator]
        return embeds

    @hookimpl(trylast=True)
    def merge_multimodal_embeddings(
        self, inputs_embeds: Tensor, multimodal_embeddings: Tensor, is_multimodal: Tensor
    ) -> Tensor:
        """Write item embeddings where `is_multimodal` is true; raise if their number differs."""
        if self._merge_rows is None:
            return write_rows(inputs_embeds, multimodal_embeddings, is_multimodal)
        counts = is_multimodal.cumsum(dim=0, dtype=torch.int32)
        check_embeddings(inputs_embeds, multimodal_embeddings, int(counts[-1]))
        self._merge_rows(inputs_embeds, multimodal_embeddings, counts)
        return inputs_embeds

    @hookimpl(trylast=True)
    def compute_logits(self, model: nn.Module, hidden_states: Tensor) -> Tensor:
        """Return the logits of the model's output layer."""
        logits: Tensor = model.get_output_embeddings()(hidden_states)  # type: ignore[operator]
        return logits


def transformers_class(hf_config: Any) -> Any:
    """Return the transformers class that `architectures` names, else the one for the configuration's type.

    Raises:
        ContractError: there is none.
    """
    import transformers

    names = hf_config.architectures or ()
    named = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    if named:
        return named[0]
    by_config = transformers.MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(hf_config), None)
    if by_config is None:
        raise ContractError(
            f"transformers {transformers.__version__} has no class {' or '.join(names)}, nor one for "
            f"{type(hf_config).__name__}; the adapter must implement load_model"
        )
    return by_config


def load_transformers_model(cls: Any, hf_config: Any, load_config: LoadConfig) -> nn.Module:
    """Make a transformers model with its text decoder on paged attention and everything else on SDPA, if it has that.

    Args:
        cls: a `PreTrainedModel` class.
        hf_config: the model's configuration.
        load_config: where from, and how.

    Raises:
        CheckpointError: a file is broken, a weight is missing, has the wrong shape, or finds no place in its module.
    """
    if load_config.adapt_class is not None:
        cls = load_config.adapt_class(cls)
    make = _random_model if load_config.load_format == "dummy" else _read_model
    model = make(cls, hf_config, load_config)
    decoder = text_decoder(model, hf_config)
    if hf_config.is_encoder_decoder:
        own_configuration(decoder)
    for config in attention_configs(decoder):
        set_attention(config, load_config.attn_implementation)
    skip_unused_layers(model)
    loaded: nn.Module = model.to(load_config.device).eval()
    return loaded


def text_decoder(model: Any, hf_config: Any) -> Any:
    """Return the text decoder that `get_decoder` finds; where that is a whole encoder-decoder, the decoder inside."""
    found = model.get_decoder()
    while hf_config.is_encoder_decoder and (inner := found.get_decoder()) is not found:
        found = inner
    return found


def own_configuration(decoder: nn.Module) -> None:
    """Give a decoder's modules configurations of their own, where the encoder has the same: attention is set there."""
    copies: dict[int, Any] = {}
    for module in decoder.modules():
        config: Any = getattr(module, "config", None)
        if config is not None:
            module.config = copies.setdefault(id(config), deepcopy(config))


def _random_model(cls: Any, hf_config: Any, load_config: LoadConfig) -> Any:
    """Return a model with random weights and the checkpoint's generation configuration."""
    from transformers import GenerationConfig

    with load_config.device:
        model = cls._from_config(
            deepcopy(hf_config), dtype=load_config.dtype, attn_implementation=_attention_of_parts(cls, hf_config)
        )
    if (load_config.model_path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(load_config.model_path)
    return model


def _read_model(cls: Any, hf_config: Any, load_config: LoadConfig) -> Any:
    """Return a model with the checkpoint's weights.

    With accelerate, weights are read straight into GPU memory; without it they are in host memory first.
    """
    require_weights(load_config.model_path)
    hf_config = _read_by_extension(hf_config)
    with _naming_what_is_missing(hf_config):
        return _read_files(cls, hf_config, load_config)


def _read_files(cls: Any, hf_config: Any, load_config: LoadConfig) -> Any:
    """Have transformers read the weights, and check what it reports."""
    straight = load_config.device.type == "cuda" and find_spec("accelerate") is not None
    placement: dict[str, Any] = {"device_map": {"": load_config.device}} if straight else {}
    try:
        with _progress_bar_if_long(load_config.model_path), _without_their_report():
            model, report = cls.from_pretrained(
                load_config.model_path,
                config=hf_config,
                dtype=load_config.dtype,
                attn_implementation=_attention_of_parts(cls, hf_config),
                use_safetensors=True,
                trust_remote_code=load_config.trust_remote_code,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the report names them
                **placement,
            )
    except (torch.OutOfMemoryError, CheckpointError):
        raise  # of memory, `DeviceMemory.explaining` names the device
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{load_config.model_path}: the weights cannot be loaded: {reason}") from error
    _check_report(load_config, model, report)
    return model


def _read_by_extension(hf_config: Any) -> Any:
    """Return a configuration under which an extension reads quantized weights, if one does; else the one given.

    Raises:
        CheckpointError: transformers does not know the format either; it would take the integers for weights.
    """
    if not (stated := _stated_quantization(hf_config)):
        return hf_config
    offered = first_result("offer_quantized_reading", lambda found: isinstance(found, dict), stated=stated)
    if offered is None:
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as KNOWN

        if (method := str(stated.get("quant_method"))) not in KNOWN and f"{method}_4bit" not in KNOWN:
            raise CheckpointError(
                f"quantization_config: nothing here reads weights in {method!r:.100}; take the checkpoint in bfloat16"
            )
        return hf_config
    changed = deepcopy(hf_config)
    changed.quantization_config = offered
    return changed


def _stated_quantization(hf_config: Any) -> Mapping[str, Any]:
    """Return how a checkpoint's weights are quantized, as it states it; nothing where they are not."""
    stated = getattr(hf_config, "quantization_config", None)
    stated = stated or getattr(hf_config.get_text_config(decoder=True), "quantization_config", None)
    return stated if isinstance(stated, Mapping) else {}


@contextmanager
def _naming_what_is_missing(hf_config: Any) -> Iterator[None]:
    """Have an error name `corellm-quantization`, where transformers is left with a format that it reads."""
    try:
        yield
    except CheckpointError as error:
        if (method := _stated_quantization(hf_config).get("quant_method")) not in _OF_CORELLM_QUANTIZATION:
            raise
        raise CheckpointError(
            f"weights in {method} need {install_hint('quantization')} (without it: {error})"
        ) from error


def attention_of(cls: Any) -> str:
    """Return the attention of what is not the text decoder."""
    return "sdpa" if cls._supports_sdpa else "eager"


def _attention_of_parts(cls: Any, hf_config: Any) -> dict[str, str | None]:
    """Return the attention that a model is made with, and for each configuration inside: None for SDPA where it has it.

    Transformers refuses to make a part, or a text decoder, with SDPA that has none.
    """
    own = attention_of(cls)
    return {"": own, **dict.fromkeys(hf_config.sub_configs, None if own == "sdpa" else own)}


def _progress_bar_if_long(path: Path) -> AbstractContextManager[None]:
    """Show transformers' progress bar only for weights of a gigabyte or more."""
    short = sum(file.stat().st_size for file in path.glob("*.safetensors")) < 2**30
    return no_progress_bars() if short else nullcontext()


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch transformers' progress bars off inside the block."""
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


@contextmanager
def _without_their_report() -> Iterator[None]:
    """Keep transformers' table of weights that do not fit out of the log inside the block: ours says it in a line.

    Save where weights could not be converted, of which that table alone has the reasons.
    """
    theirs = logging.getLogger("transformers.modeling_utils")

    def is_other(record: logging.LogRecord) -> bool:
        return record.funcName != "log_state_dict_report" or "CONVERSION" in record.getMessage()

    theirs.addFilter(is_other)
    try:
        yield
    finally:
        theirs.removeFilter(is_other)


def _check_report(load_config: LoadConfig, model: Any, report: Mapping[str, Any]) -> None:
    if report.get("error_msgs"):
        raise CheckpointError(f"{load_config.model_path}: weights could not be read: {report['error_msgs'][0]}")
    missing, surplus, misshapen = (
        {_key_text(key) for key in report.get(kind) or ()}
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
    )
    check_names(
        load_config.model_path,
        model.state_dict(),
        missing=missing,
        surplus=surplus,
        misshapen=misshapen,
        prefix=model.base_model_prefix,
    )


def _key_text(key: Any) -> str:
    """Return a weight's name, with both shapes if the report gives `(name, shape in the file, shape in the model)`."""
    if not isinstance(key, tuple):
        return str(key)
    name, found, wanted = key
    return f"{name} {list(found)} (the model has {list(wanted)})"


def model_width(model: nn.Module) -> int:
    """Number of token ids the model can embed."""
    return int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]


def freeze(model: nn.Module) -> nn.Module:
    """Return the model with gradients switched off."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def floating_to(data: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Move tensors (also in lists) to the device, floating ones in the model's dtype."""
    if isinstance(data, Tensor):
        data = data.to(dtype) if data.is_floating_point() else data
        return upload(data, device) if data.device.type == "cpu" else data.to(device)
    if isinstance(data, list):
        return [floating_to(x, dtype, device) for x in data]
    return data
