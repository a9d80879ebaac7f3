"""The guesses for one sequence: it follows a place where its last tokens stood before, as long as both go on alike.

What comes is compared with what stands there, whether or not it was drafted: a sequence that does not pay is drafted no
more, at no cost but this comparison, and is again as soon as its guesses become right.
"""

from __future__ import annotations

from collections.abc import Sequence

from corellm.scheduling.batch import NewSequence
from corellm_speculative.acceptance import Acceptance
from corellm_speculative.outputs import Outputs
from corellm_speculative.settings import SHORTEST_SUFFIX, DraftSettings
from corellm_speculative.text import NONE, Place, Text


class Guesser:
    """Guesses what comes next in a sequence.

    Args:
        sequence: whose text it is, and whose outputs may be looked at.
        settings: of drafts.
        outputs: of earlier requests; None if only the own text is looked at.
        before: how often guesses were right for others.
    """

    def __init__(
        self, sequence: NewSequence, settings: DraftSettings, outputs: Outputs | None, before: Acceptance
    ) -> None:
        self.sequence, self.num_known = sequence, len(sequence.output_token_ids)
        """`num_known` are the tokens of the output that the sequence came with."""
        self._settings, self._outputs = settings, outputs
        self._acceptance = Acceptance(before)
        self._text: Text | None = None
        self._place: Place | None = None

    def add(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens; the sequence's own output does not have them yet."""
        text, place = self._own_text(), self._place
        text.extend(tokens)
        for token in tokens:
            if place is None:
                break
            if (guess := place.token) != NONE:
                self._acceptance.note(place.length, guess == token)
            place = place.behind() if guess == token else None
        self._place = place or self._find(text)

    def _own_text(self) -> Text:
        if self._text is None:
            of_suffix = (SHORTEST_SUFFIX, self._settings.suffix_decoding_max_tree_depth)
            of_ngram = (self._settings.prompt_lookup_min, self._settings.prompt_lookup_max)
            self._text = Text(*(of_ngram if self._outputs is None else of_suffix))
            self._text.extend(self.sequence.prompt_token_ids)
            self._text.extend(self.sequence.output_token_ids)
        return self._text

    def _find(self, text: Text) -> Place | None:
        found = text.find(text)
        others = None if self._outputs is None else self._outputs.of(self.sequence.cache_salt)
        elsewhere = None if others is None else others.find(text)
        if found is None or (elsewhere is not None and elsewhere.length > found.length):
            return elsewhere
        return found

    def drafts(self, least_chance: float) -> list[int]:
        """Return guesses, each of which is right with at least this chance, as far as that is known."""
        place, settings = self._place, self._settings
        if place is None:
            return []
        most, chance = settings.num_speculative_tokens, 1.0
        if self._outputs is not None:
            most = min(most, int(settings.suffix_decoding_max_spec_factor * place.length))
            least_chance = max(least_chance, settings.suffix_decoding_min_token_prob)
        drafts: list[int] = []
        for index in range(most):
            chance *= self._acceptance.chance(place.length + index)
            if chance < least_chance or (token := place.ahead(index)) == NONE:
                break
            drafts.append(token)
        return drafts
