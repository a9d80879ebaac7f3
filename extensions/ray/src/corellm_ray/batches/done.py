"""Which requests have results already, in whatever order these were written. Knows results; runs nothing."""

from __future__ import annotations

from corellm.errors import ConfigError
from corellm_server.batch.input_file import BatchRequest, Input
from corellm_server.batch.output_file import OutputFile
from corellm_server.batch.progress import Progress
from corellm_server.batch.results import Result


class Done:
    """What earlier runs have done.

    Requests without a `custom_id` have no name to be found by: their results are written in their order.

    Args:
        requests: the input.
        output: the results of it.

    Raises:
        ConfigError: the output is that of another input.
    """

    def __init__(self, requests: Input, output: OutputFile) -> None:
        self.progress = Progress()
        found: dict[str, Result] = {}
        nameless: list[Result] = []
        for result in output.results():
            if result.custom_id is None:
                nameless.append(result)
            elif result.custom_id in found:
                raise ConfigError(
                    f"the output {output.path} has two results of the custom_id {result.custom_id!r:.100}; name another"
                )
            else:
                found[result.custom_id] = result
        self.names = frozenset(found)
        self.num_nameless = len(nameless)
        for request in requests.requests():
            if request.custom_id is not None:
                self.progress.found(request, found.pop(request.custom_id, None))
            else:
                self.progress.found(request, nameless.pop(0) if nameless else None)
        if found or nameless:
            name = next(iter(found), None)
            raise ConfigError(
                f"the output {output.path} has results of another input: there is no custom_id {name!r:.100}; name "
                "another output"
            )

    def is_done(self, request: BatchRequest) -> bool:
        """Whether a request with a `custom_id` has a result."""
        return request.custom_id in self.names
