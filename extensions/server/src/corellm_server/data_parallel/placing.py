"""Requests on their way to several engines: which one each goes to, and what waits for one.

A request that an engine had when it ended is a suspect: it has an engine to itself, so that it can take no other
request with it, and that engine's end says which request was the reason. Knows engines by what they have to do; knows
no processes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from corellm.errors import CorellmError, EngineDeadError, EngineLostError
from corellm_server.data_parallel.sending import Request, SendingLink
from corellm_server.routing import choose, key_of
from corellm_server.suspects import Suspects, print_of

SILENT_SECONDS = 10.0
"""An engine without a sign of life for so long gets no new requests while there are others."""


def is_silent(link: SendingLink) -> bool:
    """Whether an engine has not given a sign of life for long: others are asked in its place."""
    return link.seconds_silent >= SILENT_SECONDS


class Placing:
    """Gives requests to engines, in any thread; none waits in a call.

    Args:
        links: the engines that serve, by number, as they are now.
        awaits_engines: whether further ones are being started.
        refuse: gets each request that no engine is to have, and why.
    """

    def __init__(
        self,
        links: Mapping[int, SendingLink],
        awaits_engines: Callable[[], bool],
        refuse: Callable[[Request, CorellmError], None],
    ) -> None:
        self._links, self._awaits_engines, self._refuse = links, awaits_engines, refuse
        self._suspects = Suspects()
        self._prints: dict[str, bytes] = {}
        """What tells the requests in flight from others, by their ids."""
        self._left: dict[str, bytes] = {}
        """The same of those that no one reads any more, until the engine that has them says that they have ended."""
        self._ordinary: deque[Request] = deque()
        """Wait while each engine has as many as it takes, or is kept for a suspect."""
        self._suspected: deque[Request] = deque()
        """Wait for an engine without other requests, one after the other."""
        self._to_abort: set[str] = set()
        """Requests that the engine that has them, or gets them, is to abort."""
        self._kept: SendingLink | None = None
        """Gets no other requests than the next suspect."""
        self._alone: str | None = None
        """The suspect that it has."""
        self._changing = threading.Lock()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for an engine."""
        return len(self._ordinary) + len(self._suspected)

    def add(self, request: Request) -> None:
        """Give a new request to the engine that should have it, at once or later.

        Raises:
            PromptError: it ends engines.
            EngineLostError: no engine serves now.
        """
        one = print_of(request.prompt, request.params)
        self._suspects.check(one)
        if not self._links:
            raise _lost()
        self._prints[request.request_id] = one
        self._put(request)

    def add_again(self, request: Request) -> None:
        """Give a request to an engine, as the one that should have had it has ended; unless the request has, too."""
        self._put(request)

    def finish(self, request_id: str) -> None:
        """Forget a request that an engine finished: it is no suspect, unless it was aborted before it could end one."""
        with self._changing:
            is_whole = request_id in self._prints and request_id not in self._to_abort
            one = self._forget(request_id)
        if one is not None and is_whole:
            self._suspects.clear(one)
        self.place()

    def forget(self, request_id: str) -> None:
        """Forget a request that no engine has, nor gets."""
        with self._changing:
            self._forget(request_id)
        self.place()

    def drop(self, request_id: str) -> None:
        """Give a request that no one reads any more to no engine; the one that has it may still end with it."""
        with self._changing:
            waiting = [(queue, one) for queue in (self._ordinary, self._suspected) for one in queue]
            for queue, request in waiting:
                if request.request_id == request_id:
                    queue.remove(request)
                    self._forget(request_id)
            if (one := self._prints.pop(request_id, None)) is not None:
                self._left[request_id] = one
        self.place()

    def abort(self, request_id: str) -> None:
        """Have a request ended by the engine that has it, or gets it."""
        with self._changing:
            if request_id in self._prints:
                self._to_abort.add(request_id)

    def note_end(self, request_ids: Iterable[str]) -> None:
        """Note the requests that an engine had when it ended; it is none of `links` any more."""
        with self._changing:
            found = [self._forget(request_id) for request_id in request_ids]
        prints = {one for one in found if one is not None}
        self._suspects.note(prints, is_alone=len(prints) == 1)
        with self._changing:  # equal ones wait, too
            for request in [one for one in self._ordinary if self._prints.get(one.request_id) in prints]:
                self._ordinary.remove(request)
                self._suspected.append(request)
        self.place()

    def place(self) -> None:
        """Give requests that wait to engines that take them now."""
        with self._changing:
            refused = list(self._place()) if self.num_waiting or self._kept is not None else ()
            for request, _ in refused:
                self._forget(request.request_id)
        for request, error in refused:
            self._refuse(request, error)

    def _put(self, request: Request) -> None:
        with self._changing:
            self._free(request.request_id)
            one = self._prints.get(request.request_id)
            if one is None:
                self._forget(request.request_id)  # ended meanwhile
            else:
                (self._suspected if one in self._suspects else self._ordinary).append(request)
        self.place()

    def _forget(self, request_id: str) -> bytes | None:
        """Forget a request, and let others have its engine; returns what tells it from others."""
        self._to_abort.discard(request_id)
        self._free(request_id)
        return self._prints.pop(request_id, None) or self._left.pop(request_id, None)

    def _free(self, request_id: str) -> None:
        """Let others have the engine of a suspect that has ended, or for which it was kept."""
        if request_id == self._alone:
            self._kept = self._alone = None

    def _place(self) -> Iterable[tuple[Request, CorellmError]]:
        """Place what can be; yields what no engine is to have, and why."""
        links = dict(self._links)
        if not links and not self._awaits_engines():
            lost = [*self._ordinary, *self._suspected]
            self._ordinary.clear()
            self._suspected.clear()
            yield from ((request, _lost()) for request in lost)
        if self._kept not in links.values():
            self._kept = self._alone = None
        while self._suspected and (reason := self._reason(self._suspected[0])) is not None:
            yield self._suspected.popleft(), reason
        if not self._suspected and self._alone is None:
            self._kept = None
        while self._ordinary and self._give(self._ordinary[0], links):
            self._ordinary.popleft()
        if self._suspected and self._alone is None and self._give_alone(self._suspected[0], links):
            self._suspected.popleft()

    def _reason(self, request: Request) -> CorellmError | None:
        """Why a suspect is refused; another one of the same prompt may have ended an engine meanwhile."""
        try:
            self._suspects.check(self._prints.get(request.request_id, b""))
        except CorellmError as error:
            return error
        return None

    def _give(self, request: Request, links: dict[int, SendingLink]) -> bool:
        """Give a request to the engine of its key; returns False if none takes it now."""
        while True:
            lively = {number: link for number, link in links.items() if not is_silent(link)} or links
            free = {number: link for number, link in lively.items() if link is not self._kept and not link.is_full}
            loads = {number: link.num_requests for number, link in free.items()}
            if not loads:
                return False
            number = choose(key_of(request.prompt), loads)
            if self._send(request, links[number]):
                return True
            del links[number]

    def _give_alone(self, request: Request, links: dict[int, SendingLink]) -> bool:
        """Give a suspect to an engine that has no other request; until there is one, an engine gets no others.

        The last of several is for other requests, while further ones are being started.
        """
        serving = () if len(links) == 1 and self._awaits_engines() else links.values()
        usable = (link for link in serving if not is_silent(link))
        kept = min(usable, key=lambda link: (link.num_requests, link is not self._kept), default=None)
        self._kept = kept
        if kept is None or kept.num_requests:
            return False
        if not self._send(request, kept):
            self._kept = None
            return False
        self._alone = request.request_id
        return True

    def _send(self, request: Request, link: SendingLink) -> bool:
        """Send a request to an engine; returns False if that has just ended."""
        try:
            link.add(*request)
        except EngineDeadError:
            return False
        if request.request_id in self._to_abort:
            link.abort_request(request.request_id, silently=False)
        return True


def _lost() -> EngineLostError:
    return EngineLostError("no engine serves now, and they are started again; send the request again")
