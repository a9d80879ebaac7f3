"""Rules about conversations: turns begin and end, items keep their order, and what users type stays text."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from corellm.errors import RequestError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm_testing.chats import Conversation, items_of, rendered
from corellm_testing.contract.base import ContractRules
from corellm_testing.own_tensors import own_tensors
from corellm_testing.subject import Subject


class TurnRules(ContractRules):
    """Turns of a conversation: with items or without."""

    def test_an_answer_goes_on_from_its_prompt(self, subject: Subject) -> None:
        """Without a template, too, a prompt ends where the assistant's next text would begin, or the next message."""
        asked = [{"role": "user", "content": "What is this?"}]
        answered = [*asked, {"role": "assistant", "content": "A circle"}]
        with self.expecting("a conversation is processed", hook="make_context"):
            prompt = subject.text_of(self._chat(subject, asked, "none"))
            whole = subject.text_of(self._chat(subject, answered, "none", add_generation_prompt=False))
            again = [*answered, {"role": "user", "content": "And this?"}]
            longer = subject.text_of(self._chat(subject, again, "none"))
        self.require(
            whole.startswith(prompt) and whole.removeprefix(prompt).lstrip().startswith("A circle"),
            "make_context",
            expected=f"a beginning of {whole!r} that ends before the assistant's text",
            got=repr(prompt),
            fix="end with the start of the assistant's turn where add_generation_prompt asks for it",
        )
        self.require(
            longer.startswith(whole) and "And this?" in longer.removeprefix(whole),
            "make_context",
            expected=f"without a generation prompt, a beginning of {longer!r} that ends before the last message",
            got=repr(whole),
            fix="begin a turn of the assistant's only where add_generation_prompt asks for it",
        )

    @pytest.mark.parametrize("template", ["the checkpoint's", "none"])
    def test_the_end_of_a_turn_ends_an_answer(self, subject: Subject, template: str) -> None:
        """A special token that follows the assistant's text in a conversation ends generation."""
        messages = [{"role": "user", "content": "What is this?"}, {"role": "assistant", "content": "A circle"}]
        with self.expecting("a conversation is processed", hook="make_context"):
            text = subject.text_of(self._chat(subject, messages, template, add_generation_prompt=False))
        tokenizer, rest = subject.context.tokenizer, text.rpartition("A circle")[2].lstrip(" ")
        special, known = subject.special_token_ids, subject.end_token_ids
        for token in tokenizer(rest, add_special_tokens=False)["input_ids"][:1]:
            self.require(
                token in known or token not in special,
                "load_model",
                expected=f"{tokenizer.convert_ids_to_tokens(token)!r} ends generation",
                got=f"only {tokenizer.convert_ids_to_tokens(sorted(known))} do",
                fix="name it in the checkpoint's generation_config.json, or set model.generation_config.eos_token_id",
            )

    def test_only_ends_end_an_answer(self, subject: Subject) -> None:
        """The tokens that the checkpoint names end generation; beside them, special ones behind an answer may.

        Such as the mark that ends a turn, those that begin the next one, and those of an item, which a model cannot
        write. A token that begins texts would cut them.
        """
        file = subject.checkpoint / "generation_config.json"
        stated = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.exists() else None
        named = {*(stated if isinstance(stated, list) else [stated])} - {None}
        tokenizer, ends = subject.context.tokenizer, subject.end_token_ids
        names = tokenizer.convert_ids_to_tokens
        self.require(
            named <= ends,
            "load_model",
            expected=f"{names(sorted(named))} of generation_config.json end generation",
            got=f"only {names(sorted(ends))} do",
            fix="leave model.generation_config as it was read, or add to its eos_token_id",
        )
        behind = (self._behind_answers(subject) | self._of_items(subject)) & subject.special_token_ids
        wrong = ends - named - {tokenizer.eos_token_id} - behind
        self.require(
            not wrong,
            "load_model",
            expected="generation_config.json's tokens, the tokenizer's end, or special ones behind an answer or of an "
            f"item, {names(sorted(behind))}, end generation",
            got=f"{names(sorted(wrong))} do",
            fix="leave other tokens out of model.generation_config.eos_token_id: they would cut outputs",
        )

    def _behind_answers(self, subject: Subject) -> set[int]:
        """Return the tokens between an assistant's text and the user's next one, with a template and without."""
        asked = {"role": "user", "content": "And this?"}
        messages = [asked, {"role": "assistant", "content": "A circle"}, asked]
        found = set[int]()
        for template in ("the checkpoint's", "none"):
            with self.expecting("a conversation is processed", hook="make_context"):
                text = subject.text_of(self._chat(subject, messages, template))
            behind = text.rpartition("A circle")[2].partition("And this?")[0]
            found.update(subject.context.tokenizer(behind, add_special_tokens=False)["input_ids"])
        return found

    def _of_items(self, subject: Subject) -> set[int]:
        """Return the tokens that items become."""
        found = set[int]()
        for modality in subject.modalities:
            with self.expecting("an item is processed"):
                processed = subject.process(*subject.prompt([(modality, subject.item(modality, 0)), "What?"]))
            place = processed.features[0].placeholder
            found.update(processed.token_ids[place.offset : place.end])
        return found

    @pytest.mark.parametrize("template", ["the checkpoint's", "none"])
    def test_every_role_is_taken_or_refused(self, subject: Subject, template: str) -> None:
        """Messages of any role, from a single one to a system's with a whole conversation, are taken or refused."""
        hello = {"role": "user", "content": "Hello"}
        replied = [hello, {"role": "assistant", "content": "Hello!"}]
        for messages in (
            [hello],
            [{"role": "system", "content": "Be brief."}, *replied, hello],
            [{"role": "developer", "content": "Be brief."}, hello],
            [*replied, {"role": "tool", "content": "4"}],
            replied,
        ):
            what = f"a conversation of {', '.join(message['role'] for message in messages)}"
            fix = "refuse roles that the family does not have with a PromptError"
            with (
                self.expecting(f"{what} is taken, or refused with a RequestError", hook="make_context", fix=fix),
                suppress(RequestError),
            ):
                self._chat(subject, messages, template)

    def _chat(self, subject: Subject, messages: Any, template: str, **options: Any) -> ProcessedPrompt:
        """Return the processed conversation, by the checkpoint's template or by none."""
        return subject.chatting(template=template != "none").process_chat(messages, **options)


class ConversationRules(TurnRules):
    """Items in chat messages."""

    def test_the_chat_placeholder_is_the_updates_target(self, subject: Subject) -> None:
        """What `get_placeholder_str` writes into a prompt is what `get_prompt_updates` looks for."""
        for modality in subject.modalities:
            written = [
                subject.hooks.get_placeholder_str(modality=modality, index=i)
                for i in range(subject.several(modality, 2))
            ]
            self.require(
                all(isinstance(text, str) for text in written),
                "get_placeholder_str",
                expected=f"text for {modality}s, empty where they are placed by position",
                got=written,
                fix="return what a chat message's part becomes in the prompt",
            )
            items = [subject.item(modality, seed) for seed in range(len(written))]
            prompt = "".join(map(str, written))
            what, fix = f"{prompt!r} has a place for each item", "write the update's target"
            with self.expecting(what, hook="get_placeholder_str", fix=fix):
                features = subject.process(prompt + "What?", {modality: items}).features
            self.require(
                [f.item for f in features] == list(range(len(items))),
                "get_placeholder_str",
                expected=f"{len(items)} items in order",
                got=[f.item for f in features],
                fix="write the update's target once for each item",
            )
        with self.expecting("get_placeholder_str returns None for a modality that the model does not take"):
            unknown = subject.hooks.get_placeholder_str(modality="smell", index=0)
        self.require(
            unknown is None,
            "get_placeholder_str",
            expected="None for a modality that the model does not take",
            got=unknown,
            fix="return text for the model's modalities only",
        )

    def test_the_chat_placeholder_is_the_templates(self, subject: Subject) -> None:
        """What `get_placeholder_str` returns is what the checkpoint's template writes for an item's part."""
        template, items = subject.chat_template, items_of(subject)
        if template is None:
            return
        texts = [f"Ask of {i}" for i in range(len(items))]
        between: Conversation = [("user", [part for pair in zip(texts, items, strict=True) for part in (*pair, "!")])]
        without: Conversation = [("user", [part for text in texts for part in (text, "!")])]
        with_items, want = (
            rendered(subject, conversation, template, add_generation_prompt=True) for conversation in (between, without)
        )
        if with_items is None or want is None:
            return  # it takes no items
        got, placed, counts = with_items, list[str](), Counter[str]()
        for modality, _ in items:
            text = subject.hooks.get_placeholder_str(modality=modality, index=counts[modality]) or ""
            placed.append(text)
            counts[modality] += 1
            got = got.replace(text, "", 1)
        self.require(
            not any(placed) or got == want,
            "get_placeholder_str",
            expected=f"what the checkpoint's template writes for items: {with_items!r} instead of {want!r}",
            got=", ".join(map(repr, placed)),
            fix="return what the template writes for an item's part",
        )

    @pytest.mark.parametrize("template", ["the checkpoint's", "none"])
    def test_conversations_keep_their_items_in_order(self, subject: Subject, template: str) -> None:
        """Each item of a conversation takes the place of its own part, with the checkpoint's template and without."""
        said = items_of(subject)
        parts = [{"type": modality, modality: item} for modality, item in said]
        messages = [
            {"role": "user", "content": [*parts[:-1], {"type": "text", "text": "What is this?"}]},
            {"role": "assistant", "content": "A circle."},
            {"role": "user", "content": [{"type": "text", "text": "And"}, parts[-1], {"type": "text", "text": "?"}]},
        ]
        with self.expecting("a conversation is processed", hook="make_context"):
            processed = self._chat(subject, messages, template)
            alone = [own_tensors(subject, subject.features(modality, item)[0]) for modality, item in said]
        names = [f"{modality} {i}" for i, (modality, _) in enumerate(said)]
        found = [own_tensors(subject, feature) for feature in processed.features]
        got = [next((names[i] for i, own in enumerate(alone) if own == tensors), "something else") for tensors in found]
        self.require(
            got == names,
            "make_context",
            expected=f"items in the order of the messages: {', '.join(names)}",
            got=", ".join(got) or "no item",
            fix="give the media in the order of their placeholders",
        )

    @pytest.mark.parametrize("template", ["the checkpoint's", "none"])
    def test_text_in_a_conversation_places_nothing(self, subject: Subject, template: str) -> None:
        """A placeholder that a user types into a message stays text: it takes no item's place."""
        for modality in subject.modalities:
            item = subject.item(modality, 0)
            with self.expecting("an item is processed"):
                typed = (subject.placeholder(modality) or "") + subject.embedding_token(modality)
            content = [{"type": "text", "text": f"Mind {typed}!"}, {"type": modality, modality: item}]
            fix = "leave the text of messages as it is, its guards included"
            with self.expecting(f"{typed!r} in a message is text", hook="make_context", fix=fix):
                processed = self._chat(subject, [{"role": "user", "content": content}], template)
            self.require(
                len(processed.features) == 1,
                "make_context",
                expected="one item",
                got=len(processed.features),
                fix=fix,
            )
