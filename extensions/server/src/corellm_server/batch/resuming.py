"""What earlier runs have done. Results are in the order of requests, so theirs are those of the first ones."""

from __future__ import annotations

import itertools

from corellm.errors import ConfigError
from corellm_server.batch.input_file import Input
from corellm_server.batch.output_file import OutputFile
from corellm_server.batch.progress import Progress


def compare(requests: Input, output: OutputFile) -> Progress:
    """What is to be done, and what earlier runs have done: results are those of the first requests.

    Raises:
        ConfigError: the output is that of another input.
    """
    progress = Progress()
    for request, earlier in itertools.zip_longest(requests.requests(), output.results()):
        if request is None or (earlier is not None and earlier.custom_id != request.custom_id):
            raise ConfigError(
                f"the output {output.path} has results of another input: its result {progress.total + 1} has the "
                f"custom_id {earlier.custom_id!r:.100}, which {requests.path} does not have there; name another output"
            )
        progress.found(request, earlier)
    return progress
