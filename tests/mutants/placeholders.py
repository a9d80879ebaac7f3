"""Mistakes in placing items: placeholders, positions, conversations."""

from __future__ import annotations

from tests.mutants.mutant import AUDIO, BLIP2, FUYU, LLAVA, QWEN2, QWEN3, QWEN_VL

MUTANTS = (
    # --- placeholders -----------------------------------------------------------------------------------------------
    LLAVA.edited(
        "one token too few for a picture",
        "test_it_loads",
        ("get_prompt_updates", "get_multimodal_embeddings"),
        old="        return patches + class_tokens - int(",
        new="        return patches + class_tokens - 1 - int(",
    ),
    LLAVA.edited(
        "a picture without a placeholder goes to the end",
        "test_missing_placeholders_are_refused",
        "get_prompt_updates",
        old='        return [PromptReplacement("image", target=[token], replacement=replacement)]\n',
        new="        from corellm.multimodal import PromptIndexTargets, PromptInsertion\n\n"
        "        return [\n"
        '            PromptReplacement("image", target=[token], replacement=replacement),\n'
        '            PromptInsertion("image", target=PromptIndexTargets.end(), insertion=replacement),\n'
        "        ]\n",
    ),
    LLAVA.given(
        "placeholders without a picture are left out",
        "test_surplus_placeholders_are_refused",
        ("get_prompt_updates", "apply_hf_processor_tokens_only"),
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids, mm_counts):
            return token_ids if mm_counts else [t for t in token_ids if t != self.context.hf_config.image_token_id]
        """,
    ),
    LLAVA.given(
        "placeholders that stand side by side become one",
        "test_expanded_prompts_are_refused",
        ("get_prompt_updates", "apply_hf_processor_tokens_only"),
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids):
            image = self.context.hf_config.image_token_id
            return [t for i, t in enumerate(token_ids) if i == 0 or t != image or token_ids[i - 1] != image]
        """,
    ),
    FUYU.edited(
        "newline tokens take embeddings",
        "test_it_loads",
        ("get_prompt_updates", "get_multimodal_embeddings"),
        old="PromptUpdateDetails.select_token_id([*row * rows, begin_text], processor.image_token_id)",
        new="PromptUpdateDetails.from_seq([*row * rows, begin_text])",
    ),
    BLIP2.edited(
        "one query too many",
        "test_it_loads",
        ("get_prompt_updates", "get_multimodal_embeddings"),
        old="or config.num_query_tokens)",
        new="or config.num_query_tokens + 1)",
    ),
    QWEN2.edited(
        "patches that are merged count twice",
        "test_it_loads",
        ("get_prompt_updates", "get_multimodal_embeddings"),
        old="spatial_merge_size**2] * time",
        new="spatial_merge_size] * time",
    ),
    QWEN2.edited(
        "clips have the pictures' placeholder",
        "test_items_do_not_know_of_each_other",
        "get_prompt_updates",
        old='getattr(self.context.hf_config, f"{modality}_token_id")',
        new="self.context.hf_config.image_token_id",
    ),
    # --- positions --------------------------------------------------------------------------------------------------
    QWEN2.edited(
        "what is generated comes one position late",
        "test_positions",
        "get_rope_positions",
        old="        return positions[:, 0], int(offset)",
        new="        return positions[:, 0], int(offset) + 1",
    ),
    QWEN3.edited(
        "positions are forgotten for what is generated",
        "test_positions",
        "get_rope_positions",
        old="    @hookimpl\n    def get_multimodal_embedding_width(",
        new="    @hookimpl\n    def get_rope_positions(self, model: Any, token_ids: Any, mm_features: Any) -> Any:\n"
        "        return super().get_rope_positions(model, token_ids, mm_features)[0], 0\n\n"
        "    @hookimpl\n    def get_multimodal_embedding_width(",
    ),
    QWEN2.edited(
        "positions without the dimension of the batch",
        "test_positions",
        "get_rope_positions",
        old="        return positions[:, 0], int(offset)",
        new="        return positions, int(offset)",
    ),
    # --- conversations ----------------------------------------------------------------------------------------------
    LLAVA.edited(
        "chats have another placeholder",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        old='return f"{self.context.hf_processor.image_token}\\n"',
        new='return "<img>\\n"',
    ),
    LLAVA.edited(
        "sounds have a placeholder, too",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        old=' if modality == "image" else None',
        new="",
    ),
    FUYU.edited(
        "the picture's own token is written into chats",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        old='return "" if modality == "image"',
        new='return "|SPEAKER|" if modality == "image"',
    ),
    AUDIO.edited(
        "sounds have no place in chats",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        old='if modality == "audio" else None',
        new='if modality == "sound" else None',
    ),
    FUYU.edited(
        "conversations lose their media",
        "test_conversations_keep_their_items_in_order[none]",
        "make_context",
        old="        return ChatPrompt(prompt, media)",
        new="        return ChatPrompt(prompt)",
    ),
    BLIP2.edited(
        "conversations lose their media",
        "test_conversations_keep_their_items_in_order[none]",
        "make_context",
        old='ChatPrompt(" ".join(turns), collect_media(messages))',
        new='ChatPrompt(" ".join(turns))',
    ),
    QWEN_VL.of("original/chat.py").edited(
        "the last turn's pictures come first",
        "test_conversations_keep_their_items_in_order[the checkpoint's]",
        "make_context",
        old='{"image": [p for part in parts for p in part.pictures]}',
        new='{"image": [p for part in reversed(parts) for p in part.pictures]}',
    ),
    QWEN_VL.of("original/chat.py").edited(
        "a role that the family does not have is a KeyError",
        "test_every_role_is_taken_or_refused[the checkpoint's]",
        "make_context",
        old='role = _ROLES.get(message["role"])',
        new='role = _ROLES[message["role"]]',
    ),
    AUDIO.given(
        "what people type is unguarded",
        "test_text_in_a_conversation_places_nothing[none]",
        "make_context",
        """
        @hookimpl
        def make_context(self, messages):
            from corellm.hookspecs import ChatPrompt
            from corellm.multimodal import collect_media
            from corellm.multimodal.chat import GUARD

            text = ""
            for message in messages:
                for part in message["content"]:
                    text += part["text"].replace(GUARD, "") if "text" in part else "<|AUDIO|>"
            return ChatPrompt(text, collect_media(messages))
        """,
    ),
    BLIP2.edited(
        "what people type is read for pictures",
        "test_text_in_a_conversation_places_nothing[none]",
        "make_context",
        old="            if text:\n",
        new='            text = text.replace("\\ue0c0", "")\n            if text:\n',
    ),
)
