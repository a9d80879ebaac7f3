"""The rule about repetition: a request that comes again becomes the same. All other comparisons need this one."""

from __future__ import annotations

from corellm.llm import LLM
from corellm.sampling_params import SamplingParams
from corellm_testing.content import content
from corellm_testing.contract.base import ContractRules
from corellm_testing.contract.same_outputs import TOLERANCE, tokens_and_logprobs
from corellm_testing.hook_calls import Request, hook_calls
from corellm_testing.subject import Subject

_NO_STATE = (
    "keep nothing of a call, neither in the adapter nor in its processor or model, and draw no random numbers, or from "
    "a generator that each call makes anew from the same seed"
)


class RepetitionRules(ContractRules):
    """The same again."""

    def test_the_same_request_twice_gives_the_same(self, subject: Subject) -> None:
        """A request becomes the same tokens, tensors, embeddings and output again, at once and after another request.

        Each hook is called by itself first, then the whole engine without caches.
        """
        kinds: list[str | None] = [*subject.modalities] or [None]
        for modality in kinds:
            items = [subject.item(modality, seed) if modality is not None else None for seed in (1, 2)]
            with self.expecting("the hooks of a request are called one by one"):
                ours, others = (hook_calls(subject, Request.of(subject, modality, item)) for item in items)
                for (hook, call), (_, other) in zip(ours, others, strict=True):
                    first, at_once = content(call()), content(call())
                    other()
                    for when, again in (("at once", at_once), ("after another request's", content(call()))):
                        self.require(
                            again == first,
                            hook,
                            expected="the same result for the same arguments every time",
                            got=f"another one, {when}",
                            fix=_NO_STATE,
                        )
        self._same_outputs(subject)

    def _same_outputs(self, subject: Subject) -> None:
        __tracebackhide__ = True
        params = SamplingParams(temperature=0, max_tokens=6, min_tokens=6, logprobs=0)
        with (
            self.expecting("a request is served"),
            LLM(
                str(subject.checkpoint),
                dtype="float32",
                mm_processor_cache_gb=0,
                encoder_cache_size=0,
                enable_prefix_caching=False,
            ) as llm,
        ):
            for request, other in zip(subject.requests(1), subject.requests(2), strict=True):
                outputs = [
                    llm.generate(given, params, use_tqdm=False)[0] for given in (request, request, other, request)
                ]
                first, *again = (tokens_and_logprobs(outputs[i]) for i in (0, 1, 3))
                for tokens, logprobs in again:
                    worst = max(abs(a - b) for a, b in zip(logprobs, first[1], strict=True))
                    self.require(
                        tokens == first[0] and worst <= TOLERANCE,
                        "load_model",
                        expected=f"the same output every time: {first[0]}",
                        got=f"{'the same' if tokens == first[0] else tokens}, log-probabilities up to {worst:.2g} off",
                        fix=f"each hook by itself gives the same: look at the model's own layers; {_NO_STATE}",
                    )
