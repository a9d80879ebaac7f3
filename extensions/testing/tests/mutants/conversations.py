"""Mistakes in conversations."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import AUDIO, BLIP2, FUYU, LLAVA, QWEN2, QWEN_VL

_PLACEHOLDER = '        return f"{self.context.hf_processor.image_token}\\n" if modality == "image" else None\n'
_DUMMY_TEXT = """
    @hookimpl
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        text: str = self.context.hf_processor.{0}_token
        return text * mm_counts.get("{0}", 0)
"""
"""So that the model loads, whatever the placeholder in conversations is."""
_FUYU_TEXT = '"".join(part["text"] for part in message["content"] if part["type"] == "text")'
_QWEN_VL_CHAT = QWEN_VL.of("original/chat.py")

MUTANTS = (
    AUDIO.given(
        "transcriptions do not tell the language",
        "test_a_transcription_is_asked_for",
        "get_transcription_prompt",
        """
        @hookimpl
        def get_transcription_prompt(self):
            return self.context.tokenizer.encode("<|audio_bos|><|AUDIO|><|audio_eos|>What is said?")
        """,
    ),
    AUDIO.given(
        "transcriptions write special tokens that are typed",
        "test_a_transcription_is_asked_for",
        "get_transcription_prompt",
        """
        @hookimpl
        def get_transcription_prompt(self, language, context):
            return self.context.tokenizer.encode(f"<|audio_bos|><|AUDIO|><|audio_eos|>{context} In {language}:")
        """,
    ),
    LLAVA.given(
        "the token that begins texts ends them, too",
        "test_only_ends_end_an_answer",
        "load_model",
        """
        @hookimpl(wrapper=True)
        def load_model(self):
            model = yield
            ends = [self.context.tokenizer.eos_token_id, self.context.tokenizer.bos_token_id]
            model.generation_config.eos_token_id = ends
            return model
        """,
    ),
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
    QWEN2.edited(
        "other modalities are not thought of",
        "test_the_chat_placeholder_is_the_updates_target",
        "get_placeholder_str",
        old="        if modality not in self.supported_mm_limits:\n            return None\n",
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
    _QWEN_VL_CHAT.edited(
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
    FUYU.edited(
        "the assistant's turn is begun unasked",
        "test_an_answer_goes_on_from_its_prompt",
        "make_context",
        old='        if add_generation_prompt and "image" not in media:',
        new='        if "image" not in media:',
    ),
    QWEN_VL.edited(
        "a line ends an answer",
        "test_only_ends_end_an_answer",
        "load_model",
        old="convert_tokens_to_ids([IM_START, ",
        new='convert_tokens_to_ids(["\\u010a", IM_START, ',
    ),
    LLAVA.edited(
        "text stands behind the placeholder",
        "test_the_chat_placeholder_is_the_templates",
        "get_placeholder_str",
        old=_PLACEHOLDER,
        new=_PLACEHOLDER.replace("\\n", "\\nX"),
    ),
    AUDIO.edited(
        "audio is numbered from zero",
        "test_the_chat_placeholder_is_the_templates",
        "get_placeholder_str",
        old="Audio {index + 1}: ",
        new="Audio {index}: ",
    ),
    BLIP2.edited(
        "what the assistant said is left out",
        "test_every_text_is_said_in_its_place",
        "make_context",
        old="            if text:\n",
        new='            if text and message["role"] != "assistant":\n',
    ),
    _QWEN_VL_CHAT.edited(
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
        "the system message is left out",
        "test_every_text_is_said_in_its_place",
        "make_context",
        old="            if text:\n",
        new='            if text and message["role"] != "system":\n',
    ),
    FUYU.edited(
        "a text that is said twice is written once",
        "test_every_text_is_said_in_its_place",
        "make_context",
        old=_FUYU_TEXT,
        new='"".join(dict.fromkeys(part["text"] for part in message["content"] if part["type"] == "text"))',
    ),
    _QWEN_VL_CHAT.edited(
        "a message's images come before its text",
        "test_every_text_is_said_in_its_place",
        "make_context",
        old='        for part in message["content"]:\n',
        new='        for part in sorted(message["content"], key=lambda part: part["type"] == "text"):\n',
    ),
    BLIP2.edited(
        "of several dots at the end of an answer one is left",
        "test_every_text_is_said_in_its_place",
        "make_context",
        old="{text.removesuffix('.')}.",
        new="{text.rstrip('.')}.",
    ),
    _QWEN_VL_CHAT.edited(
        "blank lines within a message are left out",
        "test_every_text_is_said_in_its_place",
        "make_context",
        old='                turn.text += part["text"]\n',
        new='                turn.text += part["text"].replace("\\n\\n", "\\n")\n',
    ),
    _QWEN_VL_CHAT.edited(
        "a role that the family does not have is taken for the user's",
        "test_roles_are_told_apart",
        "make_context",
        old='_ROLES.get(message["role"])',
        new='_ROLES.get(message["role"], "user")',
    ),
    BLIP2.edited(
        "what the system says is asked as a question",
        "test_roles_are_told_apart",
        "make_context",
        old='    if role == "user":\n',
        new='    if role in ("user", "system"):\n',
    ),
    FUYU.edited(
        "an empty text is written as a space",
        "test_empty_parts_change_nothing",
        "make_context",
        old=_FUYU_TEXT,
        new='"".join(part["text"] or " " for part in message["content"] if part["type"] == "text")',
    ),
    BLIP2.edited(
        "a full stop behind a full stop",
        "test_the_prompt_has_the_published_form",
        "make_context",
        old="{text.removesuffix('.')}.",
        new="{text}.",
    ),
    _QWEN_VL_CHAT.edited(
        "of three turns the oldest comes second",
        "test_every_text_is_said_in_its_place",
        "make_context",
        old="kept.insert(0, turn)",
        new="kept.insert(-1, turn)",
    ),
    BLIP2.edited(
        "turns are joined without a space",
        "test_the_prompt_has_the_published_form",
        "make_context",
        old='" ".join(turns)',
        new='"".join(turns)',
    ),
    _QWEN_VL_CHAT.edited(
        "conversations without a system message get another one",
        "test_the_prompt_has_the_published_form",
        "make_context",
        old='DEFAULT_SYSTEM = "You are a helpful assistant."',
        new='DEFAULT_SYSTEM = "You are an assistant."',
    ),
    BLIP2.of("contract.py").edited(
        "no prompt in the published form is given",
        "test_the_prompt_has_the_published_form",
        "the contract class",
        old="    chat_prompts = (\n",
        new="    prompts = (\n",
    ),
    LLAVA.given(
        "the checkpoint's template is ignored",
        "test_a_template_writes_the_prompt[the checkpoint's]",
        "make_context",
        """
        @hookimpl
        def make_context(self, messages, add_generation_prompt):
            from corellm.hookspecs import ChatPrompt
            from corellm.multimodal import collect_media

            text = ""
            for message in messages:
                said = [part.get("text", "<image>\\n") for part in message["content"]]
                text += f"{message['role'].upper()}: {''.join(said)}\\n"
            return ChatPrompt(text + "ASSISTANT:" * add_generation_prompt, collect_media(messages))
        """,
    ),
    FUYU.edited(
        "the operator's template is ignored",
        "test_a_template_writes_the_prompt[the operator's]",
        "make_context",
        old="        if chat_template:\n            return None\n        media",
        new="        media",
    ),
    AUDIO.given(
        "templates are rendered without the request's tools and variables",
        "test_a_template_writes_the_prompt[the operator's]",
        "make_context",
        """
        @hookimpl
        def make_context(self, messages, add_generation_prompt, chat_template):
            if chat_template is None:
                return None
            from corellm.hookspecs import ChatPrompt
            from corellm.multimodal import collect_media

            text = self.context.tokenizer.apply_chat_template(
                messages, chat_template=chat_template, add_generation_prompt=add_generation_prompt, tokenize=False
            )
            return ChatPrompt(text, collect_media(messages))
        """,
    ),
    _QWEN_VL_CHAT.edited(
        "the system message is left out with the oldest turns",
        "test_whole_turns_are_left_out[none]",
        "make_context",
        old="    parts = [system, *kept]\n",
        new="    parts = [system, *kept] if len(kept) == len(turns) else kept\n",
    ),
    _QWEN_VL_CHAT.edited(
        "half a turn is left out",
        "test_whole_turns_are_left_out[none]",
        "make_context",
        old='        if role == "user" and turns[-1].text:\n',
        new="        if turns[-1].text:\n",
    ),
    BLIP2.edited(
        "what users type is read for images",
        "test_text_in_a_conversation_places_nothing[none]",
        "make_context",
        old="            if text:\n",
        new='            text = text.replace("\\ue0c0", "")\n            if text:\n',
    ),
)
