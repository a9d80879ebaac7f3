"""Text-only models: the adapter of every decoder that transformers has and no plugin claims.

A fallback: its entry points name ends of architectures, and it is asked only where no distribution claims the whole
name. It has no modality; weights and decoder are what the core's defaults make of transformers' class. Which classes
cannot be run is in `refusals` and `embeddings`, how logits are made in `output_head`. Knows no model family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from corellm.hookspecs import LoadConfig, ModelContext, hookimpl

if TYPE_CHECKING:
    from torch import Tensor, nn

    from corellm.modelling import LayerInputs

__all__ = ["TextModel"]


class TextModel:
    """A causal language model of transformers, without items."""

    contract = 1
    supported_mm_limits: Mapping[str, int | None] = {}

    def __init__(self, context: ModelContext) -> None:
        self.context = context
        self._compute_logits: Callable[[nn.Module, Tensor], Tensor] | None = None
        self._layer_inputs: LayerInputs | None = None

    @staticmethod
    @hookimpl
    def register_config() -> Callable[..., Any]:
        """Return transformers' configurations, with an error for a type of model that it does not have."""
        from corellm.modelling import load_config

        return load_config

    @hookimpl
    def register_processor(self) -> Callable[..., Any]:
        """Return the tokenizer: there are no items to process."""
        return lambda _: self.context.tokenizer

    @hookimpl
    def load_model(self, load_config: LoadConfig) -> None:
        """Refuse what cannot be run before weights are read; the core's default then loads them."""
        from corellm.modelling.configurations import is_text_encoder
        from corellm.text_models.refusals import check_architecture

        is_pooled = load_config.adapt_class is not None
        if not (is_pooled and is_text_encoder(self.context.hf_config)):  # encoders are checked with their weights
            check_architecture(self.context.hf_config)

    @hookimpl
    def get_language_model(self, model: nn.Module) -> None:
        """Refuse a decoder that needs more than embeddings, once its weights are there; the core's default finds it."""
        if next(model.parameters()).is_meta:  # it has no values to be compared, and is not run
            return
        from corellm.modelling import LayerInputs
        from corellm.text_models.embeddings import check_embeddings

        self._layer_inputs = LayerInputs.of(model.get_decoder())  # type: ignore[operator]
        check_embeddings(model, self._layer_inputs)

    @hookimpl
    def get_input_embeddings(self, model: nn.Module, input_ids: Tensor) -> Tensor | None:
        """Return embeddings with what the layers take beside them; the core's default where they take nothing."""
        if self._layer_inputs is None:
            return None
        return self._layer_inputs.behind(model.get_input_embeddings()(input_ids), input_ids)  # type: ignore[operator]

    @hookimpl
    def compute_logits(self, model: nn.Module, hidden_states: Tensor) -> Tensor:
        """Return the logits as the model's own forward pass makes them; how is found by the first call, at load."""
        if self._compute_logits is None:
            from corellm.modelling.output_head import logits_function

            self._compute_logits = logits_function(model)
        return self._compute_logits(model, hidden_states)
