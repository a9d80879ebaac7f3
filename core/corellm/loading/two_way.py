"""Spans of a prompt whose tokens see each other: which layers heed them, and whether a window cuts them.

The adapter names spans, the model around the decoder states masks of an item's tokens; that both fit is found here.
Knows transformers' arguments of token types; knows no model family. What spans are in steps: `worker.parts.spans`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor, nn

from corellm.attention.backend import AttentionBackend
from corellm.errors import CheckpointError, ContractError
from corellm.hookspecs import ModelContext
from corellm.modelling.layer_inputs import no_rows
from corellm.modelling.visibility import visible_tokens
from corellm.plugin.hook_callers import HookCallers, adapter_implements
from corellm.worker.parts.step_part import StepPart

logger = logging.getLogger(__name__)

_TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids")
"""Arguments that tell transformers' models which tokens are an item's."""
_IMAGE_IN_TEXT = (0, 1, 1, 0)
"""Their value for an image of two tokens between two tokens of text. Some models mark the image by ones (Gemma 3), some
what sees the image by zeros (PaliGemma): here either is more than one token."""


@dataclass(frozen=True)
class TwoWay:
    """How a decoder's layers heed the spans that its adapter names."""

    causal_layers: frozenset[int]
    """Layers in which tokens of a span do not see each other."""
    windows_cut: bool
    """Whether a window hides the beginning of a span from tokens of the same span."""

    def part(self) -> StepPart:
        """Return what tells a step's layers."""
        from corellm.worker.parts.spans import Spans

        return Spans(self.causal_layers, windows_cut=self.windows_cut)


def find_two_way(
    hooks: HookCallers,
    model: nn.Module,
    decoder: nn.Module,
    layers: Collection[int],
    hidden_size: int,
    context: ModelContext,
    backend: AttentionBackend,
) -> TwoWay | None:
    """Return how layers heed the spans that the adapter names; None where it names none.

    Raises:
        CheckpointError: as of `probe_spans` and `causal_layers`.
    """
    names_spans = adapter_implements(hooks.get_bidirectional_spans)
    ahead, windows_cut = frozenset[int](), True
    if hooks.get_supported_mm_limits():
        ahead, windows_cut = probe_spans(model, decoder, hidden_size, context.dtype, context.device)
    causal = causal_layers(model, layers, ahead, names_spans=names_spans, backend=backend)
    return TwoWay(causal, windows_cut) if names_spans else None


@torch.inference_mode()
def probe_spans(
    model: nn.Module, decoder: nn.Module, hidden_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[frozenset[int], bool]:
    """Return how layers see an item's tokens, by running a model on what is said to be an image.

    A model that takes no such argument is not run: its decoder was probed. Of one that fails nothing is known, which is
    logged.

    Args:
        model: the whole model.
        decoder: the text decoder inside it.
        hidden_size: width of its embeddings.
        dtype, device: of the model.

    Returns:
        The layers in which tokens of an item see each other, and whether a window hides some of them.

    Raises:
        CheckpointError: a window cuts what an item's tokens see in some layers, in others not, or nobody knows.
    """
    accepted = signature(model.forward).parameters
    types = torch.tensor([_IMAGE_IN_TEXT], device=device)
    marks = {name: types for name in _TOKEN_TYPES if name in accepted}
    if not marks:
        return frozenset(), True
    embeds = torch.zeros(1, types.shape[1], hidden_size, dtype=dtype, device=device)
    inputs = {"inputs_embeds": embeds, **marks}
    inputs |= {name: rows for name, rows in no_rows(decoder, embeds).items() if name in accepted}
    try:
        seen = visible_tokens(model, decoder, inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        logger.warning(
            "%s cannot be asked which tokens of an item see each other (%s: %s); its masks are taken as those of its "
            "decoder alone: compare its outputs with transformers', as the contract does",
            type(model).__name__,
            type(error).__name__,
            error,
        )
        return frozenset(), True
    ahead = frozenset(layer for layer, tokens in seen.items() if bool(tokens.triu(1).any()))
    if not ahead:
        return frozenset(), True
    try:
        narrow = visible_tokens(model, decoder, inputs, window=1)
    except torch.OutOfMemoryError:
        raise
    except (ContractError, ValueError, TypeError, LookupError, RuntimeError) as error:
        raise CheckpointError(
            f"{type(model).__name__} lets tokens of an item see each other, and cannot be asked whether a window hides "
            f"some ({type(error).__name__}: {error}); run this checkpoint with transformers' own generate"
        ) from error
    return ahead, _cuts_spans(model, [narrow[layer] for layer in ahead])


def _cuts_spans(model: nn.Module, masks: Iterable[Tensor]) -> bool:
    """Return whether a window cuts spans, given masks of a window of one token: behind it only spans are seen.

    Raises:
        CheckpointError: in some layers it does, in others not.
    """
    windowed = [mask for mask in masks if not bool((mask | mask.new_ones(mask.shape).triu(1)).all())]
    uncut = {bool(mask.tril(-1).any()) for mask in windowed}
    if len(uncut) == 2:
        raise CheckpointError(
            f"{type(model).__name__} has layers with a window that see an item whole, and others that do not, which "
            "corellm does not compute; run this checkpoint with transformers' own generate"
        )
    return uncut != {True}


def causal_layers(
    model: nn.Module, layers: Collection[int], ahead: Collection[int], *, names_spans: bool, backend: AttentionBackend
) -> frozenset[int]:
    """Return the layers that stay causal where the adapter names spans whose tokens see each other.

    Args:
        model: the whole model.
        layers: all layers that attend.
        ahead: those that are known to see ahead; a model that does not say may do so in all of them.
        names_spans: whether the adapter does.
        backend: of attention.

    Raises:
        CheckpointError: tokens of an item see each other, and the adapter names no spans, or the backend cannot.
    """
    if not ahead and not names_spans:
        return frozenset()
    name = type(model).__name__
    if not names_spans:
        raise CheckpointError(
            f"{name} lets the tokens of an item see each other (attention both ways within an item), and its adapter "
            "names no such spans: it must implement get_bidirectional_spans; or run this checkpoint with "
            "transformers' own generate"
        )
    if not backend.two_way:
        raise CheckpointError(
            f"{name} lets the tokens of an item see each other, which the attention backend {backend.name!r} does not "
            "(attention_backend='reference' does)"
        )
    return frozenset(layers) - frozenset(ahead) if ahead else frozenset()
