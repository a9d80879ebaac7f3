"""Random requests: words, items, parameters of all kinds, a priority, an adapter; and what must not differ of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from hypothesis import strategies as st

from corellm import LLM, LoRARequest, SamplingParams, StructuredOutputsParams
from extensions.server.tests.conftest import image_part
from extensions.server.tests.test_equality import audio_part, video_part
from tests.same_results.models import Model

WORDS = ("one two three one two", "red green blue red green blue red", "what is this", "again and again and again and")
FORMS = (
    StructuredOutputsParams(choice=["one two three four five", "one two six"]),
    StructuredOutputsParams(regex="(ab|ba){2,9}c"),
)
PARAMS: dict[str, Any] = {
    "temperature": [0.0, 0.0, 0.3, 1.0],
    "seed": [*range(6)],
    "top_k": [0, 5],
    "top_p": [1.0, 0.9],
    "min_p": [0.0, 0.0, 0.05],
    "repetition_penalty": [1.0, 1.0, 1.2],
    "frequency_penalty": [0.0, 0.0, 0.4],
    "presence_penalty": [0.0, 0.0, 0.7],
    "logit_bias": [None, None, {30: 3.0, 31: -4.0}],
    "allowed_token_ids": [None, None, None, [*range(20, 200, 3)]],
    "logprobs": [0, 0, 2, 5],
    "prompt_logprobs": [None, None, 1],
    "n": [1, 1, 1, 2],
    "stop": [None, None, ["e", "th"]],
    "stop_token_ids": [None, None, [*range(0, 200, 11)]],
    "bad_words": [None, None, ["one", "green"]],
    "structured_outputs": [None, None, None, *FORMS],
    "min_tokens": [0, 5],
    "max_tokens": [50, 17, 5],
    "ignore_eos": [True, False],
}


class Asked(NamedTuple):
    """A request."""

    words: Sequence[str]
    items: Sequence[tuple[str, int]]
    """Modality and seed of each."""
    params: dict[str, Any]
    priority: int
    adapter: int | None
    """Its number, if the engine has adapters."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Its conversation, as OpenAI's clients send it."""
        items = [_part(*one) for one in self.items]
        return [{"role": "user", "content": [*items, {"type": "text", "text": " ".join(self.words)}]}]

    def own_adapter(self, adapters: Sequence[LoRARequest]) -> LoRARequest | None:
        """The adapter, of those that there are."""
        return adapters[self.adapter] if adapters and self.adapter is not None else None


@cache
def _part(modality: str, seed: int) -> dict[str, Any]:
    return {"image": image_part, "video": video_part, "audio": audio_part}[modality](seed)


def batches(model: Model, least: int = 3, most: int = 7) -> st.SearchStrategy[list[Asked]]:
    """Return some requests that a model takes."""
    items = st.tuples(st.sampled_from(model.modalities), st.integers(0, 2)) if model.modalities else st.nothing()
    asked = st.builds(
        Asked,
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
        st.lists(items, max_size=(2 if model.several else 1) if model.modalities else 0),
        st.fixed_dictionaries({name: st.sampled_from(values) for name, values in PARAMS.items()}),
        st.integers(0, 2),
        st.sampled_from([None, 0, 1, 2]),
    )
    return st.lists(asked, min_size=least, max_size=most)


def told(llm: LLM, batch: Sequence[Asked], adapters: Sequence[LoRARequest] = ()) -> list[Any]:
    """Run requests at once; return what must not differ of each.

    A form, a bad word or allowed tokens may leave no token: that is a result, too.
    """
    prepare = [
        partial(
            llm.engine.input_processor.process_chat,
            one.messages,
            priority=one.priority,
            prompt_keys={"lora_request": one.own_adapter(adapters)} if adapters else None,
        )
        for one in batch
    ]
    outputs = llm.run_prepared(prepare, [SamplingParams(**one.params) for one in batch], False, "return")
    return [
        (
            str(output.error),
            output.prompt_logprobs,
            [
                (one.text, one.token_ids, one.finish_reason, one.stop_reason, one.logprobs, one.cumulative_logprob)
                for one in output.outputs
            ],
        )
        for output in outputs
    ]
