"""Several engines' processes, as one link: requests go to one of them, calls to all, and one that ends comes again.

Knows processes' ends; which engine a request goes to, and what waits for one, is `placing`'s to know, and messages are
the link's.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from corellm.errors import CorellmError, EngineDeadError, EngineLostError
from corellm.serving import Delta, ProcessedPrompt, Ready, Share, to_error, to_fault
from corellm_server.data_parallel.placing import Placing, is_silent
from corellm_server.data_parallel.sending import Request, SendingLink
from corellm_server.routing import preferences
from corellm_server.watchdog import Watchdog

logger = logging.getLogger(__name__)

_STEADY_SECONDS = 60.0
"""An engine that lived so long is started again at once; each other time takes twice as long as the one before, and as
long as this at most."""
_LOOK_SECONDS = 0.5


def pause(lived: float, waited: float) -> float:
    """Return for how many seconds an engine that ended is not started again.

    Args:
        lived: seconds that it served.
        waited: seconds before it was started.
    """
    return 0.0 if lived >= _STEADY_SECONDS else min(_STEADY_SECONDS, max(1.0, 2 * waited))


class EngineGroup:
    """Starts several engines, all with the same model.

    Args:
        engine_args: arguments of `EngineConfig.from_kwargs`; plain data.
        shares: each engine's part of the machine.
        devices: of each.
        hang_timeout: seconds of silence, with work, after which an engine is ended; 0 for none.
        gives_up: whether the group ends where no engine is left, and none can be started.
    """

    def __init__(
        self,
        engine_args: Mapping[str, Any],
        shares: Sequence[Share],
        devices: Sequence[str],
        hang_timeout: float,
        *,
        gives_up: bool = True,
    ) -> None:
        self._engine_args, self._hang_timeout, self._gives_up = engine_args, hang_timeout, gives_up
        self._parts = {share.number: (share, device) for share, device in zip(shares, devices, strict=True)}
        self.num_changes = 0
        """How often the engines were put to sleep, or given other weights. After that none is started again: it would
        have what the others have not."""
        self._repeated: dict[str, tuple[str, Sequence[Any]]] = {}
        """Functions that an engine which is started again calls first, and their arguments, by what they are for."""
        self._started_again: set[int] = set()
        self._links: dict[int, SendingLink] = {}
        """Engines that serve, by number."""
        self._failed: set[int] = set()
        """Engines that ended and could not be started when that was last tried."""
        self._placing = Placing(self._links, self._awaits_engines, self._refuse)
        self._closing = threading.Event()
        self._changing = threading.Lock()
        self._begun: set[SendingLink] = set()
        """All whose process may run, those that still load included."""
        self._steps_of_ended = 0
        try:
            for number in self._parts:
                self._links[number] = self._begin(number)
        except BaseException:
            self.close()
            raise

    # --- as a link --------------------------------------------------------------------------------------------------

    def wait_until_ready(self) -> Ready:
        """Return what the engines have in common, and the sum of what they take at once.

        Raises:
            ConfigError, CheckpointError, PluginError: the model cannot be served.
            EngineDeadError: a process ended while it loaded the model.
        """
        all_sizes = [link.wait_until_ready() for link in self._links.values()]
        return msgspec.structs.replace(
            all_sizes[0],
            max_total_tokens=min(sizes.max_total_tokens for sizes in all_sizes),
            max_num_seqs=sum(sizes.max_num_seqs for sizes in all_sizes),
            num_kv_blocks=sum(sizes.num_kv_blocks for sizes in all_sizes),
        )

    @property
    def pid(self) -> int:
        """Id of the first engine's process."""
        return next(iter(self.pids.values()))

    @property
    def pids(self) -> dict[int, int]:
        """Ids of the processes of engines that serve, by the engine's number."""
        return {number: link.pid for number, link in sorted(self._links.copy().items())}

    @property
    def seconds_silent(self) -> float:
        """Seconds since the last sign of life of the engine that gave the newest one; infinite where none serves."""
        return min((link.seconds_silent for link in self._links.copy().values()), default=math.inf)

    @property
    def num_steps(self) -> int:
        """Steps that the engines finished."""
        return self._steps_of_ended + sum(link.num_steps for link in self._links.copy().values())

    def add(self, request_id: str, prompt: ProcessedPrompt, params: Any, in_flight: Any, arrival_time: float) -> None:
        """Have a request sent to the engine that should have it, or to the next one if that has just ended.

        It waits while no engine takes it, without keeping the caller waiting; also for one that is started again.

        Raises:
            RequestError: the request is wrong; nothing was sent.
            EngineLostError: no engine serves now.
            EngineDeadError: the group ends.
        """
        if self._closing.is_set():
            raise EngineDeadError("the server ends")
        self._placing.add(Request(request_id, prompt, params, in_flight, arrival_time))

    def _awaits_engines(self) -> bool:
        """Whether engines that ended are being started, and may serve soon."""
        return len(self._links) + len(self._failed) < len(self._parts)

    def _refuse(self, request: Request, error: Exception) -> None:
        """Deliver the last output of a request that no engine got."""
        if not isinstance(error, CorellmError):
            logger.error("sending a request failed", exc_info=error)
        fault = to_fault(error)
        output = request.in_flight.output(Delta(request.request_id, [], True, fault=fault))
        output.error = error if isinstance(error, CorellmError) else to_error(fault)
        self._placing.forget(request.request_id)
        self._deliver([output])

    def abort_request(self, request_id: str, *, silently: bool) -> None:
        """End a request now, if there is one of this id."""
        forget = self._placing.drop if silently else self._placing.abort
        forget(request_id)
        for link in self._links.copy().values():
            link.abort_request(request_id, silently=silently)

    def call(
        self,
        future: Future[Any],
        function: str,
        arguments: Sequence[Any],
        *,
        skips_silent: bool = False,
        key: bytes | None = None,
    ) -> None:
        """Have the engines call a function between two steps; the future gets their results by engine, or an error.

        Args:
            future: of the caller.
            function, arguments: as for an `EngineLink`.
            skips_silent: do not ask engines that give no sign of life.
            key: of a prompt, whose engine alone is asked; None for all.
        """
        if not future.set_running_or_notify_cancel():
            return
        links = self._links.copy()
        asked = {n: link for n, link in links.items() if not skips_silent or not is_silent(link)}
        if key is not None and links:
            number = preferences(key, [n for n, link in links.items() if not is_silent(link)] or links)[0]
            asked = {number: links[number]}
        results: dict[int, Future[Any]] = {number: Future() for number in asked}
        left = set(results)

        def note(number: int, _: Future[Any]) -> None:
            with self._changing:
                left.discard(number)
                if left:
                    return
            errors = {number: error for number, result in results.items() if (error := result.exception()) is not None}
            if skips_silent:
                errors = {number: error for number, error in errors.items() if not isinstance(error, EngineDeadError)}
            with contextlib.suppress(InvalidStateError):  # failed meanwhile
                if errors:
                    future.set_exception(self._told(*next(iter(errors.items()))))
                else:
                    found = {number: result.result() for number, result in results.items() if not result.exception()}
                    future.set_result(found)

        if not links and not skips_silent:
            future.set_exception(EngineLostError("no engine serves now, and they are started again; ask again"))
        elif not asked:
            future.set_result({})
        for number, result in results.items():
            result.add_done_callback(partial(note, number))
            asked[number].call(result, function, arguments)

    def repeat(self, name: str, function: str, arguments: Sequence[Any]) -> None:
        """Have engines that are started again call a function; those that serve already call it now, too.

        The calls that it repeats may have been made while they were being started.

        Args:
            name: what it is for; of several of one name the last one counts.
            function, arguments: as for an `EngineLink`.
        """
        with self._changing:
            self._repeated[name] = function, arguments
            for number in self._started_again & self._links.keys():
                self._links[number].call(Future(), function, arguments)

    def _told(self, number: int, error: BaseException) -> BaseException:
        """What a caller is told of a call that failed in an engine: that it ended is no end of the others."""
        if not isinstance(error, EngineDeadError) or self._closing.is_set():
            return error
        return EngineLostError(f"engine {number} ended during the call, and is started again; ask again")

    def start_reading(
        self, deliver: Callable[[list[Any]], None], report_end: Callable[[EngineDeadError], None]
    ) -> None:
        """Deliver outputs from now on, and at last why no engine is left."""
        self._deliver, self._report_end = deliver, report_end
        for number, link in self._links.items():
            self._read(number, link, 0.0)
        threading.Thread(target=self._look_at_all, name="corellm-hangs", daemon=True).start()

    def end(self) -> None:
        """End all engines after their steps in flight."""
        self._closing.set()
        with self._changing:
            begun = list(self._begun)
        with ThreadPoolExecutor(len(begun) or 1) as pool:
            list(pool.map(SendingLink.end, begun))

    def close(self) -> None:
        """Free everything."""
        self._closing.set()
        with self._changing:
            begun = list(self._begun)
        for link in begun:
            link.close()

    # --- engines that end -------------------------------------------------------------------------------------------

    def _begin(self, number: int) -> SendingLink:
        share, device = self._parts[number]
        with self._changing:
            if self._closing.is_set():
                raise EngineDeadError("the server ends")
            link = SendingLink({**self._engine_args, "device": device}, share, self._placing.add_again, self._refuse)
            self._begun.add(link)
            return link

    def _read(self, number: int, link: SendingLink, waited: float) -> None:
        began = time.monotonic()
        link.start_reading(
            partial(self._deliver_from, number), lambda reason: self._ended(number, link, reason, began, waited)
        )

    def _deliver_from(self, number: int, outputs: list[Any]) -> None:
        for output in outputs:
            if output.finished:
                self._placing.finish(output.request_id)
            if getattr(output, "metrics", None) is not None:
                output.metrics.replica = str(number)
        self._deliver(outputs)

    def _ended(self, number: int, link: SendingLink, reason: EngineDeadError, began: float, waited: float) -> None:
        """Fail the requests of an engine that ended, and start it again; in the thread that read from it."""
        with self._changing:
            self._links.pop(number, None)
            self._steps_of_ended += link.num_steps
            is_over = self.num_changes > 0
        told = f"engine {number} ended while it had the request; send it again"
        failed = link.fail_requests(lambda: reason if is_over else EngineLostError(told))
        self._placing.note_end(output.request_id for output in failed)
        self._deliver(failed)
        link.stop_sending()
        if self._closing.is_set():
            return
        self._forget(link)
        logger.error("engine %d: %s", number, reason)
        if is_over:
            self._report_end(reason)
        else:
            self._start_again(number, pause(time.monotonic() - began, waited))

    def _start_again(self, number: int, seconds: float) -> None:
        """Start an engine again after some seconds; twice as many each time that it does not load.

        Where none is left and none could be started the last time, the group ends, unless it never gives up.
        """
        while not self._closing.wait(seconds):
            logger.warning("engine %d is started again", number)
            link = None
            try:
                link = self._begin(number)
                link.wait_until_ready()
            except (CorellmError, OSError) as error:
                seconds = pause(0.0, seconds)
                if link is not None:
                    self._forget(link)
                if self._closing.is_set():
                    return
                with self._changing:
                    self._failed.add(number)
                    is_over = self._gives_up and len(self._failed) == len(self._parts)
                told = "engine %d cannot be started, the next try is in %g s: %s"
                logger.error(told, number, seconds, error)
                if is_over:
                    self._report_end(EngineDeadError(f"no engine is left, and none can be started: {error}"))
                    return
                continue
            with self._changing:
                is_needed = not self.num_changes and not self._closing.is_set()
                self._failed.discard(number)
                if is_needed:
                    for function, arguments in self._repeated.values():
                        link.call(Future(), function, arguments)
                    self._links[number] = link
                    self._started_again.add(number)
            if is_needed:
                self._read(number, link, seconds)
                self._placing.place()
                logger.warning("engine %d serves again", number)
            elif not self._closing.is_set():
                self._forget(link)
                self._report_end(EngineDeadError(f"engine {number} ended, and the others have been changed meanwhile"))
            return

    def _forget(self, link: SendingLink) -> None:
        with self._changing:
            self._begun.discard(link)
        link.kill()
        link.close()

    def _look_at_all(self) -> None:
        """Take what is not sent from engines that give no sign of life, and end those that go on so with work.

        They are started again like any that end.
        """
        watchdogs: dict[SendingLink, Watchdog] = {}
        while not self._closing.wait(_LOOK_SECONDS):
            links = {link: number for number, link in self._links.copy().items()}
            watchdogs = {link: watchdogs.get(link) or Watchdog(link, self._hang_timeout) for link in links}
            silent = [link for link in links if is_silent(link)]
            for link in silent if len(silent) < len(links) else ():
                link.give_back()
            self._placing.place()
            for link, watchdog in watchdogs.items():
                watchdog.look(has_work=link.num_requests > 0 or self._placing.num_waiting > 0)
                if watchdog.is_hung:
                    told = "engine %d completed no step for %g s (--engine-hang-timeout); it is ended"
                    logger.error(told, links[link], self._hang_timeout)
                    link.kill()
