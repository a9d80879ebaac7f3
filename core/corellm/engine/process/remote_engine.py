"""An engine in another process, with what `AsyncLLM` uses of an `LLMEngine`.

Prompts are prepared in this process, which loads no weights. Knows requests; the process and the messages are the
link's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

from corellm.config import EngineConfig
from corellm.engine.process import messages
from corellm.engine.process.codec import RequestCodec
from corellm.engine.process.front_end import open_front_end, refuse_early
from corellm.engine.process.link import EngineLink, Link
from corellm.errors import ConfigError
from corellm.frontend.input_processor import ProcessedPrompt
from corellm.loading.locating import locate
from corellm.sampling_params import SamplingParams
from corellm.system.process import collector_paused, set_up_threads


class RemoteEngine:
    """Starts a process that loads the model, and prepares prompts for it.

    Args:
        config: of the engine; plain data, as it goes to another process.
        start: starts the process, by the engine's arguments.

    Raises:
        ConfigError, CheckpointError, PluginError: the model cannot be served.
        EngineDeadError: the process ended while it loaded the model.
    """

    def __init__(self, config: EngineConfig, start: Callable[[dict[str, Any]], Link] = EngineLink) -> None:
        engine_args = _plain_arguments(config)
        with collector_paused():
            located = locate(config.model)  # refuses before a process is started, as the next line does
            refuse_early(config, located)
            self._codec = located.use.codec or RequestCodec()
            set_up_threads()
            self.link = start(engine_args)
            try:
                self._front_end, self.sizes = open_front_end(config, located, self.link.wait_until_ready)
            except BaseException:
                self.link.close()
                raise
        self.context, self.input_processor = self._front_end.context, self._front_end.input_processor
        self.tasks, self.reads_pairs = self.sizes.tasks, self.sizes.reads_pairs
        self.eos_token_ids = self.sizes.eos_token_ids
        self.fetching_threads = config.fetching.fetching_threads
        self.trace = None
        """Traces are the other process's."""
        self.use = located.use
        self._default_params = located.sampling

    @property
    def num_steps(self) -> int:
        """Steps that the engine finished."""
        return self.link.num_steps

    def get_default_sampling_params(self) -> SamplingParams:
        """As `LLMEngine.get_default_sampling_params`."""
        return self._default_params.clone()

    def own_params(self, given: Any) -> Any:
        """As `LLMEngine.own_params`; what the loaded model alone can refuse comes as an output."""
        return self.use.own_params(given, self._default_params, self.tasks)

    def has_unfinished_requests(self) -> bool:
        """False: no step is to be made in this process."""
        return False

    def add_prepared(self, request_id: str, prompt: ProcessedPrompt, params: Any, *, arrival_time: float) -> None:
        """As `LLMEngine.add_prepared`; what the engine refuses comes as an output.

        Raises:
            RequestError: the request is wrong; nothing was sent.
            EngineDeadError: the process ended.
        """
        prompt, params = self.use.ready(prompt, params, self.sizes.max_total_tokens, self.input_processor)
        self.link.add(request_id, prompt, params, self._codec.in_flight(prompt, params), arrival_time)

    def abort_request(self, request_id: str, *, silently: bool = False) -> None:
        """As `LLMEngine.abort_request`; of a process that ended, there is nothing to abort."""
        self.link.abort_request(request_id, silently=silently)

    def call(self, future: Future[Any], function: str, arguments: Sequence[Any]) -> None:
        """Have the engine's process call a function between two steps; the future gets the result.

        Raises:
            EngineDeadError: the process ended.
        """
        self.link.call(future, function, arguments)

    def shutdown(self) -> None:
        """End the process after its step in flight, and free everything."""
        self.end()
        self.link.close()
        self._front_end.closing.close()

    def end(self) -> None:
        """End the process after its step in flight; calls that wait for it fail. One that hangs is killed soon."""
        self.link.end()


def _plain_arguments(config: EngineConfig) -> dict[str, Any]:
    """The configuration as keyword arguments of `EngineConfig.from_kwargs`.

    Raises:
        ConfigError: an argument is not plain data.
    """
    rooms = (config.model, config.cache, config.scheduler, config.multimodal)
    arguments = {f.name: getattr(room, f.name) for room in rooms for f in fields(room)}
    for name, value in arguments.items():
        try:
            messages.encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"{name}={value!r:.100} cannot be sent to the engine's process; give numbers, text, lists and dicts"
            ) from error
    return arguments
