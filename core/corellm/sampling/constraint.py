"""What narrows a sequence's next token, such as a grammar: the interface; extensions make it.

Knows packed masks; knows neither logits nor what a definition says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

TokenMask = NDArray[np.int32]
"""Some tokens of the vocabulary, packed: `[ceil(vocab / 32)]` int32, token `t` is bit `t % 32` of word `t // 32`."""


class Constraint(Protocol):
    """What one sequence may still generate; made by an extension, owned by the sequence's `SamplingState`.

    It knows the output alone, from its first token on, not the prompt. It is called in the engine's thread, before a
    step's tokens are chosen (on a GPU, while the step runs), one row after another. An `Exception` of a method fails
    its completion alone; what is none, as a panic of a library in Rust, must be caught. After a preemption another
    object is made, and given the whole output again: it must fill the same masks.
    """

    def fill(self, mask: TokenMask) -> None:
        """Set the bits of the tokens that may come next; nothing else changes by it, and it may be called again.

        If no bit is set, the request fails: where an output may end, set those of the tokens that end it.

        Args:
            mask: see `TokenMask`; all bits are 0. Those beyond the vocabulary have no meaning.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Take in the output's next token, which was allowed. Not called for a token that ends the output."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens, at most as many as there are: after a look at drafts, right or wrong."""
        ...


@runtime_checkable
class Restarting(Constraint, Protocol):
    """A constraint that can begin again, and goes on counting what a sequence may spend in all."""

    def restart(self) -> None:
        """Forget all tokens: an error of another method left open which were taken in. The output is given again."""
        ...


class Foreseeing(Constraint, Protocol):
    """A constraint that also says what must come next; drafts are made of it."""

    def foresee(self) -> Sequence[int]:
        """Return the tokens of the text that must come next, or none: a guess, as a text may be cut in other ways."""
        ...


class MakeConstraint(Protocol):
    """A function of an extension that makes constraints of one kind.

    It may have a method `prepare()`: called once where the model runs, in a thread beside the rest of loading, to
    compute what no step should wait for. What it raises is left for the first constraint to raise.
    """

    def __call__(self, definition: str, stop_token_ids: frozenset[int] | None) -> Constraint:
        """Make the constraint of a sequence.

        Called in each process that checks the request, to refuse a wrong definition, and at the first mask of each of
        its sequences, also after a preemption. In the engine's process steps wait for it: keep what takes long to
        compute. Safe to call from several threads.

        Args:
            definition: of the request's `ConstraintParams`; when a sequence's constraint is made, one that was checked,
                here or in another process.
            stop_token_ids: the tokens that end the output. None when a request is checked: what is made is not used.
                Empty with `ignore_eos` and no stop tokens: then a constraint that has come to its end allows nothing,
                and the request fails.

        Raises:
            InvalidParameterError: the definition is wrong.
        """
        ...


def pack(token_ids: NDArray[np.int64], vocab_size: int) -> TokenMask:
    """Return a mask of these tokens."""
    tokens = np.zeros(32 * num_words(vocab_size), dtype=np.bool_)
    tokens[token_ids] = True
    return np.packbits(tokens, bitorder="little").view(np.int32)


def num_words(vocab_size: int) -> int:
    """Words of a mask."""
    return -(-vocab_size // 32)
