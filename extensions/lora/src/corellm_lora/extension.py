"""What corellm calls of this distribution. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from corellm.errors import ConfigError
from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.config import EngineConfig
    from corellm.hookspecs import ModelContext
    from corellm.llm import LLM
    from corellm.modelling.linear_additions import LinearAdditions
    from corellm.serving import AsyncLLM
    from corellm_lora.adapters import Adapters
    from corellm_lora.calls import AsyncLoRACalls, LoRACalls
    from corellm_lora.prompt_key import AdapterKey


class LoRA:
    """The key of prompts that names an adapter, and the part of steps that has the weights."""

    def __init__(self) -> None:
        self._keys: WeakValueDictionary[int, AdapterKey] = WeakValueDictionary()
        """The key of each model that is being loaded or is there, by its context."""

    @hookimpl
    def offer_prompt_key(self, context: ModelContext) -> AdapterKey:
        """Return the key `lora_request`."""
        from corellm_lora.prompt_key import AdapterKey

        key = self._keys[id(context)] = AdapterKey(context.findings)
        return key

    @hookimpl
    def offer_calls(self, llm: LLM | AsyncLLM) -> LoRACalls | AsyncLoRACalls:
        """Return `add_lora`, `remove_lora`, `list_loras` and `pin_lora`."""
        from corellm_lora.calls import calls_of

        return calls_of(llm)

    @hookimpl
    def offer_step_part(
        self, linears: LinearAdditions, config: EngineConfig, context: ModelContext, most_rows: int
    ) -> Adapters | None:
        """Return the part of a model that is loaded with `enable_lora`; None for others."""
        if not config.model.enable_lora:
            return None
        if context.hf_config.is_encoder_decoder:
            raise ConfigError(
                f"enable_lora: {type(linears.model).__name__} is an encoder-decoder; its decoder's layers also run on "
                "the encoder's states, whose rows are no tokens of a step; load it without, and merge an adapter into "
                "the checkpoint (peft: merge_and_unload)"
            )
        from corellm_lora.adapters import Adapters
        from corellm_lora.targets import Targets
        from corellm_lora.weights import Weights

        model = config.model
        most = model.max_loras, model.max_lora_rank
        tied = bool(getattr(context.hf_config, "tie_word_embeddings", False))
        weights = Weights(Targets(linears, tied, *most), linears, context.dtype, context.device, *most)
        most_kept, shelf = model.max_cpu_loras or model.max_loras, self._keys[id(context)].shelf
        return Adapters(weights, context.device, most_rows, most_kept, context.findings, shelf)
