"""Rules about the prompts of conversations: every text and item in its place, by a template and without one."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from corellm.errors import RequestError
from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt
from corellm.multimodal.chat.fields import ROLES
from corellm.plugin.hook_callers import adapter_implements
from corellm_testing.chats import (
    Conversation,
    are_in,
    conversations,
    described,
    example,
    items_of,
    media_of,
    messages_of,
    operators_templates,
    rendered,
    texts_of,
)
from corellm_testing.contract.base import ContractRules
from corellm_testing.own_tensors import own_tensors
from corellm_testing.subject import Subject

_LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
_TOOLS = [{"type": "function", "function": _LOOK}]
_VARIABLES = {"mood": "Calm"}
"""A tool and a variable of a request's, which the operator's templates write."""


class ChatPromptRules(ContractRules):
    """Prompts of conversations: their text, by a template and in a form of the family's own."""

    @pytest.mark.parametrize("template", ["the checkpoint's", "the operator's"])
    def test_a_template_writes_the_prompt(self, subject: Subject, template: str) -> None:
        """A conversation's prompt is transformers' rendering of it, by the checkpoint's template or an operator's."""
        inputs = subject.chatting(template=True)
        is_operators = template == "the operator's"
        written = operators_templates(subject) if is_operators else [subject.chat_template or ""]
        for source, begins in itertools.product(filter(None, written), (True, False)):
            given: dict[str, Any] = {"add_generation_prompt": begins}
            variables = given
            if is_operators:
                variables = {**given, "tools": _TOOLS, **_VARIABLES}
                given = {**given, "tools": _TOOLS, "chat_template_kwargs": _VARIABLES, "chat_template": source}
            for what, conversation in conversations(subject).items():
                want = rendered(subject, conversation, source, **variables)
                if want is None:
                    continue  # the checkpoint's template does not take it
                with self.expecting(f"{what}, by {template} template", hook="make_context"):
                    chat = inputs.process_chat(messages_of(conversation), **given)
                hook = "make_context" if adapter_implements(subject.hooks.make_context) else "register_processor"
                fix = "return None where chat_template is given, the checkpoint's or the operator's: corellm renders it"
                self._require_prompt(subject, chat, want, conversation, hook=hook, fix=fix)
                self._require_items(subject, chat, conversation)

    def test_every_text_is_said_in_its_place(self, subject: Subject) -> None:
        """Without a template, a prompt has each text as often as it was said, in order, with the items between."""
        inputs = subject.chatting(template=False)
        for what, conversation in conversations(subject).items():
            chat = self._taken(inputs, conversation, what)
            if chat is None:
                continue
            texts, prompt = texts_of(conversation), subject.text_of(chat)
            self.require(
                are_in(texts, prompt) and all(prompt.count(text) == _count(texts, text) for text in texts),
                "make_context",
                expected=f"each text once for each time it was said, in order, of\n{described(conversation)}",
                got=repr(prompt),
                fix="put the text of all messages into the prompt, whatever their role and their other parts",
            )
            self._require_items(subject, chat, conversation)
            self._require_items_between(subject, chat, conversation)

    def test_roles_are_told_apart(self, subject: Subject) -> None:
        """In the family's own form, one text in messages of two roles makes two prompts, or is refused.

        Roles that the form does not tell apart are declared in `same_roles`.
        """
        inputs = subject.chatting(template=False)
        with self.expecting("a conversation is processed without a template", hook="make_context"):
            if not self._has_own_form(subject):
                return
        turn: Conversation = [("user", ["Ask one"]), ("assistant", ["Say two"])]
        prompts: dict[str, list[str]] = {}
        for role in ROLES:
            for conversation in ([(role, ["Look here"]), *turn[:1]], [*turn, (role, ["Look here"])]):
                chat = self._taken(inputs, conversation, f"a message of role {role}")
                prompts.setdefault(role, []).append("" if chat is None else subject.text_of(chat))
        for one, other in itertools.combinations(prompts, 2):
            if any({one, other} <= set(roles) for roles in self.same_roles):
                continue
            same = [
                prompt for prompt, its in zip(prompts[one], prompts[other], strict=True) if prompt and prompt == its
            ]
            self.require(
                not same,
                "make_context",
                expected=f"another prompt of a message of role {one!r} than of the same one of role {other!r}",
                got=f"{same[:1]} of both",
                fix="write what marks a role, and refuse one that the family does not have with a PromptError; roles "
                "that its published form does not tell apart are named in same_roles of the contract class",
            )

    def test_empty_parts_change_nothing(self, subject: Subject) -> None:
        """Without a template, texts without a character leave the prompt of a conversation as it is."""
        inputs = subject.chatting(template=False)
        plain: Conversation = [
            ("user", ["Ask one", *items_of(subject)[:1], "about it"]),
            ("assistant", ["Say two"]),
            ("user", ["Ask three"]),
        ]
        padded = [(role, ["", *(part for one in parts for part in (one, ""))]) for role, parts in plain]
        with self.expecting("a conversation is processed", hook="make_context"):
            want, got = (inputs.process_chat(messages_of(conversation)) for conversation in (plain, padded))
        self.require(
            got.token_ids == want.token_ids,
            "make_context",
            expected=repr(subject.text_of(want)),
            got=f"{subject.text_of(got)!r} with empty parts",
            fix="write nothing for a text without a character",
        )

    @pytest.mark.parametrize("template", ["the checkpoint's", "none"])
    def test_whole_turns_are_left_out(self, subject: Subject, template: str) -> None:
        """`max_window_size` leaves out the oldest turns, no more than it must, whole and with their items."""
        inputs = subject.chatting(template=template != "none")
        items = items_of(subject)
        turns: list[Conversation] = [
            [("user", [*items[:1], "Ask one"]), ("assistant", ["Say one and more"])],
            [("user", ["Ask two", *items[1:2]]), ("assistant", ["Say two and less"])],
            [("user", ["Ask three"])],
        ]
        first: Conversation = [("system", ["Be brief"])]
        if self._taken(inputs, [*first, *turns[-1]], "a system message and a user's") is None:
            first = []
        with self.expecting("a conversation is processed", hook="make_context"):
            kept = [[*first, *(message for turn in turns[i:] for message in turn)] for i in range(len(turns))]
            whole = [inputs.process_chat(messages_of(conversation)) for conversation in kept]
            sizes = [len(chat.token_ids) for chat in whole]
            for size, want, conversation in [  # as many tokens as there are, and one fewer than the turn before needs
                *zip(sizes, whole, kept, strict=True),
                *zip([size - 1 for size in sizes], whole[1:], kept[1:], strict=False),
            ]:
                got = inputs.process_chat(messages_of(kept[0]), max_window_size=size)
                wanted, found = ([feature.identifier for feature in chat.features] for chat in (want, got))
                self.require(
                    found == wanted and subject.text_of(got) in self._numberings(subject, whole[0], want),
                    "make_context",
                    expected=f"{subject.text_of(want)!r}, the newest turns within {size} tokens:\n"
                    f"{described(conversation)}",
                    got=f"{subject.text_of(got)!r} with {len(found)} items",
                    fix="leave out whole turns, from a user's message to the next, the oldest first, with their items; "
                    "keep system messages",
                )

    def test_the_prompt_has_the_published_form(self, subject: Subject) -> None:
        """Without a template, conversations become the prompts that the contract class gives as `chat_prompts`.

        An adapter with a form of its own gives them, and one whose checkpoint has no template. For all others the core
        joins the messages, and the checkpoint's template shows what stands for an item.
        """
        inputs = subject.chatting(template=False)
        whole = example(subject)
        if self._taken(inputs, whole, "a conversation") is None:
            whole = whole[1:]  # a family without system messages
        examples = [whole, whole[-1:]]
        with self.expecting("a conversation is processed without a template", hook="make_context"):
            chats = [inputs.process_chat(messages_of(conversation)) for conversation in examples]
            has_form = self._has_own_form(subject)
        if self.chat_prompts is None:
            self.require(
                not has_form and (subject.chat_template is not None or not subject.modalities),
                "make_context or the contract class" if has_form else "the contract class",
                expected=f"chat_prompts: the prompt, without a chat template, of\n{described(whole)}\n"
                f"and that of its last message alone",
                got=f"none; the prompts are now {tuple(map(subject.text_of, chats))}",
                fix='look both up where the family is published, and set chat_prompts = ("...", "..."); to '
                "those above, once read, where no form is published",
            )
            return
        hook = "make_context" if has_form else "get_placeholder_str or make_context"
        fix = "write what the family's authors publish; change chat_prompts only where it is not that"
        for conversation, chat, want in zip(examples, chats, self.chat_prompts, strict=True):
            self._require_prompt(subject, chat, want, conversation, hook=hook, fix=fix)

    def _taken(self, inputs: InputProcessor, conversation: Conversation, what: str) -> ProcessedPrompt | None:
        """Return the processed conversation; None where the family's form refuses it with a `RequestError`."""
        __tracebackhide__ = True
        fix = "refuse what the family's form has no place for with a PromptError"
        with (
            self.expecting(f"{what} is taken, or refused with a RequestError", hook="make_context", fix=fix),
            suppress(RequestError),
        ):
            return inputs.process_chat(messages_of(conversation))
        return None

    def _has_own_form(self, subject: Subject) -> bool:
        """Whether the adapter makes prompts of conversations without a template."""
        made = subject.hooks.make_context(
            messages=messages_of(example(subject)[-1:]),
            max_window_size=int(subject.context.max_model_len or 0),
            add_generation_prompt=True,
            chat_template=None,
            tools=None,
            chat_template_kwargs={},
        )
        return made is not None

    def _require_prompt(
        self, subject: Subject, chat: ProcessedPrompt, want: str, conversation: Conversation, *, hook: str, fix: str
    ) -> None:
        """Require a conversation's prompt to be a text."""
        __tracebackhide__ = True
        self.require(
            subject.is_prompt(chat, want, media_of(conversation)),
            hook,
            expected=f"{want!r} of\n{described(conversation)}",
            got=repr(subject.text_of(chat)),
            fix=fix,
        )

    def _require_items(self, subject: Subject, chat: ProcessedPrompt, conversation: Conversation) -> None:
        """Require a prompt to have the items of a conversation, those of a modality in order."""
        __tracebackhide__ = True
        wanted = {
            modality: [own_tensors(subject, subject.features(modality, item)[0]) for item in items]
            for modality, items in media_of(conversation).items()
        }
        found = dict[str, list[dict[str, Any]]]()
        for feature in chat.features:
            found.setdefault(feature.modality, []).append(own_tensors(subject, feature))
        self.require(
            found == wanted,
            "make_context",
            expected=f"the items, in order, of\n{described(conversation)}",
            got=", ".join(f"{len(items)} {name} items" for name, items in found.items()) or "no items",
            fix="give the media of all messages, in the order of their placeholders",
        )

    def _require_items_between(self, subject: Subject, chat: ProcessedPrompt, conversation: Conversation) -> None:
        """Require each item that has a text of its own to stand between the texts around its part."""
        __tracebackhide__ = True
        places = {(feature.modality, feature.item): feature.placeholder for feature in chat.features}
        texts, said, counts = texts_of(conversation), 0, Counter[str]()
        for part in (part for _, parts in conversation for part in parts):
            if isinstance(part, str):
                said += bool(part)
                continue
            index = counts[part[0]]
            counts[part[0]] += 1
            place = places[part[0], index]
            if not subject.hooks.get_placeholder_str(modality=part[0], index=index):
                continue  # placed by position
            self.require(
                are_in(texts[:said], subject.decoded(chat.token_ids[: place.offset]))
                and are_in(texts[said:], subject.decoded(chat.token_ids[place.end :])),
                "make_context",
                expected=f"{part[0]} {index} between the texts around it, of\n{described(conversation)}",
                got=repr(subject.text_of(chat)),
                fix="write an item's placeholder where its part is",
            )

    def _numberings(self, subject: Subject, whole: ProcessedPrompt, kept: ProcessedPrompt) -> list[str]:
        """Return the text of the newest turns, and the same with the numbers that its items have in the whole."""
        texts = [subject.text_of(kept)] * 2
        for modality in subject.modalities:
            count, all_of_them = (sum(f.modality == modality for f in chat.features) for chat in (kept, whole))
            for index in reversed(range(count)):  # the last one first: no number is there twice
                own, moved = (
                    subject.hooks.get_placeholder_str(modality=modality, index=number) or ""
                    for number in (index, index + all_of_them - count)
                )
                texts[1] = texts[1].replace(own, moved)
        return texts


def _count(texts: list[str], text: str) -> int:
    return sum(other.count(text) for other in texts)
