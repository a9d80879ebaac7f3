"""What runs beside the decoder in a step. The model runner calls its parts; it knows none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corellm.engine.metrics import Metric
    from corellm.errors import CorellmError
    from corellm.scheduling.batch import ScheduledBatch, SequenceChunk
    from corellm.worker.input_batch import FlatBatch
    from corellm.worker.sequence_state import SequenceState


class StepPart:
    """Does nothing; the base of parts. Methods are in the order of a step."""

    uncapturable = ""
    """Why decode steps cannot be captured; empty where `lay_out` is all that the part does when one is replayed."""

    most_drafts = 0
    """How many drafts of a sequence `propose` returns at most: memory is planned for as many more rows of logits."""
    rests = False
    """Whether `propose` will hardly return any for now. Only then may a step be launched before the tokens of the last
    one are known; drafts that it returns meanwhile are lost."""
    block_bytes = 0
    """Bytes that `allocate` takes for each block of the KV cache, which is so much smaller."""
    reads_all_tokens = False
    """Whether it reads what the decoder returns for all tokens of a step: then the decoder leaves out none."""
    irreversible = ""
    """Why a token that a step has computed cannot be taken back, as drafts that were wrong are; empty if it can."""

    def begin(self, batch: ScheduledBatch) -> Mapping[str, CorellmError]:
        """Take what the scheduler says, after blocks were swapped out and before others are swapped in.

        All requests wait for it. Sequences without an id, of steps at load, come to `lay_out` and `running` without
        having been `new`.

        Returns:
            Errors of requests that the part cannot run, by id: those of this step's chunks fail, and it goes on without
            them; others are passed over, and can be returned again. An error that is raised ends the engine.
        """
        return {}

    def lay_out(self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]) -> FlatBatch:
        """Return a step that is still on the host, with the part's own.

        Of the methods around the decoder this alone runs when a captured step is replayed (`capturing` and `attention`
        ran at capture). What the part's additions to linear layers read there (`corellm.modelling.linear_additions`)
        must be at the address that it had at capture.
        """
        return batch

    def running(
        self, batch: FlatBatch, chunks: Sequence[SequenceChunk], states: Sequence[SequenceState]
    ) -> AbstractContextManager[Mapping[str, Any]]:
        """Return what surrounds the decoder, and yields further arguments of it."""
        return nullcontext({})

    def reserve_captured(self, num_rows: int) -> None:
        """Take the memory in which captured steps of up to so many rows find what `lay_out` writes of sequences.

        `lay_out` fills it to the end: behind the step's rows is padding. Called before steps are captured.
        """

    def capturing(self, batch: FlatBatch) -> AbstractContextManager[Mapping[str, Any]]:
        """Return what surrounds the decoder in place of `running` while a step of single tokens is captured."""
        return nullcontext({})

    def encoding(self, variant: str) -> AbstractContextManager[object]:
        """Return what surrounds encoders on items of one variant (`PromptKey.variant`), before the decoder runs."""
        return nullcontext()

    def is_replayable(self, states: Sequence[SequenceState]) -> bool:
        """Whether a captured step, once `lay_out` has run, does all that the part does for these sequences."""
        return True

    def scoring(self, states: Sequence[SequenceState]) -> AbstractContextManager[object]:
        """Return what surrounds the output layer in a step that is not captured.

        Args:
            states: whose hidden states it gets, one for each row; or one for all rows.
        """
        return nullcontext()

    def attention(self, batch: FlatBatch) -> Mapping[str, Any]:
        """Return fields of the step's `PagedAttention`."""
        return {}

    def commit(self) -> None:
        """Take over what the last step made: it has run. Until then it may run again."""

    def propose(self, sampled: Mapping[str, Sequence[int]]) -> Mapping[str, list[int]]:
        """Return drafts of what comes after the tokens that a step sampled, both by request: the next step checks them.

        It is called before `sampled` is appended to `NewSequence.output_token_ids`; all but the last of a request's are
        drafts that were right. What is sampled does not depend on drafts: each takes a row of the next step, and saves
        a step if it is right. An error turns the part's drafts off.
        """
        return {}

    def metrics(self) -> Sequence[Metric]:
        """Return what is to be shown of the part, by names of `corellm.engine.metrics.DESCRIPTIONS`."""
        return ()

    def forget(self) -> None:
        """Drop all sequences, after a step was interrupted, and what was computed of the model's weights.

        Before the next step, the model may be given other weights.
        """

    def profile(self) -> None:
        """Run the largest step of the part's own, so that its memory is measured."""

    def allocate(self, num_blocks: int) -> None:
        """Take memory for a cache of the part's own, beside a KV cache of so many blocks; called once, at load."""
