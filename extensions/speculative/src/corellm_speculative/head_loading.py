"""Loads a head beside the model whose hidden states it reads.

Knows the model's modules and the head's checkpoint; knows no sequences.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import LlamaConfig

from corellm.attention.paged import ATTENTION_NAME
from corellm.attention.registry import select_backend
from corellm.config import EngineConfig
from corellm.errors import ConfigError
from corellm.hookspecs import ModelContext
from corellm.loading.model_parts import ModelParts, find_quantization, replace_layers
from corellm.loading.opening import at_load
from corellm.loading.rope import freeze_rope
from corellm.loading.sizing import sequences_at_once, token_budget, wanted_len
from corellm.modelling.decoder_attention import set_attention
from corellm.modelling.defaults import freeze, model_width
from corellm.modelling.linear_additions import LinearAdditions
from corellm.plugin.hook_callers import HookCallers
from corellm.worker.kv_cache import LayerLayout, cache_dtype
from corellm_speculative.draft_checkpoint import draft_config
from corellm_speculative.head_checkpoint import HeadCheckpoint
from corellm_speculative.head_drafting import HeadDrafting
from corellm_speculative.head_model import HeadHooks, HeadModel
from corellm_speculative.head_module import Eagle, Eagle3, Head
from corellm_speculative.hidden_states import HiddenStates, decoder_layers
from corellm_speculative.settings import EAGLE3, DraftSettings

logger = logging.getLogger(__name__)


def load_head(
    config: EngineConfig,
    context: ModelContext,
    settings: DraftSettings,
    checkpoint: HeadCheckpoint,
    linears: LinearAdditions,
    most_rows: int,
) -> HeadDrafting:
    """Load a head, and have the model's hidden states noted for it.

    Args:
        config, context: of the engine, and of the model.
        settings: of drafts.
        checkpoint: of the head.
        linears: of the model.
        most_rows: rows of a captured step of the model.

    Raises:
        CheckpointError, ConfigError: why it cannot draft for this model.
    """
    assert settings.model is not None
    own = replace(config, model=draft_config(config.model, settings))
    longest = wanted_len(config, context)
    num_tokens, num_seqs = token_budget(config, context, longest), sequences_at_once(config, context)
    with at_load(settings.model), torch.no_grad():
        layers = None
        if settings.method == EAGLE3:
            count = len(decoder_layers(linears.decoder))
            layers = checkpoint.layers or (2, count // 2, count - 3)
        rows = max(num_tokens, most_rows)
        hidden = HiddenStates(linears.decoder, layers, checkpoint.model_width, rows, context.dtype, context.device)
        output = _output_layer(linears, settings.model)
        vocab_size = linears.outside[output].out_features
        tensors = _tensors(checkpoint, context)
        embed, num_embedded = _embeddings(checkpoint, tensors, linears.model)
        llama = LlamaConfig.from_dict({**checkpoint.config, "num_hidden_layers": checkpoint.num_layers})
        set_attention(llama, ATTENTION_NAME)
        # after drafts that were all right each sequence has two rows, as in a draft model's largest captured step
        common = (llama, max(num_tokens, 2 * num_seqs), embed, context.dtype, context.device)
        head: Head
        if settings.method == EAGLE3:
            tokens = _drafted_tokens(tensors, vocab_size, settings.model)
            head = Eagle3(*common, tokens=tokens, vocab_size=vocab_size, model_width=checkpoint.model_width)
        else:
            head = Eagle(*common, output=linears.base(output))
        _fill(head, tensors)
        replace_layers(head, own, context, find_quantization(own))
        freeze_rope(head, longest)
        layout = {
            index: LayerLayout(llama.num_key_value_heads, llama.head_dim, llama.head_dim)
            for index in range(checkpoint.num_layers)
        }
        parts = ModelParts(head, head, layout, checkpoint.hidden_size, vocab_size, num_embedded, two_way=None)
    logger.info("%s drafts up to %d tokens in a step", settings.model, settings.num_speculative_tokens)
    model = HeadModel(
        head,
        context,
        cast(HookCallers, HeadHooks()),
        parts,
        select_backend(context.device, context.dtype, config.model.attention_backend),
        cache_dtype(config.cache.kv_cache_dtype, context.dtype),
        block_size=config.cache.block_size,
        max_len=longest,
        max_num_seqs=num_seqs,
        num_tokens=num_tokens,
        captures=not config.model.enforce_eager,
    )
    return HeadDrafting(settings, model, hidden)


def _output_layer(linears: LinearAdditions, name: str) -> str:
    """Return the name of the model's output layer.

    Raises:
        ConfigError: it has none that is a linear layer.
    """
    model: Any = linears.model
    layer = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    found = next((name for name, module in model.named_modules() if module is layer), "")
    if found not in linears.outside:
        raise ConfigError(
            f"speculative_config: the head {name} needs the model's output layer, and that of {type(model).__name__} "
            "is not found; take another method"
        )
    return found


def _tensors(checkpoint: HeadCheckpoint, context: ModelContext) -> dict[str, Tensor]:
    """Return the head's tensors by their names in the layout, floating ones in the model's type."""
    tensors = {}
    for name, (file, there) in checkpoint.files.items():
        with safe_open(file, framework="pt") as opened:
            tensor = opened.get_tensor(there)
        tensors[name] = tensor.to(context.device, context.dtype if tensor.is_floating_point() else None)
    return tensors


def _embeddings(
    checkpoint: HeadCheckpoint, tensors: dict[str, Tensor], model: Any
) -> tuple[Callable[[Tensor], Tensor], int]:
    """Return what embeds tokens, and how many there are: the model's embeddings, unless the head brings others.

    Raises:
        ConfigError: the model's are of another width.
    """
    table, own = model.get_input_embeddings(), tensors.pop("embed_tokens.weight", None)
    num_embedded, given = model_width(model), table.weight
    if own is not None and not (own.shape[1] == given.shape[1] and torch.equal(own, given[: len(own)].to(own.dtype))):
        return (lambda ids: nn.functional.embedding(ids, own)), min(num_embedded, len(own))
    if given.shape[1] != checkpoint.hidden_size:
        raise ConfigError(
            f"speculative_config: the head {checkpoint.path} is {checkpoint.hidden_size} wide and lacks "
            f"embed_tokens.weight; the model's embeddings are {given.shape[1]} wide"
        )
    return table.forward, num_embedded  # without hooks, which are for the rows of the model's own steps


def _drafted_tokens(tensors: dict[str, Tensor], vocab_size: int, name: str) -> Tensor:
    """Return the model's token of each that a head of EAGLE-3 can say; its file has the differences.

    Raises:
        ConfigError: they are no tokens of the model, or one comes twice.
    """
    num_drafted = len(tensors["lm_head.weight"])
    tokens = torch.arange(num_drafted, device=tensors["lm_head.weight"].device)
    if (differences := tensors.pop("d2t", None)) is not None:
        tokens = tokens + differences.long()
    if not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size or len({*tokens.tolist()}) < num_drafted:
        raise ConfigError(f"speculative_config: the head {name}: d2t leads to no {num_drafted} tokens of {vocab_size}")
    return tokens


def _fill(head: Head, tensors: dict[str, Tensor]) -> None:
    """Give a head its weights; linear layers have the sizes of theirs, and a bias where there is one."""
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and tensor.dim() == 2:
            rows, columns = tensor.shape
            has_bias = f"{module}.bias" in tensors
            head.set_submodule(module, nn.Linear(columns, rows, bias=has_bias, device="meta"))
    head.load_state_dict(tensors, strict=True, assign=True)
    freeze(head.eval())
