"""Loads the model itself: weights, decoder, what its layers ask of attention, and layers replaced by faster ones.

Knows the adapter's hooks and the model; knows neither blocks nor requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from corellm.attention.backend import AttentionBackend
from corellm.attention.paged import ATTENTION_NAME, register_attention
from corellm.config import EngineConfig
from corellm.errors import ConfigError, MissingExtraError, install_hint
from corellm.hookspecs import LoadConfig, ModelContext
from corellm.loading.attended_states import AttendedStates
from corellm.loading.decoder_probe import DecoderProbe, probe_decoder
from corellm.loading.kept_states import KeptStates, find_keeping, kept_states
from corellm.loading.packed_linear import pack_linears, packing_helps
from corellm.loading.sizing import most_captured_rows, sequences_at_once, wanted_len
from corellm.loading.two_way import TwoWay, find_two_way
from corellm.loading.weight_places import WeightPlace, weight_places
from corellm.modelling.defaults import freeze, model_width
from corellm.modelling.linear_additions import LinearAdditions
from corellm.modelling.transposed_linears import transpose_linears
from corellm.plugin.extensions import call_extensions, first_result
from corellm.plugin.hook_callers import HookCallers
from corellm.quantization import MakeQuantize, quantize_linears, round_inputs
from corellm.system.mapped_weights import release_mapped_weights
from corellm.worker.kv_cache import LayerLayout
from corellm.worker.parts.step_part import StepPart

if TYPE_CHECKING:
    from corellm.loading.opening import OpenedModel
    from corellm.loading.weight_key import WeightSource
    from corellm.worker.model_runner import ModelRunner

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelParts:
    """The model in memory, and its sizes, found by running one token."""

    model: nn.Module
    language_model: nn.Module
    layout: dict[int, LayerLayout]
    hidden_size: int
    vocab_size: int
    """Width of the logits."""
    embedding_size: int
    """Number of token ids that can be embedded."""
    two_way: TwoWay | None
    """How layers let tokens of a prompt see later ones; None where none do."""
    make_runner: Callable[..., ModelRunner] | None = None
    """Makes the worker of a model without logits; None where tokens are sampled."""
    attended: AttendedStates | None = None
    """States that the decoder attends to, beside its own tokens."""
    kept: KeptStates | None = None
    """The decoder's modules that keep a state."""
    parts: Sequence[StepPart] = ()
    """What runs beside the decoder in a step and is made with the weights: kept states, what extensions offer."""
    added: Mapping[str, nn.Module] = field(default_factory=dict)
    """Linear layers to whose outputs they add, by name."""
    places: Mapping[str, WeightPlace] = field(default_factory=dict)
    """Where the weights are; what is made of them by parts, or by a load that goes on, is not among them."""


def load_model(
    config: EngineConfig,
    hooks: HookCallers,
    context: ModelContext,
    adapt_class: Callable[[type[Any]], type[Any]] | None = None,
) -> nn.Module:
    """Return what the adapter's `load_model` gives, with gradients switched off."""
    register_attention()
    load_config = LoadConfig(
        model_path=context.model_path,
        dtype=context.dtype,
        device=context.device,
        attn_implementation=ATTENTION_NAME,
        trust_remote_code=context.trust_remote_code,
        load_format="dummy" if config.model.load_format == "dummy" else "auto",
        adapt_class=adapt_class,
    )
    with torch.random.fork_rng([context.device] if context.device.type == "cuda" else []):
        torch.manual_seed(0)  # dummy weights are the same at every start
        return freeze(hooks.load_model(load_config=load_config))


def load_weights(
    config: EngineConfig, opened: OpenedModel, backend: AttentionBackend, source: WeightSource | None = None
) -> ModelParts:
    """Load the model, find its decoder, layout and widths, replace layers by faster ones, take extensions' parts.

    With the weights' source, packed weights may be kept for later starts.
    """
    hooks, context, use, attended = opened.hooks, opened.context, opened.use, opened.attended
    make_quantize = find_quantization(config)  # or refuse it before weights are read
    model = load_model(config, hooks, context, use.adapt_class)
    language_model = hooks.get_language_model(model=model)
    token = torch.zeros(1, dtype=torch.long, device=context.device)
    width = hooks.get_input_embeddings(model=model, input_ids=token).shape[-1]
    keeping = find_keeping(language_model)
    states = kept_states(keeping)
    with nullcontext() if states is None else states.probed():
        layout, hidden = probe_decoder(
            language_model,
            width,
            context.dtype,
            context.device,
            max_len=wanted_len(config, context),
            softcaps=backend.softcaps,
            sinks=backend.sinks,
            biases=backend.biases,
            stateful=frozenset() if states is None else states.layers,
            probe_class=DecoderProbe if attended is None else attended.probe_class,
        )
    hidden_size = hidden.shape[-1]
    two_way = find_two_way(hooks, model, language_model, layout, hidden_size, context, backend)
    embedding_size = model_width(model)
    make_runner = use.runner(config, context, model, hidden_size)
    samples = make_runner is None
    vocab_size = hooks.compute_logits(model=model, hidden_states=hidden).shape[-1] if samples else embedding_size
    replace_layers(model, config, context, make_quantize, source=source)
    places = weight_places(model)
    linears = LinearAdditions(model, language_model, keeping.values(), samples=samples)
    offered = call_extensions(
        "offer_step_part", _is_part,
        linears=linears, config=config, context=context, max_num_seqs=sequences_at_once(config, context),
        most_rows=most_captured_rows(config, context),
    )  # fmt: skip
    parts = [part for _, part in offered]
    _check_drafts(config, parts, samples=samples)
    linears.close()
    sizes = (hidden_size, vocab_size, embedding_size)
    return ModelParts(
        model, language_model, layout, *sizes, two_way, make_runner, attended, states, parts, linears.layers, places,
    )  # fmt: skip


def _check_drafts(config: EngineConfig, parts: Sequence[StepPart], *, samples: bool) -> None:
    """Raise an error where drafts are asked for, and there can be none."""
    wanted = config.model.speculative_config
    if wanted is None:
        return
    if not samples:
        raise ConfigError(f"speculative_config={wanted!r:.100}: the model generates no tokens; leave it out")
    if not any(part.most_drafts for part in parts):
        raise MissingExtraError(f"speculative_config={wanted!r:.100} needs {install_hint('speculative')}")


def replace_layers(
    model: nn.Module,
    config: EngineConfig,
    context: ModelContext,
    make_quantize: MakeQuantize | None,
    *,
    reads_short_texts: bool = False,
    source: WeightSource | None = None,
) -> None:
    """Replace a model's layers by faster ones: by those of extensions, then linear layers by rounded or packed ones.

    Raises:
        ConfigError: inputs are to be rounded, and no layer does that.
    """
    transpose_linears(model)
    quantize = None if make_quantize is None else make_quantize(model)
    if config.model.fuse_layers:
        for name, replaced in call_extensions(
            "fuse_layers",
            _is_list_of_text,
            model=model,
            device=context.device,
            dtype=context.dtype,
            quantization=config.model.quantization,
            quantize=quantize,
            kept=None if source is None else source.key_of(model),
        ):
            logger.info("fused by %s: %s", name, "; ".join(replaced) or "nothing")
    if quantize is not None and (count := quantize_linears(model, quantize)):
        logger.info("%d x Linear: weights in %s, widened whenever they are used", count, config.model.quantization)
    if config.model.activation_dtype != "auto":
        if not (count := round_inputs(model)):
            raise ConfigError(
                f"activation_dtype={config.model.activation_dtype!r} rounds inputs of linear layers whose weights are "
                "integers, and this model has none: set quantization, or leave it out"
            )
        logger.info("%d x Linear: inputs rounded to %s", count, config.model.activation_dtype)
    if packing_helps(context.dtype, context.device, reads_short_texts=reads_short_texts):
        pack_linears(model)
    release_mapped_weights()  # of packed and joined weights, which are copies


def find_quantization(config: EngineConfig) -> MakeQuantize | None:
    """Return what rounds weights, if they are to be rounded.

    Raises:
        MissingExtraError: no extension offers it.
    """
    if (name := config.model.quantization) is None:
        return None
    found: MakeQuantize | None = first_result("register_quantization", callable, name=name)
    if found is None:
        raise MissingExtraError(f"quantization={name!r} needs {install_hint('quantization')}")
    return found


def _is_part(result: Any) -> bool:
    return isinstance(result, StepPart)


def _is_list_of_text(result: Any) -> bool:
    return isinstance(result, list) and all(isinstance(line, str) for line in result)
