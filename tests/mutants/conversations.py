"""Mistakes in conversations."""

from __future__ import annotations

from tests.mutants.mutant import AUDIO, BLIP2, FUYU, LLAVA, QWEN_VL

_PLACEHOLDER = '        return f"{self.context.hf_processor.image_token}\\n" if modality == "image" else None\n'
_DUMMY_TEXT = """
    @hookimpl
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        text: str = self.context.hf_processor.{0}_token
        return text * mm_counts.get("{0}", 0)
"""
"""So that the model loads, whatever the placeholder in conversations is."""

MUTANTS = (
    LLAVA.edited(
        "chats have another placeholder",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        old=_PLACEHOLDER,
        new=_PLACEHOLDER.replace("{self.context.hf_processor.image_token}", "<img>") + _DUMMY_TEXT.format("image"),
    ),
    LLAVA.edited(
        "other modalities have a placeholder, too",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        old=' if modality == "image" else None',
        new="",
    ),
    FUYU.given(
        "the image's own token is written into chats",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        """
        @hookimpl
        def get_placeholder_str(self, modality):
            return "|SPEAKER|" if modality == "image" else None

        @hookimpl
        def get_dummy_text(self):
            return ""
        """,
    ),
    AUDIO.edited(
        "audio has no place in chats",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        old='if modality == "audio" else None\n',
        new='if modality == "speech" else None\n' + _DUMMY_TEXT.format("audio"),
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
        "the last turn's images come first",
        "test_conversations_keep_their_items_in_order[the checkpoint's]",
        "make_context",
        old='{"image": [p for part in parts for p in part.images]}',
        new='{"image": [p for part in reversed(parts) for p in part.images]}',
    ),
    FUYU.edited(
        "the token with which the assistant's turn begins is left out",
        "test_an_answer_goes_on_from_its_prompt",
        "make_context",
        old='        if add_generation_prompt and "image" not in media:',
        new="        if False:",
    ),
    BLIP2.edited(
        "the assistant's turn begins with another word",
        "test_an_answer_goes_on_from_its_prompt",
        "make_context",
        old='turns.append("Answer:")',
        new='turns.append("Assistant:")',
    ),
    BLIP2.edited(
        "what the assistant said is left out",
        "test_conversations_keep_their_items_in_order[none]",
        "make_context",
        old="            if text:\n",
        new='            if text and message["role"] != "assistant":\n',
    ),
    QWEN_VL.of("original/chat.py").edited(
        "a role that the family does not have is a KeyError",
        "test_every_role_is_taken_or_refused[the checkpoint's]",
        "make_context",
        old='role = _ROLES.get(message["role"])',
        new='role = _ROLES[message["role"]]',
    ),
    AUDIO.given(
        "what users type is unguarded",
        "test_text_in_a_conversation_places_nothing[none]",
        "make_context",
        """
        @hookimpl
        def make_context(self, messages):
            from corellm.hookspecs import ChatPrompt
            from corellm.multimodal import collect_media
            from corellm.multimodal.chat.guarding import GUARD

            text = ""
            for message in messages:
                for part in message["content"]:
                    text += part["text"].replace(GUARD, "") if "text" in part else "<|AUDIO|>"
            return ChatPrompt(text, collect_media(messages))
        """,
    ),
    BLIP2.edited(
        "what users type is read for images",
        "test_text_in_a_conversation_places_nothing[none]",
        "make_context",
        old="            if text:\n",
        new='            text = text.replace("\\ue0c0", "")\n            if text:\n',
    ),
)
