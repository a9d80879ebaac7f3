"""Rules about perception: what an item holds reaches the decoder, so that other rules prove something of it."""

from __future__ import annotations

from corellm.modelling import item_token_ids
from corellm.modelling.defaults import model_width
from corellm_testing.contract.base import ContractRules
from corellm_testing.reference import Reference
from corellm_testing.subject import Subject

_TINY = "make_tiny_checkpoint"


class PerceptionRules(ContractRules):
    """Items change what comes out."""

    def test_tokens_of_items_are_in_the_vocabulary(self, subject: Subject) -> None:
        """Each token that the configuration names for items, in its parts, too, is one that prompts can have.

        A model merges nothing for another one: it then runs as if there were no item, and so does its reference. A
        reference with a model of its own reads no such configuration.
        """
        if self.reference.model is not Reference.model:
            return
        size = model_width(subject.model)
        for _, name, token in item_token_ids(subject.context.hf_config):
            self.require(
                0 <= token < size,
                _TINY,
                expected=f"{name} among the {size} tokens of the model",
                got=token,
                fix="write the tokenizer's id of the item's token there, wherever the configuration names it",
            )

    def test_different_items_are_told_apart(self, subject: Subject) -> None:
        """Two items of one size have different embeddings, which are not their tokens' own, and different outputs.

        The reference's outputs, too: equal ones would prove nothing of the items.
        """
        import torch

        for modality in subject.modalities:
            prompts = [subject.prompt([(modality, subject.alike(modality, seed)), "What?"]) for seed in (0, 1)]
            with self.expecting("items are embedded", hook="get_multimodal_embeddings"):
                processed = [subject.process(*prompt) for prompt in prompts]
                one, other = (subject.embed(each.features)[0] for each in processed)
            ids = subject.ids(processed[0].token_ids)[subject.embed_mask(processed[0])]
            with torch.inference_mode():
                own = subject.hooks.get_input_embeddings(model=subject.model, input_ids=ids)[:, : one.shape[-1]]
            self.require(
                not torch.equal(one, other) and not torch.equal(one[..., : own.shape[-1]], own),
                "get_multimodal_embeddings or call_hf_processor",
                expected=f"embeddings that follow from what the {modality} shows",
                got="those of another item" if torch.equal(one, other) else "those of the tokens in its place",
                fix="embed the tensors of mm_kwargs, and let the processor make them of the item",
            )
            with self.expecting("the reference takes an item", hook="the contract class"):
                outputs = [subject.reference.generate(*prompt, {}, 2) for prompt in prompts]
            self.require(
                outputs[0].logprobs != outputs[1].logprobs,
                f"{_TINY} or the contract class",
                expected=f"other log-probabilities of the reference for another {modality}",
                got="the same for two different ones: the reference does not get them",
                fix="name the tokens of items in all parts of the configuration as the processor writes them",
            )
