"""Applies the logits processors of a step's sequences, and finds those that extensions registered by name.

Knows sampling states and rows; how a processor is called is in `processors`. One that fails ends its sequence alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from corellm.errors import CorellmError, InvalidParameterError, RequestFailedError
from corellm.plugin.extensions import offers_by_name
from corellm.sampling_params import LogitsProcessorParams, SamplingParams
from corellm.system.failures import failure_of
from corellm_decoding.processors import Processor, SequenceTokens

if TYPE_CHECKING:
    from torch import Tensor

    from corellm.sampling.sampling_state import SamplingState

Maker = Callable[[Mapping[str, Any]], Any]
_NUM_KNOWN = 256
"""Processors by name that are kept, so that equal requests share one, and are called together."""


class Processing:
    """The processors that requests may have, for one loaded model.

    Args:
        makers: of those that have a name.
    """

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        self._makers = makers
        self._known: dict[bytes, Processor] = {}

    @classmethod
    def found(cls, tokenizer: Any, vocab_size: int) -> Processing:
        """Return the processors that the installed extensions register.

        Raises:
            ContractError: two extensions register the same name.
        """
        offers = offers_by_name(
            "register_logits_processors", callable, "register the logits processor",
            tokenizer=tokenizer, vocab_size=vocab_size,
        )  # fmt: skip
        return cls({name: make for _, name, make in offers})

    def check(self, params: SamplingParams) -> None:
        """Check a request's processors: names, arguments, signatures.

        Raises:
            InvalidParameterError: what is wrong.
            RequestFailedError: an extension failed otherwise.
        """
        self._chain(params)

    def __call__(self, logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
        """Return the changed logits; see `corellm.sampling.processing.LogitsProcessing`."""
        work = logits.float() if logits.element_size() < 4 else logits.clone()
        rows = [row for row, state in enumerate(states) if state.processing is self]
        finite = logits[rows].amax(dim=-1).isfinite().tolist()  # the others fail for what the model gave
        rows = [row for row, is_finite in zip(rows, finite, strict=True) if is_finite]
        for row in rows:
            self._begin(states[row])
        for place in range(max((len(states[row].processors) for row in rows), default=0)):
            together: defaultdict[int, list[int]] = defaultdict(list)
            for row in rows:
                if states[row].failure is None and place < len(states[row].processors):
                    together[id(states[row].processors[place].target)].append(row)
            for some in together.values():
                self._apply(states[some[0]].processors[place], some, work, states)
        failed = [row for row in rows if states[row].failure is not None]
        work[failed] = -inf
        return work

    def _begin(self, state: SamplingState) -> None:
        """Find a sequence's processors, once."""
        if state.processors is None:
            try:
                state.processors = self._chain(state.params)
            except CorellmError as error:
                state.processors, state.failure = [], error

    def _apply(self, processor: Processor, rows: list[int], work: Tensor, states: Sequence[SamplingState]) -> None:
        """Change rows, all at once; or one by one, if that fails, for it may be one row's fault."""
        try:
            tokens = [SequenceTokens(states[row].prompt_token_ids, states[row].output_token_ids) for row in rows]
            work[rows] = processor(work[rows], tokens)
        except Exception as error:
            if len(rows) > 1:
                for row in rows:
                    self._apply(processor, [row], work, states)
                return
            states[rows[0]].fail(f"the logits processor {processor.name}", error)

    def _chain(self, params: SamplingParams) -> list[Processor]:
        return [self._made(one) for one in params.logits_processors or ()]

    def _made(self, wanted: LogitsProcessorParams) -> Processor:
        if wanted.function is not None:
            return Processor(wanted.function)
        make = self._makers.get(wanted.name)
        if make is None:
            raise InvalidParameterError(
                f"logits_processors: no installed extension registers {wanted.name!r:.100} "
                f"(there are: {', '.join(sorted(self._makers)) or 'none'})",
                param="logits_processors",
            )
        key = _key(wanted)
        if key not in self._known:
            made = self._newly_made(make, wanted)
            if len(self._known) >= _NUM_KNOWN:
                self._known.clear()
            self._known[key] = made
        return self._known[key]

    def _newly_made(self, make: Maker, wanted: LogitsProcessorParams) -> Processor:
        try:
            return Processor(make(wanted.arguments), wanted.name)
        except Exception as error:
            failure = failure_of(f"making the logits processor {wanted.name!r:.100}", error, RequestFailedError)
        raise failure


def _key(wanted: LogitsProcessorParams) -> bytes:
    """Return what tells a name with its arguments from all others.

    Raises:
        InvalidParameterError: the arguments are no plain data.
    """
    try:
        return msgspec.msgpack.encode([wanted.name, dict(wanted.arguments)])
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidParameterError(
            f"logits_processors: the arguments of {wanted.name!r:.100} must be plain data: {error}",
            param="logits_processors",
        ) from error
