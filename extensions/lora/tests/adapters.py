"""Adapters of tiny models with random factors, made by PEFT, and what PEFT generates with them."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from corellm_lora.lora_request import LoRARequest
from corellm_testing.reference import Continuation, generate_one


def save_adapter(path: Path, model: Any, seed: int, **config: Any) -> LoRARequest:
    """Write an adapter with random weights into a directory; `config` are fields of PEFT's `LoraConfig`."""
    with torch.random.fork_rng(), torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="peft")  # that embeddings are saved, or not tied
        torch.manual_seed(seed)
        wrapped = peft.get_peft_model(
            copy.deepcopy(model), peft.LoraConfig(**{"init_lora_weights": False, "lora_alpha": 32, **config})
        )
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad and not re.search(r"lora_(embedding_)?[AB]", name):  # else it is the model's own
                parameter.add_(0.4 * parameter.std(unbiased=False).clamp(min=0.1) * torch.randn_like(parameter))
        wrapped.save_pretrained(str(path))
    return LoRARequest(path.name, seed + 1, str(path))


def with_adapter(model: Any, adapter: LoRARequest) -> Any:
    """A copy of a model with an adapter that PEFT reads from its files."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="peft")  # that embeddings are tied, or are not
        return peft.PeftModel.from_pretrained(copy.deepcopy(model), adapter.lora_path).eval()


def asking(prompts: Sequence[Any], adapters: Sequence[LoRARequest | None]) -> list[Any]:
    """Prompts that name an adapter each, or none."""
    return [
        {**(prompt if isinstance(prompt, Mapping) else {"prompt": prompt}), **({"lora_request": one} if one else {})}
        for prompt, one in zip(prompts, adapters, strict=True)
    ]


@dataclass(frozen=True)
class Adapted:
    """A tiny checkpoint, adapters for it, and a model of transformers to compare with."""

    path: Path
    adapters: Mapping[str, LoRARequest]
    reference: Any

    @classmethod
    def made(cls, folder: Path, path: Path, kind: Any, configs: Mapping[str, Mapping[str, Any]]) -> Adapted:
        """Write adapters for a checkpoint, which `kind` of transformers loads."""
        reference = kind.from_pretrained(path, dtype=torch.float32).eval()
        adapters = {
            name: save_adapter(folder / name, reference, seed, **config)
            for seed, (name, config) in enumerate(configs.items())
        }
        return cls(path, adapters, reference)

    def request(self, name: str | None) -> LoRARequest | None:
        """An adapter as a request names it."""
        return None if name is None else self.adapters[name]

    def requests(self, names: Iterable[str | None]) -> list[LoRARequest | None]:
        """The adapters of several prompts."""
        return [self.request(name) for name in names]

    def wanted(self, inputs: Sequence[tuple[Mapping[str, Any], str | None]], length: int) -> list[Continuation]:
        """What PEFT's `generate` gives for inputs of transformers, each with its adapter."""
        found: dict[int, Continuation] = {}
        for name in dict.fromkeys(name for _, name in inputs):
            model = self.reference if name is None else with_adapter(self.reference, self.adapters[name])
            for number, (given, own) in enumerate(inputs):
                if own == name:
                    found[number] = generate_one(model, given, length)
        return [found[number] for number in range(len(inputs))]


def load(kind: str) -> Any:
    """A class of transformers."""
    return getattr(transformers, kind)
