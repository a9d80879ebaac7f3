"""A model without weights: how many states its encoder makes of an item, and what `generate` begins with.

It is on torch's meta device, so that the front end, which has no weights, can ask it. Knows models of transformers by
what they take and give; knows no model family.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import GenerationConfig, GenerationMixin, LogitsProcessor
from transformers.modeling_outputs import Seq2SeqLMOutput

from corellm.errors import CheckpointError
from corellm.hookspecs import ModelContext
from corellm.modelling import text_decoder, transformers_class
from corellm_transformers.encoder_decoders.reading import (
    FAILURES,
    Encoded,
    attentions_of,
    layers_of,
    not_run,
    share_embeddings,
    states_given,
)
from corellm_transformers.family import needs_plugin

_MOST_SHAPES = 1024
"""Shapes of items whose states are remembered: audio may have any length."""
_STEPS = 4
"""Tokens that `generate` is watched for."""


@dataclass(frozen=True)
class Beginning:
    """What `generate` does before the first token of an output, and at it."""

    tokens: tuple[int, ...]
    """The decoder's, before the output."""
    choices: tuple[tuple[int, ...], ...] = ()
    """What may come behind them, place by place, where the model chooses by the item: the language that it hears."""
    suppressed: tuple[int, ...] = ()
    """Tokens that an output never has."""
    not_first: tuple[int, ...] = ()
    """Further ones that it does not begin with."""


class Outline:
    """A model of which there is everything but weights.

    Args:
        context: of the model.

    Raises:
        CheckpointError: its decoder attends in a way that the engine does not compute; says in which.
    """

    def __init__(self, context: ModelContext) -> None:
        config = context.hf_config
        with torch.device("meta"):
            model: Any = transformers_class(config)._from_config(copy.deepcopy(config))
        self._model = model.eval()
        if (context.model_path / "generation_config.json").is_file():
            self._model.generation_config = GenerationConfig.from_pretrained(context.model_path)
        self._decoder = text_decoder(model, config)
        share_embeddings(model, self._decoder)
        _check_attention(self._decoder)
        self._counted = lru_cache(_MOST_SHAPES)(self._count)
        self._counting = threading.Lock()

    def states(self, tensors: Mapping[str, Any]) -> tuple[int, int]:
        """Return how many states the encoder makes of an item's tensors, and their width; by shapes alone."""
        shapes = _unmasked(tensors)
        with self._counting:
            return self._counted(shapes)

    def _count(self, shapes: _Shapes) -> tuple[int, int]:
        given = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape, dtype in shapes}
        try:
            with _Undecided():
                made = states_given(self._model, self._decoder, given)
        except FAILURES as error:
            raise not_run(self._model, error) from error
        return made.shape[0], made.shape[1]

    # --- generate ---------------------------------------------------------------------------------------------------

    @cached_property
    def arguments(self) -> frozenset[str]:
        """What `generate` can be told, beside what all models' can."""
        own, all_have = (signature(cls.generate).parameters for cls in (type(self._model), GenerationMixin))
        return frozenset(own.keys() - all_have.keys())

    @property
    def generation(self) -> GenerationConfig:
        """The checkpoint's generation configuration."""
        return self._model.generation_config

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self._model.config

    @property
    def decoder_shape(self) -> tuple[int, int]:
        """Layers of the decoder, and heads of each."""
        return self.config.decoder_layers, self.config.decoder_attention_heads

    @property
    def frames(self) -> tuple[int, int] | None:
        """Frames of audio that `generate` reads at once, and for each state; None where it does not count them."""
        encoder = self._model.get_encoder()
        strides = [getattr(getattr(encoder, name, None), "stride", (0,))[0] for name in ("conv1", "conv2")]
        per_state = strides[0] * strides[1]
        return (per_state * self._model.config.max_source_positions, per_state) if per_state else None

    @property
    def start_of_earlier(self) -> int | None:
        """The token that says that what follows was said before; None if the generation configuration names none."""
        token: int | None = getattr(self._model.generation_config, "prev_sot_token_id", None)
        return token

    def beginning(self, tensors: Mapping[str, Any], **told: Any) -> Beginning:
        """Return what `generate` begins with for an item, found by running it with logits that are all the same.

        Args:
            tensors: of the item.
            told: further arguments of `generate`.

        Raises:
            CheckpointError: it cannot be run.
        """
        watch = _Watch()
        try:
            self._generate(watch, tensors, told)
        except Exception as error:
            if len(watch.inputs) < 2:
                reason = " ".join(str(error).split())[:200]
                raise CheckpointError(
                    f"{type(self._model).__name__}: transformers' generate does not begin ({type(error).__name__}: "
                    f"{reason}); correct generation_config.json"
                ) from error
        tokens, at = watch.inputs[0], 0
        while watch.is_forced(at):
            tokens, at = watch.inputs[at + 1], at + 1
        first, later = watch.forbidden[at], watch.forbidden[at + 1]
        before, choices = self._chosen(tokens, later) if watch.num_before > 1 else (tokens, ())
        return Beginning(tuple(before), choices, tuple(sorted(later)), tuple(sorted(first - later)))

    def _chosen(self, tokens: list[int], suppressed: frozenset[int]) -> tuple[list[int], tuple[tuple[int, ...], ...]]:
        """Return tokens before the one that the model chose in a forward pass of its own, and what it chose from.

        Raises:
            CheckpointError: the generation configuration names no languages, or suppresses one.
        """
        languages = tuple((getattr(self._model.generation_config, "lang_to_id", None) or {}).values())
        at = next((i for i, token in enumerate(tokens) if token in languages), None)
        if at is None or not suppressed.isdisjoint(languages):
            raise CheckpointError(
                f"{type(self._model).__name__}: transformers' generate chooses a token of its decoder's before the "
                "output, which lang_to_id in generation_config.json does not have, or which suppress_tokens has; name "
                "the language there"
            )
        return tokens[:at], (languages, *((token,) for token in tokens[at + 1 :]))

    def _generate(self, watch: _Watch, tensors: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        shell = copy.copy(self._model)
        encoder = _Encoder(Encoded(last_hidden_state=torch.zeros(1, *self.states(tensors))))
        vocab_size = shell.config.get_text_config(decoder=True).vocab_size
        shell.__class__ = _shell_class(type(self._model), watch, encoder, vocab_size)
        shell.generation_config = copy.deepcopy(self._model.generation_config)
        name = self._model.main_input_name
        shell.generate(
            **{name: tensors[name]}, **told,
            logits_processor=[watch], max_new_tokens=_STEPS, do_sample=False, use_cache=False,
        )  # fmt: skip


def _check_attention(decoder: Any) -> None:
    """Refuse attention that is not replaced, or is to tokens and states at once, before anything else fails of it.

    Raises:
        CheckpointError: it is that.
    """
    if not decoder._can_set_attn_implementation():
        raise needs_plugin(
            f"{type(decoder).__name__} does not let its attention be replaced (transformers' AttentionInterface), so "
            "it has no paged cache",
            None,
        )
    if all(len(attentions_of(layer)) == 1 for layer in layers_of(decoder)):
        raise needs_plugin(
            f"{type(decoder).__name__} attends to its own tokens and to its encoder's states in one sum, in each "
            "layer, which corellm does not compute",
            None,
        )


_Shapes = tuple[tuple[str, torch.Size, torch.dtype], ...]


def _unmasked(tensors: Mapping[str, Any]) -> _Shapes:
    """Return name, shape and type of an item's tensors beside masks, as if it ended before what is masked.

    Of a shorter item there are as many states as are left of a longer one's that is masked behind that.
    """
    given = [(name, value) for name, value in sorted(tensors.items()) if isinstance(value, Tensor)]
    masks = [value for name, value in given if "mask" in name and value.dim() == 2]
    lengths = {mask.shape[-1]: int(mask.sum()) for mask in masks}

    def shortened(shape: torch.Size) -> torch.Size:
        at = next((i for i, size in enumerate(shape) if i and size in lengths), None)
        return shape if at is None else torch.Size([*shape[:at], lengths[shape[at]], *shape[at + 1 :]])

    return tuple((name, shortened(value.shape), value.dtype) for name, value in given if "mask" not in name)


class _Undecided(TorchFunctionMode):
    """Answers no where code asks for a value that there is none of, as whether a mask can be left out."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__bool__ and args[0].is_meta:
            return False
        return function(*args, **(kwargs or {}))


class _Watch(LogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """Comes after all other processors of logits: notes the decoder's tokens at each step, and which are forbidden."""

    def __init__(self) -> None:
        self.inputs: list[list[int]] = []
        self.forbidden: list[frozenset[int]] = []
        self.vocab_size = 0
        self.num_before = 0
        """Forward passes before the first step."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Note a step; of what may come, choose the last token, which ends no text."""
        self.inputs.append(input_ids[0].tolist())
        self.forbidden.append(frozenset((scores[0] == -torch.inf).nonzero().flatten().tolist()))
        self.vocab_size = scores.shape[-1]
        allowed = (scores[0] != -torch.inf).nonzero().flatten()
        chosen = torch.full_like(scores, -torch.inf)
        chosen[0, allowed[-1]] = 0
        return chosen

    def is_forced(self, step: int) -> bool:
        """Whether only one token can come."""
        return step + 2 < len(self.inputs) and len(self.forbidden[step]) == self.vocab_size - 1


class _Encoder(nn.Module):
    """Gives the same states for all items."""

    def __init__(self, output: Encoded) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_: Any, **__: Any) -> Encoded:
        """Return them."""
        return self._output


def _shell_class(cls: Any, watch: _Watch, encoder: nn.Module, vocab_size: int) -> Any:
    """Return a class of models whose forward pass gives all tokens the same logits, on the CPU."""

    @functools.wraps(cls.forward)
    def forward(self: Any, *_: Any, decoder_input_ids: Tensor, **__: Any) -> Seq2SeqLMOutput:
        if not watch.inputs:
            watch.num_before += 1
        return Seq2SeqLMOutput(logits=torch.zeros(1, decoder_input_ids.shape[1], vocab_size))

    members = {"forward": forward, "get_encoder": lambda self: encoder, "device": torch.device("cpu")}
    return type(cls.__name__, (cls,), members)
