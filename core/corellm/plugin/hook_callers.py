"""The hooks of a loaded model as the core calls them: by keyword, with the types that `hookspecs` states.

Knows signatures only. pluggy makes the callers, and types none of them.
"""

from __future__ import annotations

from typing import cast

import pluggy

from corellm import hookspecs


class HookCallers:
    """A caller for each hook except `STATIC_HOOKS`, which are called on the adapter's class."""

    get_supported_mm_limits = staticmethod(hookspecs.get_supported_mm_limits)
    refuse_embeddings = staticmethod(hookspecs.refuse_embeddings)
    get_mm_max_tokens_per_item = staticmethod(hookspecs.get_mm_max_tokens_per_item)
    get_dummy_text = staticmethod(hookspecs.get_dummy_text)
    get_dummy_mm_data = staticmethod(hookspecs.get_dummy_mm_data)
    register_processor = staticmethod(hookspecs.register_processor)
    get_data_parser = staticmethod(hookspecs.get_data_parser)
    get_mm_kwargs_names = staticmethod(hookspecs.get_mm_kwargs_names)
    get_item_kwargs = staticmethod(hookspecs.get_item_kwargs)
    call_hf_processor = staticmethod(hookspecs.call_hf_processor)
    get_mm_fields_config = staticmethod(hookspecs.get_mm_fields_config)
    get_prompt_updates = staticmethod(hookspecs.get_prompt_updates)
    apply_hf_processor_tokens_only = staticmethod(hookspecs.apply_hf_processor_tokens_only)
    get_bidirectional_spans = staticmethod(hookspecs.get_bidirectional_spans)
    get_visible_states = staticmethod(hookspecs.get_visible_states)
    get_max_encoder_states = staticmethod(hookspecs.get_max_encoder_states)
    get_decoder_prompt = staticmethod(hookspecs.get_decoder_prompt)
    get_placeholder_str = staticmethod(hookspecs.get_placeholder_str)
    make_context = staticmethod(hookspecs.make_context)
    get_transcription_prompt = staticmethod(hookspecs.get_transcription_prompt)
    get_speech_form = staticmethod(hookspecs.get_speech_form)
    load_model = staticmethod(hookspecs.load_model)
    get_language_model = staticmethod(hookspecs.get_language_model)
    get_multimodal_embeddings = staticmethod(hookspecs.get_multimodal_embeddings)
    get_multimodal_embedding_width = staticmethod(hookspecs.get_multimodal_embedding_width)
    get_input_embeddings = staticmethod(hookspecs.get_input_embeddings)
    merge_multimodal_embeddings = staticmethod(hookspecs.merge_multimodal_embeddings)
    get_encoder_states = staticmethod(hookspecs.get_encoder_states)
    compute_logits = staticmethod(hookspecs.compute_logits)
    get_rope_positions = staticmethod(hookspecs.get_rope_positions)


def adapter_implements(hook: object) -> bool:
    """Whether an adapter implements a hook, be it for some calls only; the core's defaults are `trylast`."""
    return any(not (found.trylast or found.wrapper) for found in cast(pluggy.HookCaller, hook).get_hookimpls())


def hook_callers(manager: pluggy.PluginManager) -> HookCallers:
    """Return a manager's hook callers, typed."""
    return cast(HookCallers, manager.hook)
