"""One output is the reference's: its prompt's tokens, then its tokens and their log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from corellm.outputs import RequestOutput
from corellm_testing.contract.base import ContractRules
from corellm_testing.reference import Continuation
from corellm_testing.subject import Subject

TOLERANCE = 1e-4
"""Largest difference of log-probabilities, in float32."""


class SameOutputRules(ContractRules):
    """Rules that compare outputs with the reference's."""

    def equal(
        self,
        subject: Subject,
        output: RequestOutput,
        want: Continuation,
        what: str,
        *,
        with_items: bool,
        otherwise: str = "",
    ) -> None:
        """Require one output, made with log-probabilities, to be the reference's.

        Args:
            subject: the model.
            output: its output.
            want: the reference's.
            what: describes the request.
            with_items: whether it has any; requests of text alone come first and blame no hook of items.
            otherwise: what else an adapter may do.
        """
        __tracebackhide__ = True
        self.require(
            output.prompt_token_ids == want.prompt_token_ids,
            "get_prompt_updates" if with_items else "apply_hf_processor_tokens_only",
            expected=f"for {what}: {want.prompt_token_ids}",
            got=output.prompt_token_ids,
            fix=f"expand the prompt as the Hugging Face processor does{otherwise and f'; or {otherwise}'}",
        )
        tokens, logprobs = tokens_and_logprobs(output)
        off = [abs(a - b) for a, b in zip(logprobs, want.logprobs, strict=True)]
        pairs = enumerate(zip(tokens, want.token_ids, off, strict=True))
        at = next((i for i, (ours, theirs, by) in pairs if ours != theirs or not by <= TOLERANCE), None)
        if at is None:
            return
        self._same_choice(subject, tokens[at], want, what, at)
        if with_items:
            hook = "get_multimodal_embeddings, merge_multimodal_embeddings or get_rope_positions"
            fix = (
                "look at the encoder's input, the order of its embeddings, how they are merged, at the positions, then "
                "at the mask: attention is causal, also within an item, but for get_bidirectional_spans"
            )
        else:
            hook = "load_model, get_language_model, get_input_embeddings or compute_logits"
            fix = (
                "look at what is done to embeddings and logits, at how weights are loaded, then at the mask: corellm's "
                "attention is causal"
            )
        same = tokens == want.token_ids
        self.fail(
            hook,
            expected=f"for {what}: " + ("the same log-probabilities" if same else _from(want.token_ids, at)),
            got=f"log-probabilities up to {max(off):.2g} off" + ("" if same else f"; {_from(tokens, at)}"),
            fix=f"{fix}{otherwise and f'; or {otherwise}'}",
        )

    def _same_choice(self, subject: Subject, chosen: int, want: Continuation, what: str, at: int) -> None:
        """Require that both sides choose from the same tokens: none that only one masks, or takes for an end.

        Args:
            subject: the model.
            chosen: its token where outputs differ first.
            want: the reference's output.
            what: describes the request.
            at: where that is.
        """
        __tracebackhide__ = True
        names = subject.context.tokenizer.convert_ids_to_tokens
        ours, theirs = subject.end_token_ids, want.end_token_ids
        only = {"the adapter's": (ours - theirs) & {want.token_ids[at]}, "the reference's": (theirs - ours) & {chosen}}
        for whose, tokens in only.items() if theirs else ():
            self.require(
                not tokens,
                "load_model or the contract class",
                expected=f"for {what}: the same tokens end texts on both sides",
                got=f"{names(sorted(tokens))} ends {whose} texts only; outputs differ at token {at}",
                fix="set model.generation_config.eos_token_id in load_model to what the checkpoint names and ends a "
                "turn; a reference with a model of its own must have the same",
            )
        if want.masked_token_ids is not None:
            masked = subject.masked_token_ids
            for whose, left in {
                "the reference": want.masked_token_ids - masked, "the adapter": masked - want.masked_token_ids
            }.items():  # fmt: skip
                self.require(
                    not left,
                    "compute_logits",
                    expected=f"for {what}: the same tokens masked on both sides",
                    got=f"only {whose} masks {len(left)} tokens, such as {names(sorted(left)[:3])}",
                    fix="give the tokens that the model must not generate, and no others, logits of -inf",
                )


def _from(tokens: Sequence[int], at: int) -> str:
    """Return tokens from the first difference on, for a message."""
    shown = ", ".join(map(str, tokens[at : at + 8]))
    return f"token {at} and on: {shown}{', ...' if len(tokens) > at + 8 else ''}"


def tokens_and_logprobs(output: RequestOutput) -> tuple[list[int], list[float]]:
    """Return the tokens of an output that was asked for with `logprobs`, and the log-probability of each."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    tokens = list(completion.token_ids)
    return tokens, [place[token].logprob for place, token in zip(completion.logprobs, tokens, strict=True)]
