"""The rule about pairs: two items of any modalities in one conversation, in the chat template's own marks."""

from __future__ import annotations

from itertools import product

from corellm.sampling_params import SamplingParams
from corellm_testing.chats import rendered
from corellm_testing.contract.same_outputs import SameOutputRules
from corellm_testing.subject import Part, Subject

_PARAMS = SamplingParams(temperature=0, max_tokens=4, min_tokens=4, logprobs=0)


class PairRules(SameOutputRules):
    """Items beside each other."""

    def test_pairs_in_a_conversation_equal_the_reference(self, subject: Subject) -> None:
        """An item of each modality and one of each other, in both orders, in one message: the reference's outputs.

        With what the checkpoint's chat template writes around them, by which models may count positions. Two modalities
        may also be refused together, with an `UnsupportedModalityError`.
        """
        for first, second in product(subject.modalities, repeat=2):
            if (first == second and subject.several(first, 2) < 2) or not subject.takes_together((first, second)):
                continue
            pair = [(first, subject.item(first, 3)), (second, subject.item(second, 5))]
            text = _asked(subject, ["Ask of ", pair[0], " and", pair[1], "?"])
            media = subject.prompt(pair)[1]
            what = f"a conversation with {first} and {second} items, {text!r}"
            fix = "take items of all modalities in one prompt, with what the chat template writes around them"
            with self.expecting(f"{what}, by the reference", hook="the contract class"):
                want = subject.reference.generate(text, media, {}, _PARAMS.max_tokens or 0)
            with self.expecting(what, hook="get_rope_positions or merge_multimodal_embeddings", fix=fix):
                prompt = {"prompt": text, "multi_modal_data": media}
                (output,) = subject.llm.generate([prompt], _PARAMS, use_tqdm=False)
            self.equal(subject, output, want, what, with_items=True)


def _asked(subject: Subject, parts: list[Part]) -> str:
    """Return a message by the checkpoint's chat template; as plain text where that does not place the items."""
    plain, media = subject.prompt(parts)
    template = subject.chat_template
    chat = None if template is None else rendered(subject, [("user", parts)], template, add_generation_prompt=True)
    places = [chat is not None and chat.count(subject.placeholder(m)) >= len(items) for m, items in media.items()]
    return chat if chat is not None and all(places) else plain
