"""`map_batches`: a model as a step of people's own pipelines of Ray Data. Knows datasets and `LLM`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy

from corellm.errors import ConfigError

if TYPE_CHECKING:
    from ray.data import Dataset

    from corellm import SamplingParams


class Completions:
    """A worker's model, for rows of a dataset.

    Args:
        model, engine_args: as for `LLM`.
        prompt: makes a prompt, or a conversation, of a row; or the column that has it.
        sampling_params: of all rows.
        output: the column that gets the text.
    """

    def __init__(
        self,
        model: str,
        engine_args: Mapping[str, Any],
        prompt: str | Callable[[dict[str, Any]], Any],
        sampling_params: SamplingParams | None,
        output: str,
    ) -> None:
        from corellm import LLM

        self._llm = LLM(model, **engine_args)
        self._prompt, self._params, self._output = prompt, sampling_params, output

    def __call__(self, batch: dict[str, numpy.ndarray]) -> dict[str, Any]:
        """The batch with the columns of its outputs."""
        size = len(next(iter(batch.values())))
        rows = ({name: values[number] for name, values in batch.items()} for number in range(size))
        prompts = [row[self._prompt] if isinstance(self._prompt, str) else self._prompt(row) for row in rows]
        texts, errors = [""] * size, [""] * size
        for run, is_chat in ((self._llm.chat, True), (self._llm.generate, False)):
            places = [place for place, prompt in enumerate(prompts) if isinstance(prompt, list) == is_chat]
            if not places:
                continue
            asked = [prompts[place] for place in places]
            outputs = run(asked, self._params, use_tqdm=False, on_error="return")
            for place, output in zip(places, outputs, strict=True):
                texts[place] = output.outputs[0].text if output.outputs else ""
                errors[place] = "" if output.error is None else str(output.error)
        return {
            **batch,
            self._output: numpy.array(texts, dtype=object),
            f"{self._output}_error": numpy.array(errors, dtype=object),
        }


def map_batches(
    dataset: Dataset,
    model: str,
    *,
    prompt: str | Callable[[dict[str, Any]], Any] = "prompt",
    output: str = "output",
    sampling_params: SamplingParams | None = None,
    engine_args: Mapping[str, Any] | None = None,
    batch_size: int = 64,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: float = 1.0,
    num_gpus: float | None = None,
    **ray_args: Any,
) -> Dataset:
    """Complete the prompts of a dataset, by workers with a model each; lazily, as `Dataset.map_batches`.

    Args:
        dataset: rows of any kind; their columns stay.
        model: as for `LLM`.
        prompt: the column with what `LLM.generate` takes, or a function of a row that returns it: text, or a dictionary
            with `multi_modal_data`; or a list of messages, for `LLM.chat`.
        output: the column that gets the text of the output; `{output}_error` says what failed, or is empty.
        sampling_params: how to sample, for all rows; None for what the checkpoint recommends.
        engine_args: further arguments of `LLM`.
        batch_size: rows that a worker gets at once: enough to keep its engine busy.
        concurrency: workers, or their fewest and most.
        num_cpus, num_gpus: of each worker, asked of Ray.
        **ray_args: further arguments of `Dataset.map_batches`.

    Raises:
        ConfigError: the dataset has no such column.
    """
    if isinstance(prompt, str) and (schema := dataset.schema()) is not None and prompt not in schema.names:
        raise ConfigError(f"the dataset has no column {prompt!r:.100}; it has {', '.join(schema.names)}")
    from ray.data import ActorPoolStrategy

    fewest, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    return dataset.map_batches(
        Completions,
        fn_constructor_args=(model, dict(engine_args or {}), prompt, sampling_params, output),
        batch_size=batch_size,
        compute=ActorPoolStrategy(size=fewest) if fewest == most else ActorPoolStrategy(min_size=fewest, max_size=most),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        **ray_args,
    )
