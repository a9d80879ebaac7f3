"""Rules about weights: every one is loaded, from any number of files and in any type, or its absence is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from corellm.errors import CheckpointError
from corellm.llm import LLM
from corellm.modelling.defaults import model_width, text_decoder
from corellm.plugin.hook_callers import adapter_implements
from corellm.sampling_params import SamplingParams
from corellm_testing.contract.base import ContractRules
from corellm_testing.quick import slow
from corellm_testing.subject import Subject

_EMBED = "treat no token id apart, padding neither: the model was trained with the table's rows"


class WeightRules(ContractRules):
    """Weights."""

    def test_every_token_has_its_embedding(self, subject: Subject) -> None:
        """Each token id of the text, special ones and padding included, is embedded as its row of the model's table.

        Times the number by which the reference scales embeddings before its decoder. Where its model is of another
        form, or its decoder embeds texts itself, times any number.
        """
        import torch

        model: Any = subject.model
        ids = subject.ids(range(model_width(model)))
        with torch.inference_mode():
            want = model.get_input_embeddings()(ids)
            with self.expecting("every token id is embedded", hook="get_input_embeddings"):
                got = subject.hooks.get_input_embeddings(model=model, input_ids=ids)
        self._same_rows(subject, got, want, "get_input_embeddings", "the model's own embedding of it")
        theirs = subject.reference.model
        if not isinstance(model, type(theirs)):
            return
        known = ids[: model_width(theirs)].cpu()  # a loaded table may be filled up
        with torch.inference_mode():
            want = theirs.get_input_embeddings()(known)
        scale = self._same_rows(subject, got[: len(known)].cpu(), want, "load_model", "the reference's embedding of it")
        factor = _scale_before_decoder(subject)
        self.require(
            factor is None or math.isclose(scale, factor, rel_tol=1e-4),
            "get_input_embeddings",
            expected=f"embeddings times {factor}, as the reference gives them to its decoder",
            got=f"times {scale:.6g}",
            fix="scale embeddings here only where the model does so outside both its table and its decoder",
        )

    def _same_rows(self, subject: Subject, got: Any, want: Any, hook: str, what: str) -> float:
        """Require embeddings of all token ids, `[token ids, hidden_size]`, to be the same, times one number for all.

        Return the number.
        """
        __tracebackhide__ = True
        import torch

        self.require(got.shape == want.shape, hook, expected=tuple(want.shape), got=tuple(got.shape), fix=_EMBED)
        scale = _scale(got, want)
        others = (~torch.isclose(got, scale * want).all(-1)).nonzero().flatten().tolist()
        token = subject.context.tokenizer.convert_ids_to_tokens(others[0]) if others else None
        self.require(
            not others,
            hook,
            expected=f"for each token id: {what}",
            got=f"{len(others)} other embeddings, the first of token id {others[:1]}, {token!r}",
            fix=_EMBED,
        )
        return scale

    @slow()
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

    @slow()
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

    @slow()
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_half_precision(self, subject: Subject, dtype: str) -> None:
        """In half precision, embeddings are of that type, and outputs begin as in full precision, but for rounding."""
        import torch

        half = getattr(torch, dtype)
        prompts = subject.requests(0)
        fix = "load in load_config.dtype, and make tensors of your own like those that the hook is given"
        with (
            self.expecting(f"{dtype} is served", hook="load_model or get_multimodal_embeddings", fix=fix),
            LLM(str(subject.checkpoint), dtype=dtype) as llm,
        ):
            model, hooks = llm.engine.runner.model, llm.engine.input_processor.mm_processor.hooks
            got = hooks.get_input_embeddings(model=model, input_ids=subject.ids([0])).dtype
            self.require(got == half, "get_input_embeddings", expected=f"embeddings of {dtype}", got=got, fix=fix)
            params = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
            outputs = [each.generate(prompts, params, use_tqdm=False) for each in (subject.llm, llm)]
        likely = [[set((one.outputs[0].logprobs or [{}])[0]) for one in given] for given in outputs]
        shared = [len(full & rounded) for full, rounded in zip(*likely, strict=True)]
        self.require(
            min(shared) >= 10,
            "merge_multimodal_embeddings or get_multimodal_embeddings",
            expected="of the 20 likeliest first tokens most are those of full precision, for every modality",
            got=dict(zip(subject.modalities or ["text"], shared, strict=True)),
            fix="compute in the dtype of what the hook is given, and treat no dtype apart",
        )


def _scale(rows: Any, others: Any) -> float:
    """Return the number by which most values are larger than others."""
    return float((rows / others).nanmedian())


def _scale_before_decoder(subject: Subject) -> float | None:
    """Return the number by which the reference scales its table's embeddings of a text before its decoder.

    None where its decoder embeds the text itself, or the adapter has a decoder of its own choice.
    """
    import torch

    model = subject.reference.model
    if adapter_implements(subject.hooks.get_language_model):
        return None
    given: list[Any] = []
    decoder = text_decoder(model, model.config)
    noting = decoder.register_forward_pre_hook(
        lambda _, args, kwargs: given.append(kwargs.get("inputs_embeds")), with_kwargs=True
    )
    with noting, torch.inference_mode():
        text = subject.reference.generate("What?", {}, {}, 1)
        if given[0] is None:
            return None
        table = model.get_input_embeddings()(torch.tensor(text.prompt_token_ids))
    return _scale(given[0][0], table)


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
