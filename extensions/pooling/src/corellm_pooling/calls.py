"""The calls of `LLM` for models that pool: `encode`, `embed`, `classify`, `reward`, `score`.

Knows prompts and outputs; the prompts run as `LLM.generate` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from corellm.errors import InvalidParameterError, PromptError
from corellm.prompts import is_conversation, split_prompts
from corellm_pooling.late_interaction import DOCUMENT, QUERY
from corellm_pooling.pairs import join_pair, paired, text_pair
from corellm_pooling.params import PoolingParams, PoolingTask
from corellm_pooling.results import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
)
from corellm_pooling.settings import WAYS, compares_tokens

if TYPE_CHECKING:
    from corellm.llm import LLM, OnError

Bar = bool | Callable[..., Any]
_Made = TypeVar("_Made", EmbeddingOutput, ClassificationOutput, ScoringOutput)
_Pooled = PoolingRequestOutput[PoolingOutput]


class PooledCalls:
    """The methods of an `LLM` that need a model with `runner="pooling"`.

    Their prompts are those of `generate`, and conversations as of `chat`, which here end with the last message. All
    take `use_tqdm` and `on_error` as `generate` does, and raise the first failed prompt's error.

    Args:
        llm: whose they are.
    """

    def __init__(self, llm: LLM) -> None:
        self._llm, self._engine = llm, llm.engine

    def encode(
        self,
        prompts: Any,
        *,
        pooling_task: PoolingTask,
        dimensions: int | None = None,
        use_activation: bool | None = None,
        prompt_name: str | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[_Pooled]:
        """Pool prompts, as arrays.

        Args:
            prompts: one or a list of text, token ids, dictionaries with items, or conversations.
            pooling_task: which results; see `PoolingParams`.
            dimensions, use_activation, truncate_prompt_tokens: see `PoolingParams`.
            prompt_name: as for `embed`; of a ColBERT model `query` or `document`, which it must know.
            use_tqdm, on_error: as for `generate`.

        Returns:
            One output per prompt, in their order; its `outputs.data` is a float32 array.
        """
        params = PoolingParams(
            task=pooling_task,
            dimensions=dimensions,
            use_activation=use_activation,
            truncate_prompt_tokens=truncate_prompt_tokens,
        )
        named = [_named(prompt, prompt_name) for prompt in _listed(prompts)]
        return self._run_pooled(named, params, use_tqdm, on_error)

    def embed(
        self,
        prompts: Any,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """Embed prompts: `outputs.embedding` is one vector for each.

        Args:
            prompts: as for `encode`.
            dimensions: length of the vectors: the first entries, before they are normalised.
            normalize: to length one; None for as the checkpoint says, else yes.
            prompt_name: of a text that the checkpoint states (`query`, `passage`, ...), to put before each prompt's;
                None for its default, if any.
            truncate_prompt_tokens: keep this many first tokens; -1 for as many as fit.
            use_tqdm, on_error: as for `generate`.
        """
        params = PoolingParams(
            task="embed",
            dimensions=dimensions,
            use_activation=normalize,
            truncate_prompt_tokens=truncate_prompt_tokens,
        )
        named = [_named(prompt, prompt_name) for prompt in _listed(prompts)]
        pooled = self._run_pooled(named, params, use_tqdm, on_error)
        return [_made(output, lambda data: EmbeddingOutput(data.tolist())) for output in pooled]

    def classify(
        self,
        prompts: Any,
        *,
        use_activation: bool | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """Classify prompts: `outputs.probs` has a number per label.

        Args:
            prompts: as for `encode`.
            use_activation: False for logits.
            truncate_prompt_tokens: keep this many first tokens; -1 for as many as fit.
            use_tqdm, on_error: as for `generate`.
        """
        params = PoolingParams(
            task="classify", use_activation=use_activation, truncate_prompt_tokens=truncate_prompt_tokens
        )
        pooled = self._run_pooled(_listed(prompts), params, use_tqdm, on_error)
        return [_made(output, lambda data: ClassificationOutput(data.tolist())) for output in pooled]

    def reward(
        self,
        prompts: Any,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[_Pooled]:
        """Reward prompts: `outputs.data` is `[tokens, labels]`, of steps alone for a process reward model."""
        params = PoolingParams(task="reward", truncate_prompt_tokens=truncate_prompt_tokens)
        return self._run_pooled(_listed(prompts), params, use_tqdm, on_error)

    def score(
        self,
        queries: Any,
        documents: Any,
        *,
        late_interaction: bool | None = None,
        template: str | None = None,
        use_activation: bool | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Bar = True,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """Score pairs: `outputs.score` says how well a document fits a query.

        A model with `convert="classify"` and one label reads both together, as one prompt; one with `convert="embed"`
        embeds them apart and compares the vectors.

        Args:
            queries, documents: one or a list each, in any form of a prompt, items included; with text, and no
                conversations, where both are read together. One query is scored with each document; as many queries
                as documents go in pairs.
            late_interaction: compare the embeddings of all tokens (MaxSim), not those of the prompts; None for what the
                model has, which is MaxSim for a ColBERT model alone.
            template: where query and document stand in the prompt that is read together, `"{query}{document}"` if
                None; encoder-only models then get them as a pair, as their tokenizer joins it.
            use_activation: False for logits, of a model that reads both together.
            truncate_prompt_tokens: of each prompt; see `PoolingParams`.
            use_tqdm, on_error: as for `generate`.

        Returns:
            One output per pair. For a pair that was embedded apart, `prompt_token_ids` are both prompts' together.
        """
        queries, documents = _listed(queries), _listed(documents)
        compares = compares_tokens(self._engine.tasks)
        if compares:
            queries, documents = [_on(QUERY, one) for one in queries], [_on(DOCUMENT, one) for one in documents]
        pairs = _pairs(queries, documents)
        if "score" in self._engine.use.tasks:
            if late_interaction:
                raise InvalidParameterError(
                    "late_interaction compares embeddings, and this model reads both together; leave it out, or load "
                    "the model with convert='embed'",
                    param="late_interaction",
                )
            params = PoolingParams(
                task="score", use_activation=use_activation, truncate_prompt_tokens=truncate_prompt_tokens
            )
            if template is None and self._engine.reads_pairs:
                joined = [text_pair(query, document) for query, document in pairs]
            else:
                joined = [join_pair(query, document, template or "{query}{document}") for query, document in pairs]
            pooled = self._run_pooled(joined, params, use_tqdm, on_error)
            return [_made(output, lambda data: ScoringOutput(float(data[0]))) for output in pooled]
        if use_activation is not None:
            raise InvalidParameterError(
                "use_activation is for models that read both together; leave it out, or load the model with "
                "convert='classify'",
                param="use_activation",
            )
        by_tokens = compares if late_interaction is None else late_interaction
        task: PoolingTask = "token_embed" if by_tokens else "embed"
        params = PoolingParams(task=task, truncate_prompt_tokens=truncate_prompt_tokens)
        return self._compared(pairs, params, use_tqdm, on_error)

    def _compared(
        self, pairs: list[tuple[Any, Any]], params: PoolingParams, use_tqdm: Bar, on_error: OnError
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """Embed each different prompt once, and compare the two of every pair."""
        from corellm_pooling.scoring import cosine, max_sim

        distinct = {id(prompt): prompt for pair in pairs for prompt in pair}
        pooled = self._run_pooled(list(distinct.values()), params, use_tqdm, on_error)
        found = dict(zip(distinct, pooled, strict=True))
        compare = cosine if params.task == "embed" else max_sim
        return [_compared(found[id(query)], found[id(document)], compare) for query, document in pairs]

    def _run_pooled(
        self, prompts: Sequence[Any], params: PoolingParams, use_tqdm: Bar, on_error: OnError
    ) -> list[_Pooled]:
        """Run prompts through the model.

        Raises:
            InvalidParameterError: the model was not loaded for the task.
        """
        if "generate" in self._engine.tasks:
            raise InvalidParameterError(
                f"the model was loaded to generate text, which has no task {params.task!r}; {WAYS[params.task]}",
                param="task",
            )
        self._engine.own_params(params)  # before any prompt is prepared
        inputs = self._engine.input_processor
        chat = partial(inputs.process_chat, add_generation_prompt=False)
        prepare = [partial(chat if is_conversation(prompt) else inputs.process, prompt) for prompt in prompts]
        return self._llm.run_prepared(prepare, [params] * len(prompts), use_tqdm, on_error)


def _listed(prompts: Any) -> list[Any]:
    """The list of prompts that a call was given: as one prompt, or as any iterable of prompts."""
    return [prompts] if is_conversation(prompts) else split_prompts(prompts)


def _named(prompt: Any, name: str | None) -> Any:
    """Return the prompt with the name of the text to put before it."""
    if name is None:
        return prompt
    fields = {"prompt": prompt} if isinstance(prompt, str) else prompt
    if not isinstance(fields, Mapping) or "prompt" not in fields:
        raise PromptError(f"prompt_name puts a text before another one, and the prompt has none: {prompt!r:.100}")
    return {**fields, "prompt_name": name}


def _on(side: str, prompt: Any) -> Any:
    """Return a prompt as a query or a document of a ColBERT model; tokens and conversations stay as they are.

    Raises:
        PromptError: it has the name of the other side.
    """
    is_text = isinstance(prompt, str) or (isinstance(prompt, Mapping) and "prompt" in prompt)
    given = prompt.get("prompt_name") if isinstance(prompt, Mapping) else None
    if given not in (None, side):
        raise PromptError(f"prompt_name {given!r:.100}: the text stands where a {side} does", param="prompt_name")
    return _named(prompt, side) if is_text else prompt


def _made(output: _Pooled, make: Callable[[Any], _Made]) -> PoolingRequestOutput[_Made]:
    """Return the output with what is made of its data."""
    made = None if output.outputs is None else make(output.outputs.data)
    return replace(output, outputs=made)  # type: ignore[arg-type, return-value]


def _compared(
    query: _Pooled, document: _Pooled, compare: Callable[[Any, Any], float]
) -> PoolingRequestOutput[ScoringOutput]:
    """Return the score of two prompts that were embedded apart."""
    both = None if query.outputs is None or document.outputs is None else (query.outputs.data, document.outputs.data)
    return PoolingRequestOutput(
        document.request_id,
        None if both is None else ScoringOutput(compare(*both)),
        query.prompt_token_ids + document.prompt_token_ids,
        query.num_cached_tokens + document.num_cached_tokens,
        metrics=document.metrics,
        error=query.error or document.error,
    )


def _pairs(queries: list[Any], documents: list[Any]) -> list[tuple[Any, Any]]:
    """Return the pairs to score.

    Raises:
        InvalidParameterError: there is none, or the numbers do not match.
    """
    if not queries or not documents:
        raise InvalidParameterError("score needs at least one query and one document", param="documents")
    if len(queries) not in (1, len(documents)):
        raise InvalidParameterError(
            f"{len(queries)} queries for {len(documents)} documents; give one query for all documents, or one each",
            param="queries",
        )
    return paired(queries, documents)
