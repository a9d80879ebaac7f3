"""Rules about identity: which items are the same, in any request and process, and what caches may keep of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from corellm_testing.contract.base import ContractRules
from corellm_testing.listening import Seen, memory_growth, seen
from corellm_testing.other_process import OtherProcess, OtherProcessError
from corellm_testing.quick import slow
from corellm_testing.subject import Subject, describe

MANY = 128
"""Items through a cache that holds eight."""


class IdentityRules(ContractRules):
    """Hashes and caches."""

    def test_identity_follows_content(self, subject: Subject) -> None:
        """Equal items have one identifier, different ones have different identifiers.

        Content, size, mode, dtype, order of axes, every processor argument for its modality and what a parser of the
        author's own reads beside them (`own_items`) count; which object holds the item does not.
        """
        for modality in subject.modalities:
            item = subject.item(modality, 1)
            kinds: dict[str, str] = {}
            for what, (other, kwargs) in self._unlike(subject, modality, item).items():
                with self.expecting("an item is processed"):
                    (feature,) = subject.features(modality, other, **kwargs)
                twin = kinds.setdefault(feature.identifier, what)
                self.require(
                    twin == what,
                    "get_data_parser",
                    expected=f"{what} and {twin} have different identifiers",
                    got=feature.identifier,
                    fix="let what the parser returns hold all that the processor sees, such as an instruction in "
                    "image.info: a table beside it identifies nothing",
                )
                with self.expecting("a copy is processed"):
                    (again,) = subject.features(modality, copy.deepcopy(other), **dict(reversed(kwargs.items())))
                self.require(
                    again.identifier == feature.identifier,
                    "get_data_parser",
                    expected=f"a copy of {what} is the same item",
                    got="another identifier",
                    fix="let the parser add nothing that differs from call to call",
                )

    def _unlike(self, subject: Subject, modality: str, item: Any) -> dict[str, tuple[Any, dict[str, Any]]]:
        """Return `{description: (item, arguments)}`, no two of which are the same."""
        import numpy as np

        unlike: dict[str, tuple[Any, dict[str, Any]]] = {describe(item): (item, {})}
        if modality == "image":
            pixels = np.array(item)
            touched = pixels.copy()
            touched[-1, -1, 0] ^= 1
            unlike["one bit of a pixel changed"] = touched, {}
            unlike["the same bytes in another shape"] = pixels.reshape(pixels.shape[1], pixels.shape[0], 3), {}
            unlike["the same in grey"] = item.convert("L"), {}
            unlike["black and white"] = item.convert("1"), {}
        elif modality == "video":
            frames, metadata = item
            unlike["frames in another order"] = (frames[::-1].copy(), metadata), {}
            unlike["another frame rate"] = (frames, {"fps": 2 * metadata["fps"]}), {}
        else:
            unlike["one sample less"] = item[:-1], {}
            unlike["half as loud"] = item / 2, {}
            unlike["rounded to half precision"] = item.astype(np.float16).astype(np.float32), {}
        for number, own in enumerate(self.own_items.get(modality, ())):
            unlike[f"own_items[{modality!r}][{number}]"] = own, {}
        for kwargs in self.arguments(subject):
            if subject.processor.kwargs.resolve(kwargs)[modality]:
                unlike[f"processed with {dict(kwargs)}"] = item, dict(kwargs)
        return unlike

    def test_identity_follows_the_prompt(self, subject: Subject) -> None:
        """Where items depend on the prompt, one in two prompts is two items: other identifiers, other embeddings.

        In one prompt, as text or as token ids, it is one.
        """
        for modality in subject.modalities if subject.processor.reads_prompts else ():
            item = subject.item(modality, 1)
            asked = [subject.prompt([(modality, item), text]) for text in ("What shape is it?", "How many are there?")]
            tokens = subject.context.tokenizer(asked[0][0])["input_ids"]
            with self.expecting("an item is processed and embedded in two prompts"):
                one, other = (subject.process(*request).features[0] for request in asked)
                (again,) = subject.process(tokens, asked[0][1], inputs=subject.fresh()).features
                embeddings = [subject.embed([feature])[0] for feature in (one, other)]
            self.require(
                again.identifier == one.identifier and again.data == one.data,
                "get_item_kwargs",
                expected=f"one {modality} in one prompt, of text and of token ids, is one item",
                got="other tensors, or another identifier",
                fix="return the same for the same tokens every time, and have call_hf_processor keep to it",
            )
            self.require(
                one.identifier != other.identifier,
                "get_item_kwargs",
                expected=f"the {modality} under {asked[0][0]!r} is another item than under {asked[1][0]!r}",
                got="the same identifier",
                fix="return what the items depend on of the prompt; leave the hook out if that is nothing",
            )
            self.require(
                embeddings[0].tolist() != embeddings[1].tolist(),
                "call_hf_processor or get_multimodal_embeddings",
                expected=f"other embeddings of the {modality} under {asked[0][0]!r} than under {asked[1][0]!r}",
                got="the same embeddings",
                fix="make tensors of what get_item_kwargs returns, which comes in mm_kwargs, and give them to the "
                "encoder; leave the hook out if it reads nothing of the prompt",
            )

    def test_a_uuid_stands_in_for_its_item(self, subject: Subject) -> None:
        """An item that was processed under a uuid need not be sent again: its tensors are enough to place it."""
        for modality in subject.modalities:
            text, media = subject.prompt([(modality, subject.item(modality, 8)), "What?"])
            request = {"prompt": text, "multi_modal_uuids": {modality: [f"the contract's {modality}"]}}
            with self.expecting("an item with a uuid is processed"):
                sent = subject.inputs.process({**request, "multi_modal_data": media})
            with self.expecting(
                "the uuid alone is enough",
                hook="get_prompt_updates",
                fix="take what you need of an item from out_mm_kwargs, not from mm_items: its media may not be there",
            ):
                named = subject.inputs.process({**request, "multi_modal_data": {modality: None}})
            self.require(
                named.token_ids == sent.token_ids and named.features[0].placeholder == sent.features[0].placeholder,
                "get_prompt_updates",
                expected="the same tokens in the same place",
                got="others",
                fix="take what you need of an item from out_mm_kwargs, not from mm_items",
            )

    @slow()
    def test_another_process_agrees(self, subject: Subject, pytestconfig: pytest.Config) -> None:
        """Another process gives the same identifiers, tokens and tensors; items survive pickling there and back."""
        requests = [
            subject.prompt([(m, subject.item(m, seed)), "What?"]) for m in subject.modalities for seed in (0, 1)
        ]
        with self.expecting("requests are processed"):
            here = [subject.process(*request) for request in requests]
        try:
            there, echo = OtherProcess.of(pytestconfig).process(subject.checkpoint, requests, here)
        except OtherProcessError as error:
            self.fail(
                "the adapter",
                expected="the same requests processed in another process",
                got=str(error)[-800:],
                fix="do what the error says",
            )
        for ours, theirs in zip(here, there, strict=True):
            identifiers = [[f.identifier for f in processed.features] for processed in (ours, theirs)]
            self.require(
                identifiers[0] == identifiers[1],
                "get_data_parser",
                expected=identifiers[0],
                got=identifiers[1],
                fix="let no hash(), id() or order of a set into an item",
            )
            self.require(
                ours.token_ids == theirs.token_ids and ours.features == theirs.features,
                "call_hf_processor",
                expected="the same tokens and tensors in every process",
                got="others",
                fix="depend on nothing but the item and the arguments: no hash(), no order of a set, no random numbers",
            )
        self.require(
            echo == here,
            "get_mm_fields_config",
            expected="items as they were, after the way to another process and back",
            got="others",
            fix="give tensors, lists of tensors and plain data only",
        )

    @slow()
    def test_nothing_is_kept(self, subject: Subject) -> None:
        """An item, its tensors and its embeddings are freed when its request is finished and no cache holds them.

        Neither they nor copies of them stay.
        """
        inputs = subject.fresh(mm_processor_cache_gb=0)

        def use(modality: str, seed: int, *, embeds: bool = True) -> int:
            """Process an item, and embed it; return the bytes of its tensors or of its embeddings, the fewer."""
            text, media = subject.prompt([(modality, subject.alike(modality, seed)), "What?"])
            features = subject.process(text, media, inputs=inputs).features
            embeddings = subject.embed(features) if embeds else []
            return min([features[0].data.nbytes, *(int(part.nbytes) for part in embeddings)])

        fix = "keep nothing of a request: the core's bounded caches do"
        found: dict[str, list[Seen]] = {"call_hf_processor": [], "get_multimodal_embeddings": []}
        with self.expecting("items are processed and embedded"):
            use(subject.modalities[0], 0)  # with the first one come the dummies, which the core keeps
            for hook, more in found.items():
                for modality in subject.modalities:
                    with seen(subject) as values:
                        use(modality, 1, embeds=hook == "get_multimodal_embeddings")
                    more += values
        with memory_growth() as grown:
            for hook, more in found.items():
                left = sorted({one.name for one in more if one.is_alive()})
                self.require(
                    not left,
                    hook,
                    expected="nothing of an item is alive after its request",
                    got=f"still there: {', '.join(left)}",
                    fix=fix,
                )
            with self.expecting("more items are processed and embedded"):
                smallest = min(use(modality, seed) for modality in subject.modalities for seed in (2, 3, 4))
            more_bytes = grown()
        self.require(
            more_bytes < smallest,
            "call_hf_processor or get_multimodal_embeddings",
            expected="after three more items of the same size, no more memory in tensors and arrays",
            got=f"{more_bytes} bytes more",
            fix=fix,
        )

    @slow()
    def test_many_items_stay_within_the_cache(self, subject: Subject) -> None:
        """The processor cache stays within its bytes over 128 items, and an item counts all bytes it keeps alive."""
        modality = subject.modalities[0]
        with self.expecting("an item is processed"):
            (first,) = subject.features(modality, subject.item(modality, 0))
        for name, elem in first.data.items():
            held = elem.data.untyped_storage().nbytes() if hasattr(elem.data, "untyped_storage") else 0
            self.require(
                held <= elem.nbytes,
                "call_hf_processor",
                expected=f"{name} keeps its own {elem.nbytes} bytes alive",
                got=held,
                fix="clone a tensor that is a part of a larger one",
            )
        inputs = subject.fresh(mm_processor_cache_gb=8 * first.data.nbytes / 2**30)
        cache = inputs.mm_processor.cache
        text = subject.prompt([(modality, None)])[0]
        for seed in range(MANY):
            with self.expecting("an item is processed"):
                subject.process(text, {modality: _tiny_item(subject, modality, seed)}, inputs=inputs)
            self.require(
                cache.nbytes <= cache.max_bytes,
                "call_hf_processor",
                expected=f"at most {cache.max_bytes} bytes",
                got=cache.nbytes,
                fix="give tensors that own their memory",
            )
        self.require(
            cache.misses >= MANY,
            "get_data_parser",
            expected=f"{MANY} different items",
            got=f"{cache.misses} misses",
            fix="let the parser keep all content",
        )


def _tiny_item(subject: Subject, modality: str, seed: int) -> Any:
    """Return one of many different items, quick to process."""
    import numpy as np

    value = np.array([seed, 255 - seed, 7], dtype=np.uint8)
    if modality == "image":
        return np.broadcast_to(value, (16, 16, 3)).copy()
    if modality == "video":
        return np.broadcast_to(value, (2, 32, 32, 3)).copy(), {"fps": 2.0}
    return np.full(subject.sampling_rate // 10, (seed + 1) / 2048, dtype=np.float32)
