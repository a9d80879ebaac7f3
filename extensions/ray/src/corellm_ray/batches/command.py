"""`corellm batch --ray`: one process reads the input and writes the results, workers of a cluster do the requests.

A result is written once, by this process, whatever becomes of workers: Ray Data gives what a worker had to another one,
and passes on one outcome of each block. If this process ends, the same command goes on with what has no result.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import ray

from corellm.errors import ConfigError, EngineDeadError
from corellm_ray.batches.done import Done
from corellm_ray.batches.offer import RayBatchOptions
from corellm_ray.batches.table import ENDINGS, TableFile
from corellm_ray.batches.worker import Worker
from corellm_ray.cluster import joined
from corellm_server.batch.image_folder import ImageFolder
from corellm_server.batch.input_file import BatchRequest, Input, InputFile
from corellm_server.batch.inputs import InputOptions
from corellm_server.batch.opening import open_input
from corellm_server.batch.output_file import OutputFile
from corellm_server.batch.results import Finished, of_wrong_line
from corellm_server.options import ServerConfig
from corellm_server.service import served_names

_BLOCK_ROWS = 16
"""Requests that a worker gets at once, and does again where another one ended with them."""


class _Stopped(BaseException):
    """A signal came."""


def run(
    options: RayBatchOptions, config: ServerConfig, engine_args: dict[str, Any], inputs: InputOptions, input_path: str,
    output_path: str,
) -> int:  # fmt: skip
    """Do what has no result yet; returns the exit status."""
    with _opened(inputs, config, engine_args, input_path) as requests, OutputFile(output_path) as output:
        done = Done(requests, output)
        progress = done.progress
        if progress.num_done == progress.total:
            print(progress.summary())
            return int(progress.failures.total() > 0)
        try:
            with _signals_raised(), joined(
                options.ray_address, object_store_memory=options.object_store_memory
            ):  # fmt: skip
                progress.start()
                for finished in _results(options, config, engine_args, requests, done):
                    output.append(finished.line)
                    progress.finished(finished)
        except _Stopped as stopped:
            return 128 + int(stopped.args[0])
        except ray.exceptions.RayError as error:
            raise EngineDeadError(f"the workers stopped: {_reason(error)}") from error
        finally:
            progress.stop()
            print(progress.summary(), flush=True)
            if progress.num_done < progress.total:
                print("corellm batch: the same command goes on with the rest", file=sys.stderr)
    return int(progress.failures.total() > 0)


def _opened(
    options: InputOptions, config: ServerConfig, engine_args: dict[str, Any], path: str
) -> InputFile | ImageFolder | TableFile:
    if Path(path).suffix not in ENDINGS or Path(path).is_dir():
        return open_input(path, options, config, engine_args)
    if options.question is not None:
        raise ConfigError(
            f"the input {path} is a table, with questions of its own (--question-column): leave out question"
        )
    model = served_names(config.options, engine_args["model"])[0]
    return TableFile(path, model, options.question_column, options.image_column, options.fields)


def _results(
    options: RayBatchOptions, config: ServerConfig, engine_args: dict[str, Any], requests: Input, done: Done
) -> Iterator[Finished]:
    """The results of all requests that have none."""
    blocks: list[ray.ObjectRef[pyarrow.Table]] = []
    rows: list[BatchRequest] = []
    num_nameless = 0
    for request in requests.requests():
        if request.custom_id is None:
            num_nameless += 1
            is_done = num_nameless <= done.num_nameless
        else:
            is_done = done.is_done(request)
        if is_done:
            continue
        loaded = request.loaded()
        if loaded.wrong is not None and not options.keep_order:
            yield of_wrong_line(loaded, is_told=request.wrong is not None)
            continue
        rows.append(loaded)
        if len(rows) == _BLOCK_ROWS:
            blocks.append(_block(rows))
            rows = []
    if rows:
        blocks.append(_block(rows))
    if not blocks:
        return
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # the command has one of its own
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context.execution_options.preserve_order = options.keep_order
    dataset = ray.data.from_arrow_refs(blocks).map_batches(
        Worker, fn_constructor_args=(config, engine_args), batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=options.ray_workers),
        num_cpus=options.ray_worker_cpus, num_gpus=options.ray_worker_gpus or None,
    )  # fmt: skip
    for row in dataset.iter_rows():
        yield Finished(
            row["result"], row["failure"] or None, row["told"] or None, row["prompt_tokens"], row["output_tokens"]
        )


def _block(rows: list[BatchRequest]) -> ray.ObjectRef[pyarrow.Table]:
    columns = {
        "line": [row.line for row in rows],
        "custom_id": pyarrow.array([row.custom_id for row in rows], pyarrow.string()),
        "url": [row.url for row in rows],
        "body": pyarrow.array([row.body for row in rows], pyarrow.large_binary()),
        "wrong": pyarrow.array([row.wrong for row in rows], pyarrow.string()),
    }
    return ray.put(pyarrow.table(columns))


@contextlib.contextmanager
def _signals_raised() -> Iterator[None]:
    """Have SIGTERM and Ctrl-C raise, so that all is closed in its order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> None:
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _reason(error: BaseException) -> str:
    """The last line of what Ray tells, which is the worker's own."""
    return str(error).strip().rsplit("\n", 1)[-1][:500]
