"""From a prompt's token ids and raw media to what the engine schedules: expanded tokens and processed items.

Runs the adapter's processing hooks in order, one item at a time, behind the processor cache. Knows no family and no
engine; invalid items are refused here, before the engine gets the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import Any

from corellm.config import MultiModalConfig
from corellm.errors import ContractError, EmbeddingInputError, PlaceholderError, ProcessorKwargsError
from corellm.media.pool import MediaPool
from corellm.multimodal.cache import ProcessorCache
from corellm.multimodal.fields import MultiModalFieldConfig, MultiModalKwargsItem, split_items
from corellm.multimodal.hashing import hash_item, hash_uuid
from corellm.multimodal.hook_results import adapter_errors, call_hook
from corellm.multimodal.inputs import MultiModalFeature
from corellm.multimodal.item_limits import NO_LIMITS, check_counts, lowered_limits
from corellm.multimodal.items import EmbeddingItems, ModalityItems, MultiModalItems, name_item_in_errors
from corellm.multimodal.media_reader import worker_module
from corellm.multimodal.parsing import DataParser
from corellm.multimodal.processor_kwargs import KwargsByModality, kwargs_names
from corellm.multimodal.profile import DummyProfile, measure_profile
from corellm.multimodal.prompt_updates import NoEmbeddingError, apply_prompt_updates
from corellm.multimodal.uuids import Uuids, check_uuids, read_uuids, with_uuid_items
from corellm.plugin.hook_callers import HookCallers


class MultiModalProcessor:
    """Processes the items of requests for one loaded model. Safe to call from several threads.

    Args:
        hooks: the model's hook callers.
        config: limits, default processor arguments, cache size.
        tokenize: text to token ids, without special tokens added.
        token_text: a token id as text, for messages.
        namespace: what, beside its content, an item's hash depends on: model and adapter version.
        seq_len: the longest sequence the engine serves.
        executor: runs the items of one request in parallel.
    """

    def __init__(
        self,
        hooks: HookCallers,
        config: MultiModalConfig,
        *,
        tokenize: Callable[[str], list[int]],
        token_text: Callable[[int], str],
        namespace: Sequence[str],
        seq_len: int,
        executor: Executor | None = None,
    ) -> None:
        self.hooks = hooks
        self.config = config
        self._pool = MediaPool.of(config, worker_module())
        self.cache = ProcessorCache(int(config.mm_processor_cache_gb * 2**30))
        self._tokenize = tokenize
        self._token_text = token_text
        self._namespace = tuple(namespace)
        self._seq_len = seq_len
        self._executor = executor
        with adapter_errors("get_supported_mm_limits"):
            self.limits = lowered_limits(call_hook(hooks.get_supported_mm_limits), config)

    def with_config(self, config: MultiModalConfig) -> MultiModalProcessor:
        """A processor of the same model, and its processes, with other limits and its own cache."""
        other = MultiModalProcessor(
            self.hooks,
            config,
            tokenize=self._tokenize,
            token_text=self._token_text,
            namespace=self._namespace,
            seq_len=self._seq_len,
            executor=self._executor,
        )
        other._pool = self._pool  # one owner closes it
        return other

    @cached_property
    def _changes_text(self) -> bool:
        """Whether the tokens of a prompt without items may change."""
        return _is_implemented(self.hooks.apply_hf_processor_tokens_only)

    @cached_property
    def reads_prompts(self) -> bool:
        """Whether items may depend on the prompt that they are in."""
        return _is_implemented(self.hooks.get_item_kwargs)

    @cached_property
    def _parser(self) -> DataParser:
        return self._parser_with(self.config, self._pool)

    def _parser_with(self, limits: MultiModalConfig, pool: MediaPool | None) -> DataParser:
        with adapter_errors("get_data_parser"):
            parser = self.hooks.get_data_parser()
        parser.limits, parser.pool = limits, pool  # the operator's, also for an adapter's own parser
        return parser

    def start(self) -> None:
        """Start a process that decodes media in the background, if the model takes any."""
        if self._pool is not None and self.limits:
            self._pool.start()

    def close(self) -> None:
        """End the processes that decode media."""
        if self._pool is not None:
            self._pool.close()

    @cached_property
    def kwargs(self) -> KwargsByModality:
        """The operator's processor arguments, divided by modality. The hook is called once, at load."""
        with adapter_errors("get_mm_kwargs_names"):
            names = {modality: kwargs_names(self.hooks, modality) for modality in self.limits}
        return KwargsByModality(self.config.mm_processor_kwargs, names)

    # --- one request ------------------------------------------------------------------------------------------------

    def process(
        self,
        token_ids: Sequence[int],
        mm_data: Mapping[str, Any],
        mm_kwargs: Mapping[str, Any] | None = None,
        uuids: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
    ) -> tuple[list[int], list[MultiModalFeature]]:
        """Return a request's expanded prompt and processed items.

        Args:
            token_ids: the prompt with unexpanded placeholders.
            mm_data: `{modality: item or list of items}`; may be empty.
            mm_kwargs: processor arguments, laid over the operator's (see `KwargsByModality`).
            uuids: `{modality: id or list of ids}` to use instead of content hashes. An item that has one may be None
                in `mm_data`, if it was processed before and is still cached.
            cache_salt: items are shared with requests of the same salt only, by content or by uuid.

        Returns:
            The expanded prompt, and the items ordered by placeholder.

        Raises:
            MultiModalError: invalid items or placeholders, or arguments that leave an item no embedding or too many.
            InvalidParameterError: `uuids` do not fit the items.
            ProcessingError: the adapter or the processor raised.
            ContractError: a hook returned something that its specification does not allow.
        """
        if not (mm_data or mm_kwargs or uuids) and not self._changes_text and self.profile.marks.isdisjoint(token_ids):
            return list(token_ids), []
        names = read_uuids(uuids) if uuids else {}
        items = self.parse(with_uuid_items(mm_data, names) if names else mm_data, names)
        placeholders = self.profile.placeholder_token_ids
        expanded, features = self._expand(
            token_ids, items, placeholders, mm_kwargs=mm_kwargs, uuids=names, salt=cache_salt
        )
        if mm_kwargs:
            self._check_planned(features, mm_kwargs)
        return expanded, features

    def unexpanded(
        self,
        token_ids: Sequence[int],
        counts: Mapping[str, int],
        processed: Mapping[str, Sequence[MultiModalKwargsItem]] | None = None,
    ) -> list[int]:
        """The prompt as placeholders are looked for in it: with what the family adds or removes.

        Args:
            token_ids: the prompt.
            counts: `{modality: items}`.
            processed: the items; None for what is added or removed whatever they are.
        """
        hook = self.hooks.apply_hf_processor_tokens_only
        with adapter_errors("apply_hf_processor_tokens_only"):
            return list(
                call_hook(hook, token_ids=list(token_ids), mm_counts=dict(counts), out_mm_kwargs=processed or {})
            )

    def expansion(
        self,
        mm_data: Mapping[str, Any],
        mm_kwargs: Mapping[str, Any] | None,
        uuids: Mapping[str, Any],
        cache_salt: str | None,
    ) -> int:
        """How many tokens expanding its placeholder adds to a prompt, for one item. It is processed, and cached.

        The largest item's where items depend on the prompt, which is not known yet.

        Args:
            mm_data: `{modality: [item]}`.
            mm_kwargs, uuids, cache_salt: as in `process`.

        Raises:
            CorellmError: as `process`.
        """
        counts = dict.fromkeys(mm_data, 1)
        if self.reads_prompts:
            return sum(self.profile.max_tokens.get(modality, 0) for modality in counts)
        dummy = self._tokenize(call_hook(self.hooks.get_dummy_text, mm_counts=counts))
        expanded, _ = self.process(dummy, mm_data, mm_kwargs, uuids, cache_salt)
        return len(expanded) - len(self.unexpanded(dummy, counts))

    def _expand(
        self,
        token_ids: Sequence[int],
        items: MultiModalItems,
        placeholder_token_ids: Mapping[int, str],
        *,
        mm_kwargs: Mapping[str, Any] | None = None,
        uuids: Uuids | None = None,
        salt: str | None = None,
    ) -> tuple[list[int], list[MultiModalFeature]]:
        self._check_embeddings(items)
        counts = {modality: count for modality, count in items.get_counts().items() if count}
        kwargs = self.kwargs.resolve(mm_kwargs)
        if self.reads_prompts:
            kwargs = self._with_prompt(kwargs, counts, token_ids)
        identifiers = {
            modality: self._identify(items[modality], kwargs[modality], (uuids or {}).get(modality), salt)
            for modality in counts
        }
        processed = {
            modality: self._process_items(items[modality], identifiers[modality], kwargs[modality])
            for modality in counts
        }
        with adapter_errors("get_prompt_updates"):
            tokens = self.unexpanded(token_ids, counts, processed)
            updates = self._prompt_updates(items, {modality: kwargs[modality] for modality in counts}, processed)
            try:
                expanded, placeholders = apply_prompt_updates(
                    tokens, updates, counts, self._tokenize, placeholder_token_ids=placeholder_token_ids
                )
            except PlaceholderError as error:
                error.args = (re.sub(r"\btoken (\d+)", self._named_token, str(error)),)
                raise
            except NoEmbeddingError as error:
                if not self._are_changed(mm_kwargs, error.modality):
                    raise
                raise ProcessorKwargsError(
                    f"{error.modality} {error.item}: mm_processor_kwargs {dict(mm_kwargs or {})!r:.100} of the request "
                    f"leave it without an embedding; leave them out, or give a larger {error.modality}",
                    modality=error.modality, item=error.item, got=0,
                ) from error  # fmt: skip
        features = [
            MultiModalFeature(
                modality=modality,
                item=i,
                identifier=identifiers[modality][i],
                placeholder=placeholders[modality][i],
                data=processed[modality][i],
                precomputed=isinstance(items[modality], EmbeddingItems),
            )
            for modality, count in counts.items()
            for i in range(count)
        ]
        features.sort(key=lambda feature: feature.placeholder.offset)
        return expanded, features

    def _with_prompt(
        self, kwargs: Mapping[str, dict[str, Any]], modalities: Iterable[str], token_ids: Sequence[int]
    ) -> dict[str, dict[str, Any]]:
        """The arguments of these modalities, laid over what their items depend on of the prompt."""
        found: dict[str, dict[str, Any]] = {}
        with adapter_errors("get_item_kwargs"):
            for modality in modalities:
                given = call_hook(self.hooks.get_item_kwargs, modality=modality, token_ids=token_ids)
                found[modality] = {**(given or {}), **kwargs[modality]}
        return found

    def _prompt_updates(
        self,
        items: MultiModalItems,
        kwargs: Mapping[str, Mapping[str, Any]],
        processed: Mapping[str, Sequence[MultiModalKwargsItem]],
    ) -> list[Any]:
        """Prompt updates of all items, each made with the arguments that its modality was processed with."""

        def updates_for(arguments: Mapping[str, Any]) -> list[Any]:
            updates = call_hook(
                self.hooks.get_prompt_updates, mm_items=items, mm_kwargs=arguments, out_mm_kwargs=processed
            )
            return list(updates)

        if not kwargs:
            return list(self.profile.targets)
        if len(kwargs) == 1 or not any(kwargs.values()):
            return updates_for(next(iter(kwargs.values())))
        updates: list[Any] = []
        for i, (modality, arguments) in enumerate(kwargs.items()):
            # Updates of modalities without items are kept, once: they tell which placeholders are surplus.
            others = kwargs.keys() - {modality} if i == 0 else None
            for update in updates_for(arguments):
                owner = getattr(update, "modality", modality)
                if owner == modality or (others is not None and owner not in others):
                    updates.append(update)
        return updates

    def _named_token(self, match: re.Match[str]) -> str:
        """`token 32000` with its text: `'<image>' (token 32000)`."""
        return f"{self._token_text(int(match[1]))!r} ({match[0]})"

    def parse(self, mm_data: Mapping[str, Any], uuids: Uuids | None = None) -> MultiModalItems:
        """Return a request's items; their numbers are checked before any file is opened.

        Raises:
            UnsupportedModalityError, ItemLimitError: with the limit and the count.
            InvalidParameterError: the uuids are not one per item.
            MultiModalError: an item that cannot be read.
        """
        counts = self._parser.count(mm_data)
        check_counts(counts, self.limits, self.config)
        if uuids:
            check_uuids(uuids, counts)
        return self._parser.parse(mm_data)

    def _check_planned(self, features: Sequence[MultiModalFeature], mm_kwargs: Mapping[str, Any]) -> None:
        """Refuse an item to which a request's arguments give more embeddings than memory was planned for.

        Raises:
            ProcessorKwargsError: names both numbers, and how to allow more.
        """
        for feature in features:
            modality, got = feature.modality, feature.placeholder.num_embeds
            planned = self.profile.max_embeds[modality]
            if got > planned and not feature.precomputed and self._are_changed(mm_kwargs, modality):
                sizes = " or larger sizes in limit_mm_per_prompt" if self.config.dummy_options.get(modality) else ""
                raise ProcessorKwargsError(
                    f"{modality} {feature.item}: mm_processor_kwargs {dict(mm_kwargs)!r:.100} of the request give it "
                    f"{got} embeddings, more than the {planned} for which memory was planned at start; leave them out, "
                    f"or start with them, LLM(..., mm_processor_kwargs=...){sizes}",
                    modality=modality, item=feature.item, expected=planned, got=got,
                )  # fmt: skip

    def _are_changed(self, mm_kwargs: Mapping[str, Any] | None, modality: str) -> bool:
        """Whether a request's arguments for a modality are others than the operator's."""
        return self.kwargs.resolve(mm_kwargs)[modality] != self.kwargs.resolve(None)[modality]

    def _check_embeddings(self, items: MultiModalItems) -> None:
        """Refuse precomputed embeddings where the model cannot use them."""
        for modality, given in items.items():
            reason = self.hooks.refuse_embeddings(modality=modality) if isinstance(given, EmbeddingItems) else None
            if reason:
                raise EmbeddingInputError(
                    f"{modality}: this model takes no precomputed embeddings: {reason}; give the {modality} itself",
                    modality=modality,
                )

    # --- hashes -----------------------------------------------------------------------------------------------------

    def _identify(
        self, items: ModalityItems, kwargs: Mapping[str, Any], uuids: Sequence[str | None] | None, salt: str | None
    ) -> list[str]:
        # embeddings and media of the same uuid must not share an entry
        kind = f"{items.modality}_embeds" if isinstance(items, EmbeddingItems) else items.modality
        keys: dict[str, Any] = {"modality": kind, "kwargs": kwargs, "namespace": self._namespace, "salt": salt}
        return [
            hash_item(items.content(i), **keys) if uuid is None else hash_uuid(uuid, **keys)
            for i, uuid in enumerate(uuids or [None] * len(items))
        ]

    # --- tensors ----------------------------------------------------------------------------------------------------

    def _process_items(
        self, items: ModalityItems, identifiers: Sequence[str], kwargs: Mapping[str, Any]
    ) -> list[MultiModalKwargsItem]:
        if isinstance(items, EmbeddingItems):
            return [_embedding_item(items, i) for i in range(len(items))]

        def process(i: int) -> MultiModalKwargsItem:
            item: MultiModalKwargsItem
            item = self.cache.get_or_compute(identifiers[i], lambda: self._process_one(items, i, kwargs))
            return item

        given = [i for i in range(len(items)) if not items.is_uuid_only(i)]
        run = map if self._executor is None or len(given) < 2 else self._executor.map
        found = dict(zip(given, run(process, given), strict=True))
        # items given as a uuid alone come last: one of the others may have put them into the cache
        return [found[i] if i in found else process(i) for i in range(len(items))]

    def _process_one(self, items: ModalityItems, i: int, kwargs: Mapping[str, Any]) -> tuple[MultiModalKwargsItem, int]:
        modality = items.modality
        with name_item_in_errors(modality, i), adapter_errors(f"{modality} {i}: the processor"):
            hf_inputs = call_hook(
                self.hooks.call_hf_processor,
                prompt=call_hook(self.hooks.get_dummy_text, mm_counts={modality: 1}),
                mm_data={modality: [items.get(i)]},
                mm_kwargs=kwargs,
            )
            fields = call_hook(self.hooks.get_mm_fields_config, hf_inputs=hf_inputs, mm_kwargs=kwargs)
        split = split_items(hf_inputs, fields).get(modality, [])
        if len(split) != 1:
            raise ContractError(
                f"call_hf_processor got one {modality}, but get_mm_fields_config divides its tensors into {len(split)}"
            )
        return split[0], split[0].nbytes

    # --- dummy items ------------------------------------------------------------------------------------------------

    @cached_property
    def profile(self) -> DummyProfile:
        """Sizes of the adapter's dummy items; measured on first use."""
        parser = self._parser_with(NO_LIMITS, None)  # the operator's limits are for what users send

        def expand(text: str, item: MultiModalItems) -> tuple[list[int], MultiModalFeature]:
            tokens, (feature,) = self._expand(self._tokenize(text), item, {})
            return tokens, feature

        return measure_profile(
            self.hooks,
            self.limits,
            parser,
            expand,
            self._tokenize,
            self._seq_len,
            self.config.dummy_options,
        )


def _is_implemented(hook: Any) -> bool:
    """Whether an adapter has a hook, or an extension that wraps it; the core's defaults are `trylast`."""
    return any(not found.trylast for found in hook.get_hookimpls())


def _embedding_item(items: EmbeddingItems, i: int) -> MultiModalKwargsItem:
    """A precomputed embedding as an item with one tensor, `<modality>_embeds`."""
    name = f"{items.modality}_embeds"
    field = MultiModalFieldConfig.batched(items.modality)
    return split_items({name: items.get(i)[None]}, {name: field})[items.modality][0]
