"""The checkpoint's default sampling parameters, from `generation_config.json`.

They apply to requests without parameters. Knows the file's names and ours; does not read end-of-sequence tokens.
"""

from __future__ import annotations

from pathlib import Path

from corellm.errors import CheckpointError, InvalidParameterError
from corellm.modelling.checkpoint_files import read_json
from corellm.sampling_params import SamplingParams

_OURS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def recommended_sampling(path: Path) -> SamplingParams:
    """Read a checkpoint's sampling parameters; those it does not state are as in `SamplingParams()`.

    `"do_sample": false` is greedy, as in transformers.

    Raises:
        CheckpointError: a wrong value; says how to load without the file.
    """
    file = path / "generation_config.json"
    if not file.is_file():
        return SamplingParams()
    stated = read_json(file)
    ours = {ours: stated[hf_name] for hf_name, ours in _OURS.items() if stated.get(hf_name) is not None}
    if stated.get("do_sample") is False:
        ours["temperature"] = 0.0
    try:
        return SamplingParams(**ours)
    except InvalidParameterError as error:
        raise CheckpointError(f"{file}: {error}; correct it, or start with generation_config='none'") from error
