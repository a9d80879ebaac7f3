"""Whether a form can be held to, found out in a process that can be killed.

A schema of a hundred characters can take gigabytes and minutes to compile. Any thread may check; what was checked is
known.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

from corellm.children.child import ChildError, RefusedError
from corellm.children.pool import BusyError, ChildPool, ClosedError
from corellm.errors import InvalidParameterError, RequestFailedError
from corellm_structured.forms import form_of, wrong

_SECONDS = 4.0
"""Time limit of one check, on a machine that is busy: `worker.MAX_PROCESSOR_SECONDS` is the limit of its work."""
_PATIENCE_SECONDS = 2.0
"""The same while another check waits."""
_WAIT_SECONDS = 60.0
_NUM_KNOWN = 4096
"""Forms that are known."""


@dataclass(frozen=True)
class _Refusal:
    message: str
    param: str | None


class Checker:
    """Checks definitions, two at once; others wait."""

    def __init__(self) -> None:
        self._children = ChildPool(2, "corellm_structured.worker", patience=_PATIENCE_SECONDS)
        self._refusals: OrderedDict[bytes, _Refusal | None] = OrderedDict()
        """By a hash of the definition; None for forms that are taken."""
        self._lock = threading.Lock()

    def check(self, definition: str) -> None:
        """Return if outputs can be held to a form.

        Raises:
            InvalidParameterError: why not.
            RequestFailedError: it could not be found out.
        """
        key = blake2b(definition.encode(errors="surrogatepass"), digest_size=16).digest()
        with self._lock:
            is_known, refusal = key in self._refusals, self._refusals.get(key)
        if not is_known:
            refusal = self._found_out(definition)
        with self._lock:
            self._refusals[key] = refusal
            self._refusals.move_to_end(key)
            if len(self._refusals) > _NUM_KNOWN:
                self._refusals.popitem(last=False)
        if refusal is not None:
            raise InvalidParameterError(refusal.message, param=refusal.param)

    def _found_out(self, definition: str) -> _Refusal | None:
        """Return why a form is refused, or None.

        Raises:
            InvalidParameterError: it is no definition; or time was up or the process ended, for which the form may not
                be to blame: it may pass another time.
            RequestFailedError: as `check`.
        """
        too_large = wrong(
            form_of(definition), "it takes too long or too much memory to compile and to follow; shorten it"
        )
        try:
            with self._children.lend(_WAIT_SECONDS) as child:
                child.start()
                try:
                    told = child.call(definition, _SECONDS)
                except ChildError:
                    raise too_large from None
                except RefusedError:
                    return _Refusal(str(too_large), too_large.param)
        except (BusyError, ClosedError, ChildError, OSError) as error:
            raise RequestFailedError(f"structured_outputs: no process could check the form: {error}") from error
        return _Refusal(told["refused"], told["param"]) if "refused" in told else None
