"""Runs one prompt through the engine's own stages and reports the result of each.

A stage that fails is reported as failed, and stages that do not need it go on: the adapter may be broken. A user's
mistake (a broken file, an unknown argument) is raised as everywhere. Importing this imports no torch: the engine sets
up its threads first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corellm.engine.llm_engine import LLMEngine
from corellm.errors import ConfigError, CorellmError, MissingExtraError, PlaceholderError, RequestError, raised_at
from corellm.frontend.input_processor import InputProcessor, ProcessedPrompt
from corellm.loading.checkpoint import read_architectures
from corellm.multimodal.hashing import hash_item
from corellm.plugin.adapters import find_adapter
from corellm.plugin.contract import contract_versions
from corellm.sampling_params import SamplingParams
from corellm_testing.inspection.describe import describe_result, describe_tensor
from corellm_testing.inspection.layout import add_images, make_item, make_tokens, read_positions
from corellm_testing.inspection.recorder import Recorder, recording
from corellm_testing.inspection.report import HookCall, Report, Stage

Prepare = Callable[[InputProcessor], ProcessedPrompt]
_USERS = (ConfigError, MissingExtraError, RequestError)
"""Errors caused by the user; placeholders that do not match are excepted: they may be the adapter's fault."""


def collect(
    make_engine: Callable[[], LLMEngine],
    prepare: Prepare,
    media: Mapping[str, Sequence[str | bytes]],
    *,
    model: str,
    adapter: str | None = None,
) -> Report:
    """Return the report of one prompt.

    Args:
        make_engine: loads the model, without checking its encoders.
        prepare: makes the prompt; called twice, the second time for what the caches save.
        media: `{modality: files}`, the prompt's: paths, or the bytes of standard input.
        model: its name in the report.
        adapter: the distribution to use, where several serve the model.

    Raises:
        RequestError, ConfigError, MissingExtraError: the user's mistake.
        CorellmError: loading failed before the adapter was made.
    """
    with recording() as recorder:
        inspection = _Inspection(recorder, media, Report(model))
        inspection.run(make_engine, prepare, adapter)
    return inspection.report


class _Inspection:
    """One prompt's run through the stages."""

    def __init__(self, recorder: Recorder, files: Mapping[str, Sequence[str | bytes]], report: Report) -> None:
        self.report = report
        self._recorder, self._files = recorder, files
        self._media: Mapping[str, Any] = {}
        """The parsed files."""

    def run(self, make_engine: Callable[[], LLMEngine], prepare: Prepare, adapter: str | None) -> None:
        """Run all stages, as far as they succeed."""
        engine: LLMEngine | None = None
        with self._stage("load"):
            engine = make_engine()
        self._name_adapter(adapter)
        if engine is None:
            return
        try:
            self._check_dummies(engine)
            self._read_media(engine)
            processed = self._prepare(engine, prepare)
            if processed is not None:
                self._encode(engine, processed)
                self._generate(engine, processed)
                self._lay_out(engine, processed)
        finally:
            engine.shutdown()

    @contextmanager
    def _stage(self, name: str, *, raises: tuple[type[CorellmError], ...] = _USERS) -> Iterator[Stage]:
        """Add a timed stage and its hook calls to the report; an adapter's error ends the stage, not the inspection."""
        stage = Stage(name)
        self.report.stages.append(stage)
        before, start = len(self._recorder.calls), time.perf_counter()
        try:
            yield stage
        except Exception as error:
            users = isinstance(error, raises) and not isinstance(error, PlaceholderError)
            if users or self._recorder.context is None:
                raise
            where = "" if isinstance(error, CorellmError) else f" ({raised_at(error)})"
            stage.error = f"{type(error).__name__}: {error}{where}"
        finally:
            stage.seconds = time.perf_counter() - start
            stage.hooks = [
                HookCall(call.hook, call.seconds, describe_result(call.result), call.error)
                for call in sorted(self._recorder.calls[before:], key=lambda call: call.start)
            ]

    def _name_adapter(self, adapter: str | None) -> None:
        context, report = self._recorder.context, self.report
        assert context is not None, "_stage raises where no adapter was made"
        architectures = read_architectures(context.model_path)
        entry = find_adapter(architectures, adapter=adapter)
        versions = contract_versions(entry.load())
        report.architecture = next((name for name in architectures if name == entry.architecture), architectures[0])
        report.adapter = entry.entry_point.value
        report.distribution, report.version = entry.distribution, entry.version
        report.contract = f"{versions[0]}" if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        report.dtype = str(context.dtype).removeprefix("torch.")

    # --- the stages -------------------------------------------------------------------------------------------------

    def _check_dummies(self, engine: LLMEngine) -> None:
        with self._stage("dummy items") as stage:
            profile = engine.input_processor.mm_processor.profile
            stage.note = ", ".join(
                f"{modality}: at most {tokens} tokens, {profile.max_embeds[modality]} embeddings"
                for modality, tokens in profile.max_tokens.items()
            )
            engine.runner.encoders.check(profile.features)

    def _read_media(self, engine: LLMEngine) -> None:
        """Read and hash the files once more than the engine does: to time it, and to show them."""
        processor = engine.input_processor.mm_processor
        if not self._files:
            return
        with self._stage("read media"):
            self._media = processor.parse(self._files)
        with self._stage("hash"):
            for modality, items in self._media.items():
                for i in range(len(items)):
                    hash_item(items.content(i), modality=modality, kwargs={}, namespace=())
        with self._stage("decode"):
            for items in self._media.values():
                for i in range(len(items)):
                    items.get(i)

    def _prepare(self, engine: LLMEngine, prepare: Prepare) -> ProcessedPrompt | None:
        """Return the expanded prompt, or None if that failed: the report then has the tokens before expansion."""
        processed: ProcessedPrompt | None = None
        cache, before = engine.input_processor.mm_processor.cache, len(self._recorder.calls)
        with self._stage("prepare"):
            processed = prepare(engine.input_processor)
        if processed is None:
            call = self._recorder.last("apply_hf_processor_tokens_only", before)
            token_ids = (call.result if call is not None else None) or []
            unknown: list[tuple[int, ...]] = [()] * len(token_ids)
            self.report.tokens = make_tokens(engine.context.tokenizer, token_ids, unknown, ())
            return None
        hits, misses = cache.hits, cache.misses
        with self._stage("prepare again") as stage:
            prepare(engine.input_processor)
        hits, misses = cache.hits - hits, cache.misses - misses
        stage.note = f"{hits} of {hits + misses} from the cache" if hits + misses else ""
        self.report.prompt = processed.text
        return processed

    def _encode(self, engine: LLMEngine, processed: ProcessedPrompt) -> None:
        """Embed each item alone and compare the number of embeddings with its mask."""
        import torch

        for feature in processed.features:
            file = self._files[feature.modality][feature.item]
            item = make_item(feature, Path(file).name if isinstance(file, str) else "standard input")
            self.report.items.append(item)
            before = len(self._recorder.calls)
            with self._stage(f"encode {item.name}") as stage:
                with torch.inference_mode():
                    engine.runner.encoders.run([feature])
                engine.runner.encoders.output(feature)
            item.error = stage.error
            call = self._recorder.last("get_multimodal_embeddings", before)
            if call is not None and hasattr(call.result, "__len__") and len(call.result):
                item.embeddings = describe_tensor("embeddings", call.result[0])

    def _generate(self, engine: LLMEngine, processed: ProcessedPrompt) -> None:
        """Generate one token greedily: only this calls the hooks for positions and merging."""
        with self._stage("first token", raises=()) as stage:
            engine.add_request("inspect", processed, SamplingParams(temperature=0, max_tokens=1))
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.error is not None:
                        raise output.error
                    stage.note = repr(output.outputs[0].text)

    def _lay_out(self, engine: LLMEngine, processed: ProcessedPrompt) -> None:
        """Add tokens with positions to the report, and each item's grid and images."""
        call = self._recorder.last("get_rope_positions")
        positions, self.report.position_offset = read_positions(
            call, len(processed.token_ids), has_items=bool(processed.features)
        )
        self.report.tokens = make_tokens(engine.context.tokenizer, processed.token_ids, positions, processed.features)
        for item, feature in zip(self.report.items, processed.features, strict=True):
            add_images(item, feature, self._media[item.modality].get(item.index), positions)
