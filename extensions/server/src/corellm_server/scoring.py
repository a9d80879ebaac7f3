"""Scores queries with documents: one prompt per pair where the model reads both together, else compared embeddings.

A side is text, which is read as it is, or parts with items, whose text is text. Knows prompts and vectors; knows no
endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from corellm.multimodal.chat.reading import ReadMessages
from corellm.serving import ProcessedPrompt
from corellm_pooling.late_interaction import DOCUMENT, QUERY
from corellm_pooling.pairs import PLACES, join_pair, paired, text_pair
from corellm_pooling.scoring import cosine, max_sim
from corellm_pooling.settings import compares_tokens
from corellm_server.conversation import CheckedMessages, check_messages
from corellm_server.errors import ApiError
from corellm_server.exchange import Exchange
from corellm_server.pooled import count_inputs, pool_all
from corellm_server.requests.pooling import PairsFields
from corellm_server.requests.pooling import Side as GivenSide
from corellm_server.responses.pooling import Pooled, data_of
from corellm_server.service import Service

_ALONE = "{{ messages[0]['content'] }}"


@dataclass(frozen=True)
class Side:
    """A query or a document."""

    where: str
    """Its place in the request."""
    checked: CheckedMessages
    """It, as one message."""
    name: str
    """`query` or `document`."""

    @property
    def text(self) -> str | None:
        """All of it, if it has no items."""
        return None if self.checked.sources else "".join(self.checked.texts)


class Scorer:
    """Scores the pairs of one request.

    Args:
        service: the model.
        exchange: the request.
        body: how to score.
    """

    def __init__(self, service: Service, exchange: Exchange, body: PairsFields) -> None:
        self._service, self._exchange, self._body = service, exchange, body
        stated = service.config.options.score_template
        self._joins_texts = stated is None and service.client.reads_pairs
        """Whether the tokenizer joins two texts."""
        self._template = stated or "{query}{document}"
        self._compares_tokens = compares_tokens(service.client.tasks)
        """Whether a query and a document are read differently, and compared by their tokens' vectors."""

    async def score(
        self, queries: tuple[str, Sequence[GivenSide]], documents: tuple[str, Sequence[GivenSide]]
    ) -> tuple[list[float], list[Pooled]]:
        """The score of each document, and the outputs of all prompts that were run for it.

        Args:
            queries: the field's name; one query for all documents, or one for each.
            documents: the field's name, and the documents.

        Raises:
            ApiError, CorellmError: what is wrong.
        """
        for name, given in (queries, documents):
            count_inputs(self._service, self._exchange, name, len(given))
        if len(queries[1]) not in (1, len(documents[1])):
            told = f"{queries[0]} has {len(queries[1])} entries and {documents[0]} {len(documents[1])}"
            raise ApiError(400, f"{told}; give one for all documents, or one for each", param=queries[0])
        sides = [self._checked(*given, side) for given, side in ((queries, QUERY), (documents, DOCUMENT))]
        await self._load([side for checked in sides for side in checked])
        if "score" in self._service.client.tasks:
            return await self._together(*sides)
        return await self._apart(*sides)

    def _checked(self, name: str, given: Sequence[GivenSide], side: str) -> list[Side]:
        limits, item_limits = self._service.config.limits, self._service.client.input_processor.mm_processor.limits
        sides = []
        for index, one in enumerate(given):
            where, content = f"{name}[{index}]", [one]
            if isinstance(one, dict) and "content" in one:
                content = one["content"]
                if len(one) > 1:
                    raise ApiError(400, f"{where}: an object with content has nothing else", param=where)
            message = {"role": "user", "content": content}
            sides.append(Side(where, check_messages([message], limits, item_limits, field=name, numbers=[index]), side))
        return sides

    async def _load(self, sides: Sequence[Side]) -> None:
        """Load the items of all sides."""
        sources = [source for side in sides for source in side.checked.sources]
        limit = self._service.config.limits.max_items
        if len(sources) > limit:
            where = sources[limit].where
            raise ApiError(
                400, f"{where}: this is item {limit + 1} of the request, and {limit} are allowed", param=where
            )
        await self._service.preparation.load(sources)

    async def _together(self, queries: list[Side], documents: list[Side]) -> tuple[list[float], list[Pooled]]:
        """Scores by a model that reads both of a pair."""
        if self._body.late_interaction:
            raise ApiError(
                400, "late_interaction compares embeddings, and this model reads both together; leave it out",
                param="late_interaction",
            )  # fmt: skip
        params = self._body.params("score", use_activation=self._body.use_activation)
        pairs = paired(queries, documents)
        self._check_size(pairs)
        inputs = [(document.where, partial(self._pair, query, document)) for query, document in pairs]
        outputs = await pool_all(self._service, self._exchange, inputs, params)
        return [float(data_of(output)[0]) for output in outputs], outputs

    def _check_size(self, pairs: Sequence[tuple[Side, Side]]) -> None:
        """Check the text of all pairs: a query is read once for each of its documents."""
        num_characters = sum(side.checked.num_characters for pair in pairs for side in pair)
        limit = self._service.config.limits.max_body_bytes
        if num_characters > limit:
            raise ApiError(
                400,
                f"query and documents have {num_characters} characters, the query counted for each document; {limit} "
                "are allowed: send fewer documents, or a shorter query",
                param=pairs[0][0].where,
            )

    async def _apart(self, queries: list[Side], documents: list[Side]) -> tuple[list[float], list[Pooled]]:
        """Scores by comparing embeddings, each made once."""
        if self._body.use_activation is not None:
            raise ApiError(
                400, "use_activation is for models that read both together; leave it out", param="use_activation"
            )
        wanted = self._body.late_interaction
        by_tokens = self._compares_tokens if wanted is None else wanted
        params = self._body.params("token_embed" if by_tokens else "embed")
        inputs = [(side.where, partial(self._alone, side)) for side in (*queries, *documents)]
        outputs = await pool_all(self._service, self._exchange, inputs, params)
        compare = max_sim if by_tokens else cosine
        pairs = paired(outputs[: len(queries)], outputs[len(queries) :])

        def scores() -> list[float]:
            return [compare(data_of(query), data_of(document)) for query, document in pairs]

        return await self._service.preparation.in_pool(self._exchange, scores, takes_long=True), outputs

    async def _alone(self, side: Side) -> ProcessedPrompt:
        if side.text is None:
            return await self._rendered(side.where, [side], _ALONE)
        prompt = {"prompt": side.text, "prompt_name": side.name if self._compares_tokens else None}
        return await self._service.preparation.prompt(self._exchange, prompt, side.where, priority=self._body.priority)

    async def _pair(self, query: Side, document: Side) -> ProcessedPrompt:
        if query.text is not None and document.text is not None:
            if self._joins_texts:
                joined = text_pair(query.text, document.text)
            else:
                joined = join_pair(query.text, document.text, self._template)
            return await self._service.preparation.prompt(
                self._exchange, joined, document.where, priority=self._body.priority
            )
        ordered: list[Side] = []
        template = ""
        for piece in PLACES.split(self._template):  # items are in the order of messages
            if PLACES.fullmatch(piece):
                template += f"{{{{ messages[{len(ordered)}]['content'] }}}}"
                ordered.append(query if piece == "{query}" else document)
            else:
                template += f"{{{{ {json.dumps(piece)} }}}}"
        return await self._rendered(document.where, ordered, template)

    async def _rendered(self, where: str, sides: Sequence[Side], template: str) -> ProcessedPrompt:
        """A prompt of parts: their text is text, and items are where their parts are."""
        messages = ReadMessages(side.checked.messages[0] for side in sides)
        return await self._service.preparation.rendered(
            self._exchange, CheckedMessages(messages, where), template, priority=self._body.priority
        )
