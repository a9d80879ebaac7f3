"""A loaded model's weights: dropped, read again, and updated, in the memory and in the form that they have.

They are read as a load reads them: the checkpoint with its updates is loaded anew, layers are fused, packed and
quantized again, and the tensors that come of it go to where the old ones are. So results are those of a fresh load, bit
for bit, for any adapter and any kind of layer, and nothing here knows one. Knows no requests and no caches.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from corellm.config import EngineConfig
from corellm.errors import CheckpointError
from corellm.loading.locating import LocatedModel
from corellm.loading.model_parts import find_quantization, load_model, replace_layers
from corellm.loading.opening import at_load, open_model
from corellm.loading.remote_code import no_questions
from corellm.loading.rope import freeze_rope
from corellm.loading.weight_places import WeightPlace, weight_places
from corellm.system.devices import on_device
from corellm_training.set_aside import discard
from corellm_training.weight_source import WeightFile, WeightSource


class ModelWeights:
    """The weights of a model in memory.

    Args:
        config, located: what was loaded.
        places: where its weights are.
        max_model_len: of the load, which fixes rotary frequencies.
        tied: names of its weights that are others'.
    """

    def __init__(
        self,
        config: EngineConfig,
        located: LocatedModel,
        places: Mapping[str, WeightPlace],
        max_model_len: int,
        tied: Collection[str],
    ) -> None:
        self._config, self._located, self._places, self._max_model_len = config, located, places, max_model_len
        self._source = WeightSource(located.path, has_weights=config.model.load_format != "dummy", tied=tied)
        self._taken: tempfile.TemporaryDirectory[str] | None = None
        """Files of updates that are this object's own."""

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All tensors."""
        return [place.tensor for place in self._places.values()]

    def add_update(self, directory: Path, *, take: bool) -> tuple[WeightFile, ...]:
        """Put weights over those that are read from now on; returns what `undo_update` takes.

        Args:
            directory: with some or all of the weights.
            take: take its files; else they must stay as they are for as long as weights may be read.

        Raises:
            CheckpointError, InvalidParameterError: they do not fit; nothing was changed.
        """
        files, before = self._source.checked(directory), self._source.updates
        self._source.require(self._source.with_update(files))
        if take:
            self._taken = self._taken or tempfile.TemporaryDirectory(prefix="corellm-weights-")
            folder = tempfile.mkdtemp(dir=self._taken.name)
            files = [replace(file, path=Path(shutil.move(file.path, folder))) for file in files]
        self._source.updates = self._source.with_update(files)
        return before

    def undo_update(self, before: tuple[WeightFile, ...]) -> None:
        """Forget the last update."""
        self._source.updates = before

    def forget_files(self) -> None:
        """Delete files of updates that are read no more."""
        if self._taken is not None:
            used = {file.path.parent for file in self._source.updates}
            for folder in Path(self._taken.name).iterdir():
                if folder not in used:
                    shutil.rmtree(folder)

    def close(self) -> None:
        """Delete files of updates."""
        if self._taken is not None:
            self._taken.cleanup()

    def drop(self) -> None:
        """Give back the memory of all weights."""
        discard(self.tensors)

    def read(self) -> None:
        """Read all weights, in place.

        Raises:
            CheckpointError, PluginError, ConfigError: they cannot be loaded; nothing was read.
        """
        with self._source.directory() as path:
            own = path if self._located.tokenizer_path == self._located.path else self._located.tokenizer_path
            located = replace(self._located, path=path, tokenizer_path=own)
            fresh = _loaded(self._loads_as(), located, self._max_model_len)
        self._take_over(weight_places(fresh))

    def _loads_as(self) -> EngineConfig:
        """Return the configuration of the load: dummy weights end with the first update."""
        if not self._source.updates:
            return self._config
        return replace(self._config, model=replace(self._config.model, load_format="auto"))

    @torch.inference_mode()
    def _take_over(self, fresh: Mapping[str, WeightPlace]) -> None:
        """Move a model's values here. One storage after another: most weights are never in memory twice."""
        self._check(fresh)
        by_storage: dict[int, list[str]] = defaultdict(list)
        for name, place in fresh.items():
            tensor = place.tensor
            by_storage[id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()].append(name)
        for names in by_storage.values():
            moved = [_move(fresh[name].tensor, self._places[name]) for name in names]
            discard(tensor for tensor in moved if tensor is not None)

    def _check(self, fresh: Mapping[str, WeightPlace]) -> None:
        for name in self._places.keys() | fresh.keys():
            tensors = [places[name].tensor if name in places else None for places in (self._places, fresh)]
            old, new = ((None, None) if x is None else (x.shape, x.dtype) for x in tensors)
            if old != new:
                raise CheckpointError(
                    f"{self._config.model.model}: {name} would be {new}, and is {old}: with these weights the model's "
                    "layers cannot be made as they were; load the model anew"
                )


def _move(new: Tensor, place: WeightPlace) -> Tensor | None:
    """Give a place a tensor's values; returns the tensor if its memory is not used any more."""
    old = place.tensor
    if old.is_mkldnn:
        setattr(place.module, place.name, new)
    elif old.device.type != "cpu":
        old.data = new
    else:
        keeps_more = type(old) not in (Tensor, nn.Parameter)  # what was made of values that are dropped by now
        if keeps_more or not _are_same(old, new):  # pages of a mapped file stay the file's
            old.copy_(new)  # recorded plans have its address
        return new
    return None


def _are_same(old: Tensor, new: Tensor) -> bool:
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (old, new)))


def _loaded(config: EngineConfig, located: LocatedModel, max_model_len: int) -> nn.Module:
    """Return a model with its layers replaced, as a load makes it, and an adapter of its own."""
    with at_load(config.model.model), no_questions(), ExitStack() as after:
        opened = open_model(config, located)
        after.callback(opened.templates.close)
        with on_device(opened.context.device):
            model = load_model(config, opened.hooks, opened.context, opened.use.adapt_class)
            decoder = opened.hooks.get_language_model(model=model)
            replace_layers(model, config, opened.context, find_quantization(config))
            freeze_rope(decoder, max_model_len)
        return model
