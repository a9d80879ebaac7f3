"""An adapter's files: the configuration, and factors in safetensors, checked against a model before they are used.

Knows names, shapes and bytes; knows no slots and no requests.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corellm.errors import InvalidParameterError
from corellm_lora.adapter_config import AdapterConfig
from corellm_lora.errors import refusal
from corellm_lora.terms import Terms

if TYPE_CHECKING:
    from torch import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FACTOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<factor>[AB])\.weight")
_OTHERS = {
    "lora_magnitude_vector": "DoRA cannot be served",
    "lora_embedding": "adapters of embeddings cannot be served",
    "lora_B.bias": "a bias of lora_B cannot be served",
    "trainable_tokens": "embeddings of single tokens cannot be served",
}
"""Reasons for refusal of tensors that are no factors of a linear layer, by a part of their name."""


class Factors(NamedTuple):
    """The factors of one layer's product."""

    a: Tensor
    """`[rank, in_features]`."""
    b: Tensor
    """`[out_features, rank]`, not multiplied by `scale`."""
    scale: float


class Place(NamedTuple):
    """Where the factors of a layer are in the file."""

    a: str
    b: str
    scale: float


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter that a model can have."""

    path: Path
    digest: bytes
    """Digest of both files, which tells the adapter from all others."""
    weights_digest: bytes
    places: Mapping[str, Place]
    """Places by layer of the model."""

    @classmethod
    def opened(cls, name: str, path: str, terms: Terms) -> AdapterFiles:
        """Return the files of an adapter, after checking all but the values of its factors.

        Args:
            name: for messages.
            path: their directory.
            terms: of the model.

        Raises:
            InvalidParameterError: a file is absent or broken, or the adapter is none for this model.
        """
        folder = Path(path)
        config, digest = _read_config(name, folder)
        try:
            with (folder / WEIGHTS).open("rb") as opened:
                weights = hashlib.file_digest(opened, "sha256").digest()
            places = dict(_places(name, config, _shapes(name, folder / WEIGHTS), terms))
        except OSError as error:
            raise _unreadable(name, folder, error) from error
        return cls(folder, hashlib.sha256(digest + weights).digest(), weights, places)

    def factors(self) -> Mapping[str, Factors]:
        """Read the factors, by layer.

        Raises:
            OSError: the file cannot be read, or is not the one that was checked.
        """
        from safetensors.torch import load

        content = (self.path / WEIGHTS).read_bytes()
        if hashlib.sha256(content).digest() != self.weights_digest:
            raise OSError(f"{WEIGHTS} changed while it was read")
        tensors = load(content)
        return {layer: Factors(tensors[place.a], tensors[place.b], place.scale) for layer, place in self.places.items()}


def _read_config(name: str, folder: Path) -> tuple[AdapterConfig, bytes]:
    """Return what the configuration states, and its digest."""
    try:
        content = (folder / CONFIG).read_bytes()
        stated = json.loads(content.decode())
    except OSError as error:
        raise _unreadable(name, folder, error) from error
    except (ValueError, RecursionError) as error:
        raise refusal(name, f"{CONFIG} is no JSON ({error}); save the adapter again") from error
    if not isinstance(stated, dict):
        raise refusal(name, f"{CONFIG} must hold an object, got {stated!r:.60}")
    return AdapterConfig.of(stated, name), hashlib.sha256(content).digest()


def _unreadable(name: str, folder: Path, error: OSError) -> InvalidParameterError:
    reason = f"{error.strerror or error}: {folder}"
    if not folder.is_dir():
        reason = f"there is no directory {str(folder)!r:.200}; adapters from a hub must be downloaded before"
    elif not (folder / WEIGHTS).exists() and (folder / CONFIG).exists():
        reason = f"{folder} has no {WEIGHTS}; other formats run code when they are read: save it as safetensors"
    elif not (folder / CONFIG).exists():
        reason = f"{folder} has no {CONFIG}; give the directory that PEFT's save_pretrained wrote"
    return refusal(name, reason)


def _shapes(name: str, file: Path) -> Mapping[str, list[int]]:
    """Return the shapes in a file of safetensors, by tensor."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            found = {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118  # it is no mapping
            for key, tensor in found.items():
                if tensor.get_dtype() not in ("F32", "F16", "BF16"):
                    raise refusal(name, f"{key} is of type {tensor.get_dtype()}; factors are F32, F16 or BF16")
            return {key: tensor.get_shape() for key, tensor in found.items()}
    except SafetensorError as error:
        raise refusal(name, f"{WEIGHTS} is broken ({error}); copy it again") from error


def _places(
    name: str, config: AdapterConfig, shapes: Mapping[str, list[int]], terms: Terms
) -> Iterator[tuple[str, Place]]:
    """Yield where each layer's factors are."""
    keys: dict[str, dict[str, str]] = {}
    for key in shapes:
        if (found := _FACTOR.fullmatch(key)) is None:
            raise refusal(name, _no_factor(key))
        keys.setdefault(found["module"], {})[found["factor"]] = key
    if not keys:
        raise refusal(name, f"{WEIGHTS} holds no factors")
    owners: dict[str, str] = {}
    for module, pair in sorted(keys.items()):
        layer = terms.layer(module)
        if layer is None:
            raise refusal(name, _unknown(module, terms))
        if layer in owners:
            raise refusal(name, f"{module} and {owners[layer]} are the same layer of this model")
        owners[layer] = module
        _check_shapes(name, module, {factor: shapes[key] for factor, key in pair.items()}, config, terms.layers[layer])
        if (rank := config.rank_of(module)) > terms.max_rank:
            raise refusal(
                name, f"{module} has rank {rank}, and this model takes up to {terms.max_rank}; raise max_lora_rank"
            )
        yield layer, Place(pair["A"], pair["B"], config.scale_of(module))


def _check_shapes(
    name: str, module: str, shapes: Mapping[str, list[int]], config: AdapterConfig, size: tuple[int, int]
) -> None:
    rank, (inputs, outputs) = config.rank_of(module), size
    for factor, want in (("A", [rank, inputs]), ("B", [outputs, rank])):
        if factor not in shapes:
            raise refusal(name, f"{module} has no lora_{factor}.weight; save the adapter again")
        if list(shapes[factor]) != want:
            raise refusal(
                name,
                f"{module}: lora_{factor}.weight is {list(shapes[factor])}, and must be {want} by the rank in {CONFIG} "
                f"and this model's layer of {inputs} inputs and {outputs} outputs; is it an adapter of another model?",
            )


def _no_factor(key: str) -> str:
    module = key.removeprefix("base_model.model.")
    reason = next((reason for part, reason in _OTHERS.items() if part in key), None)
    return (
        f"{module}: {reason or 'a whole weight (modules_to_save) cannot be served'}; merge the adapter into the "
        "checkpoint (peft: merge_and_unload)"
    )


def _unknown(module: str, terms: Terms) -> str:
    ends = sorted({name.rpartition(".")[2] for name in terms.layers})
    return (
        f"{module} is no linear layer of this model's decoder that can have an adapter; there are {', '.join(ends)}: "
        "train with these as target_modules, encoders, projectors, embeddings and the head left out"
    )


def plain(files: AdapterFiles, name: str) -> dict[str, Any]:
    """Return what the engine's process needs of an adapter, as plain data."""
    return {"name": name, "path": str(files.path), "digest": files.digest.hex()}
