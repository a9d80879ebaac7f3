"""Rules about weights: every one is loaded, from any number of files, or its absence is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from corellm.errors import CheckpointError
from corellm.llm import LLM
from corellm.sampling_params import SamplingParams
from corellm.testing.contract.base import ContractRules
from corellm.testing.subject import Subject


class WeightRules(ContractRules):
    """Weights."""

    @pytest.mark.parametrize("change", ["surplus", "missing"])
    def test_every_weight_finds_its_place(self, subject: Subject, tmp_path: Path, change: str) -> None:
        """A checkpoint with a surplus weight is refused by the weight's name; one that lacks a weight is refused."""
        file, weights = _first_file(subject.checkpoint)
        biggest = max((w for w in weights if "embed" not in w and "head" not in w), key=lambda w: weights[w].numel())
        name = biggest if change == "missing" else f"{biggest}.surplus"
        if change == "missing":
            del weights[name]
        else:
            weights[name] = weights[biggest].clone()
        _write(subject.checkpoint, tmp_path, file, {file.name: weights})
        with self.refusing(
            "load_model",
            f"a checkpoint with {name} {change}",
            CheckpointError,
            words=".surplus" if change == "surplus" else "",
            fix="compare the checkpoint's names with the model's, and raise CheckpointError for what is left on either "
            "side; the core's default does",
        ):
            LLM(str(tmp_path), dtype="float32").close()

    def test_weights_lie_in_several_files(self, subject: Subject, tmp_path: Path) -> None:
        """A checkpoint whose weights are in several files with an index gives the same outputs."""
        file, weights = _first_file(subject.checkpoint)
        parts = {f"model-0000{i + 1}-of-00002.safetensors": dict(list(weights.items())[i::2]) for i in range(2)}
        index = {"metadata": {}, "weight_map": {name: part for part, some in parts.items() for name in some}}
        _write(subject.checkpoint, tmp_path, file, parts)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        params = SamplingParams(temperature=0, max_tokens=6, min_tokens=6)
        prompts = subject.requests(2)
        with (
            self.expecting("a checkpoint of two files loads", hook="load_model", fix="read every file of the index"),
            LLM(str(tmp_path), dtype="float32") as llm,
        ):
            one, two = (
                [output.outputs[0].token_ids for output in each.generate(prompts, params, use_tqdm=False)]
                for each in (subject.llm, llm)
            )
        self.require(one == two, "load_model", expected=one, got=two, fix="read every file of the index")


def _first_file(checkpoint: Path) -> tuple[Path, dict[str, Any]]:
    """Return the checkpoint's first file of weights and its tensors by name."""
    from safetensors.torch import load_file

    file = min(checkpoint.glob("*.safetensors"))
    return file, load_file(file)


def _write(checkpoint: Path, path: Path, without: Path, instead: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a copy of a checkpoint with the file `without` replaced by files of the weights in `instead`."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(without, "pt") as opened:
        metadata = opened.metadata()
    for file in checkpoint.iterdir():
        if file != without:
            (path / file.name).symlink_to(file)
    for name, weights in instead.items():
        save_file(dict(weights), path / name, metadata)
