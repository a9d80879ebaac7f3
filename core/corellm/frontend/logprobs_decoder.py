"""Log-probabilities with the text of each token (`decoded_token`), as it would be in the output.

Knows tokenizers and the tokens before; knows neither requests nor how log-probabilities are computed.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any

from corellm.frontend.detokenizer import IncrementalDetokenizer
from corellm.outputs import Logprob, PositionLogprobs
from corellm.scheduling.batch import TokenLogprobs


class LogprobsDecoder:
    """Adds texts to the log-probabilities that come from the worker, for one tokenizer.

    A token's text keeps its space. It is empty while its character is incomplete, and the whole character for the
    token that completes it: the texts of a sequence's tokens, joined, are the sequence's text. A special token has its
    own text, also where the output leaves it out.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._usual = cache(self._text_in_a_text)

    def decode_position(self, logprobs: TokenLogprobs, before: IncrementalDetokenizer | None) -> PositionLogprobs:
        """One position's log-probabilities, the sampled token (or the prompt's) first.

        Args:
            logprobs: from the worker.
            before: has taken in all tokens before this position, and is not changed; None for no texts.
        """
        own = logprobs.token_ids[0]
        is_usual = before is not None and not before.is_at_start and not before.holds_back
        position: PositionLogprobs = {}
        for token, logprob, rank in zip(logprobs.token_ids, logprobs.logprobs, logprobs.ranks, strict=True):
            if before is None:
                text = None
            elif token in position:
                text = position[token].decoded_token
            else:
                text = self._usual(token) if is_usual and token != own else before.preview(token)
            position[token] = Logprob(logprob, rank, text)
        return position

    def decode_prompt(
        self, logprobs: list[TokenLogprobs], known: list[int], *, detokenize: bool = True
    ) -> list[PositionLogprobs]:
        """The log-probabilities of successive prompt tokens.

        Args:
            logprobs: from the worker.
            known: the prompt's tokens before the first of them.
            detokenize: whether their texts are wanted.
        """
        if not detokenize:
            return [self.decode_position(found, None) for found in logprobs]
        before = IncrementalDetokenizer(self._tokenizer, known, skip_special_tokens=False)
        positions: list[PositionLogprobs] = []
        for found in logprobs:
            positions.append(self.decode_position(found, before))
            before.append(found.token_ids[0])
        return positions

    def _text_in_a_text(self, token_id: int) -> str:
        """A token's text after complete characters: the same for most alternatives, so it is cached."""
        return self._some_text.preview(token_id)

    @cached_property
    def _some_text(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self._tokenizer, self._tokenizer("a", add_special_tokens=False)["input_ids"])
