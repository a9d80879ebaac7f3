"""Rules about outputs: they are the same whatever the engine does to save time or memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corellm.multimodal.defaults import SUBPROCESSORS, declared_types
from corellm.outputs import RequestOutput
from corellm.sampling_params import SamplingParams
from corellm_testing.argument_values import current_value, values_to_try
from corellm_testing.contract.greedy import QUESTIONS, SCARCE_BLOCK_SIZES, Examination, GreedyRules, scarce_blocks
from corellm_testing.items import plain_items, timed_videos
from corellm_testing.quick import slow
from corellm_testing.subject import Subject, same_data


class EngineRules(GreedyRules):
    """Short memory, whole prompts, other attention backends: with items or without.

    With the cases of `test_greedy_equals_the_reference` four engines, which together have every setting that changes
    what the hooks are called with, once; that the engine keeps its promises in all combinations its own tests prove.
    """

    fills_memory = True

    @slow()
    def test_preemption(self, subject: Subject, examination: Examination) -> None:
        """Where requests are preempted and recomputed, and the caches hold one item, tokens are the same.

        Items are evicted while requests are in flight. On a CPU with plain torch's attention, where compiled kernels
        are chosen.
        """
        small, _ = SCARCE_BLOCK_SIZES
        process = subject.inputs.process
        features = [feature for case in examination.cases for feature in process(case.prompt).features]
        outputs = self.check_outputs(
            subject,
            examination,
            num_kv_blocks=scarce_blocks(examination.longest + examination.most_states, small),
            block_size=small,
            max_model_len=examination.longest,
            max_num_batched_tokens=64,
            encoder_cache_size=0,
            mm_processor_cache_gb=max((feature.data.nbytes for feature in features), default=0) / 2**30,
            attention_backend="cpu" if subject.context.device.type == "cpu" else None,
        )
        _require_preemptions(outputs)

    @slow()
    def test_whole_prompts(self, subject: Subject, examination: Examination) -> None:
        """Without chunked prefill, swapped where memory is short, tokens are the same.

        With the reference attention instead of the backend chosen here.
        """
        _, large = SCARCE_BLOCK_SIZES
        outputs = self.check_outputs(
            subject,
            examination,
            enable_chunked_prefill=False,
            num_kv_blocks=scarce_blocks(examination.longest + examination.most_states, large),
            block_size=large,
            max_model_len=examination.longest,
            preemption_mode="swap",
            attention_backend="reference",
        )
        _require_preemptions(outputs)


def _require_preemptions(outputs: Sequence[RequestOutput]) -> None:
    preempted = sum(output.metrics.num_preemptions for output in outputs if output.metrics)
    assert preempted > 0, "the requests of this rule are too short to be preempted"


class ItemEngineRules(EngineRules):
    """The blocks of items, and arguments of processors."""

    def test_arguments_reach_the_answers(self, subject: Subject) -> None:
        """With `mm_processor_kwargs`, too, greedy tokens are the reference's.

        Also where one side of a size is changed, and the others are the checkpoint's.
        """
        params = SamplingParams(temperature=0, max_tokens=6, min_tokens=6, logprobs=0)
        for modality in subject.modalities:
            item = subject.item(modality, 3)
            text, media = subject.prompt([(modality, item), QUESTIONS[0]])
            one_sided = list(self._one_sided(subject, modality))
            for kwargs in [*self.arguments(subject), *one_sided]:
                if kwargs in one_sided and not self.taken(subject, modality, item, f"an item with {kwargs}", kwargs):
                    continue
                try:
                    want = subject.reference.generate(text, media, kwargs, 6)
                except Exception as error:
                    if kwargs in one_sided:  # the model does not take such items: nothing to compare with
                        continue
                    self.fail(
                        "the contract class",
                        expected=f"the reference's output with {dict(kwargs)}",
                        got=f"{type(error).__name__}: {error}",
                        fix="let processor_kwargs name arguments with which the reference's model takes items",
                    )
                request = {"prompt": text, "multi_modal_data": media, "mm_processor_kwargs": dict(kwargs)}
                with self.expecting(f"a request with {dict(kwargs)} is served"):
                    (output,) = subject.llm.generate(request, params, use_tqdm=False)
                self.equal(
                    subject, output, want, f"{QUESTIONS[0]!r} with one {modality} and {dict(kwargs)}", with_items=True
                )

    def _one_sided(self, subject: Subject, modality: str) -> Iterator[Mapping[str, Any]]:
        """Yield arguments that change one side of a size of the processor's, smaller than the checkpoint's."""
        processor = subject.context.hf_processor
        part = getattr(processor, SUBPROCESSORS[modality], None)
        for name, kind in (declared_types(processor, modality) or {}).items():
            size = current_value(part, name)
            if name in self.without_effect or not isinstance(size, Mapping):
                continue
            for value in values_to_try(kind, size):
                if isinstance(value, Mapping) and sum(value[side] != size[side] for side in size) == 1 < len(size):
                    yield {name: value}

    @slow()
    def test_plain_items_reach_the_answers(self, subject: Subject) -> None:
        """With black items, those of one colour and silence, too, greedy tokens are the reference's."""
        params = SamplingParams(temperature=0, max_tokens=4, min_tokens=4, logprobs=0)
        for modality in subject.modalities:
            rate = subject.sampling_rate if modality == "audio" else 0
            for what, item in plain_items(modality, rate).items():
                text, media = subject.prompt([(modality, item), QUESTIONS[0]])
                for kwargs in self.every_argument(subject):
                    described = f"{what} with {dict(kwargs)}" if kwargs else what
                    if kwargs and not self.taken(subject, modality, item, described, kwargs):
                        continue
                    request = {"prompt": text, "multi_modal_data": media, "mm_processor_kwargs": dict(kwargs)}
                    fix = "embed every item and crop; where the model takes zeros for padding, call its parts yourself"
                    with self.expecting(f"{described} is embedded", hook="get_multimodal_embeddings", fix=fix):
                        (output,) = subject.llm.generate(request, params, use_tqdm=False)
                    try:
                        want = subject.reference.generate(text, media, kwargs, 4)
                    except Exception:  # a model of transformers that drops zeros as padding: nothing to compare with
                        continue
                    self.equal(subject, output, want, f"{QUESTIONS[0]!r} and {described}", with_items=True)

    @slow()
    def test_times_of_videos_reach_the_answers(self, subject: Subject) -> None:
        """With videos of uneven times, of odd and of unknown rates, too, greedy tokens are the reference's."""
        if "video" not in subject.modalities:
            return
        params = SamplingParams(temperature=0, max_tokens=4, min_tokens=4, logprobs=0)
        for what, item in timed_videos().items():
            if not self.taken(subject, "video", item, what):
                continue
            text, media = subject.prompt([("video", item), QUESTIONS[0]])
            with self.expecting(f"a request with {what} is served", hook="get_rope_positions"):
                (output,) = subject.llm.generate({"prompt": text, "multi_modal_data": media}, params, use_tqdm=False)
            try:
                want = subject.reference.generate(text, media, {}, 4)
            except Exception:  # the reference refuses the video: nothing to compare with
                continue
            self.equal(subject, output, want, f"{QUESTIONS[0]!r} and {what}", with_items=True)

    @slow()
    def test_different_items_share_no_blocks(self, subject: Subject) -> None:
        """Two items behind equal token ids never share blocks of the prefix cache; an item and itself do."""
        params = SamplingParams(temperature=0, max_tokens=8, min_tokens=8, logprobs=0)
        shares_prefixes = subject.llm.engine.scheduler.blocks.shares_any_block  # else only longer prefixes
        for modality in subject.modalities:
            item, other = (subject.alike(modality, seed) for seed in (1, 2))
            text = subject.placeholder(modality) + QUESTIONS[2] * 2
            requests = [{"prompt": text, "multi_modal_data": {modality: given}} for given in (item, other, item)]
            with self.expecting("items are processed"):
                features = [subject.process(text, {modality: given}).features[0] for given in (item, other)]
            self.require(
                features[0].identifier != features[1].identifier,
                "get_data_parser",
                expected=f"{modality}s of the same size have different identifiers",
                got="the same",
                fix="let the parser keep all content that the processor sees",
            )
            self.require(
                not same_data(features[0].data, features[1].data),
                "call_hf_processor",
                expected=f"different {modality}s of the same size become different tensors",
                got="the same",
                fix="remember nothing by a size, a name or an address",
            )
            (before,) = {feature.placeholder.offset for feature in features}
            with self.expecting("requests are served"):
                outputs = [subject.llm.generate(request, params, use_tqdm=False)[0] for request in requests]
            first, second, again = outputs
            assert first.prompt_token_ids == second.prompt_token_ids, "the items of this rule differ in tokens"
            self.require(
                second.num_cached_tokens <= before,
                "get_data_parser",
                expected=f"at most the {before} tokens before the {modality} reused",
                got=second.num_cached_tokens,
                fix="let the parser keep all content, so that other items have other identifiers",
            )
            self.require(
                (again.num_cached_tokens > before) >= shares_prefixes and _token_ids(again) == _token_ids(first),
                "call_hf_processor",
                expected=f"the same {modality} found in the cache, and the same output",
                got=f"{again.num_cached_tokens} tokens reused",
                fix="let equal items become equal tensors",
            )
            want = subject.reference.generate(text, {modality: [other]}, {}, 8)
            self.equal(subject, second, want, f"one {modality} after another with the same tokens", with_items=True)


def _token_ids(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)
