"""A checkpoint in the Hugging Face layout, written anew with rounded weights: tensor by tensor, whole or not at all.

Knows the engine's way to open a checkpoint, and files; `choice` knows which layers, `layout` how they are written.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from corellm.attention.paged import ATTENTION_NAME, register_attention
from corellm.config import EngineConfig
from corellm.errors import CheckpointError, ConfigError, CorellmError
from corellm.hookspecs import LoadConfig
from corellm.loading.locating import LocatedModel, locate
from corellm.loading.opening import at_load, open_model
from corellm.modelling.checkpoint_files import read_json, require_weights
from corellm.system.mapped_weights import release_mapped_weights
from corellm_quantization.model_names import ModelNames
from corellm_quantization.writing.choice import Choice, Wanted, choose
from corellm_quantization.writing.files import INDEX, TYPES, Entry, shards, write_shards
from corellm_quantization.writing.layout import Size, quantization_config
from corellm_quantization.writing.unfinished import unfinished_folder

SHARD_BYTES = 4 << 30
_RELEASED_AT_ONCE = 1 << 28
"""So many bytes are read before their pages are given back."""
_ROUNDED = (torch.float32, torch.bfloat16, torch.float16)
_CONFIG = "config.json"
_WEIGHTS = (
    "model*.safetensors", "*.safetensors.index.json", "pytorch_model*", "consolidated*", "tf_model*", "flax_model*",
    "rust_model*", "*.gguf", "*.onnx*", "optimizer*", "scheduler*", "rng_state*", "training_args*",
)  # fmt: skip
"""Files that are not copied: weights of whole models, in this and other layouts, and what trainers keep beside them.

Others are, such as a model's voices (`*.pt`) and its own code.
"""


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        bytes_before, bytes_after: of the weights' files.
        choice: which layers were rounded.
        left_out: files that were not copied, beside those of which the weights are.
    """

    bytes_before: int
    bytes_after: int
    choice: Choice
    left_out: Sequence[str]


def write_quantized(
    model: str, target: Path, wanted: Wanted, *, force: bool = False, shard_bytes: int = SHARD_BYTES,
    trust_remote_code: bool = False, progress: Callable[[int, int], None] = lambda done, total: None,
) -> Written:  # fmt: skip
    """Write a checkpoint with rounded weights, which other engines read, too.

    Args:
        model: the checkpoint, as `LLM` takes it.
        target: the folder that is made; what is unfinished lies in one beside it.
        wanted: which layers, and how.
        force: replace a checkpoint at `target`.
        shard_bytes: a file of weights has no more, unless one tensor has.
        trust_remote_code: whether a configuration may run the checkpoint's code.
        progress: called with bytes that were read so far, and all.

    Raises:
        CheckpointError, PluginError: the checkpoint cannot be opened, is quantized already, or is not in a layout of
            transformers' own classes.
        ConfigError: there is something at `target`; what is wanted fits no layer.
    """
    config = EngineConfig.from_kwargs(model=model, device="cpu", trust_remote_code=trust_remote_code)
    located = locate(config.model)
    stated = read_json(located.path / _CONFIG)
    inner = stated.get("text_config")
    if "quantization_config" in stated or (isinstance(inner, dict) and "quantization_config" in inner):
        raise CheckpointError(f"{model} is quantized already; take the checkpoint that it was made of")
    _check_target(target, located.path, force=force)
    if os.path.normpath(target) == model:
        raise ConfigError(f"a folder {target} would be taken for the model {model} from now on; choose another name")
    with _naming_the_target(target), ExitStack() as stack:
        source = _Source(located.path, stack)
        choice, layers = _chosen(config, located, source, wanted)
        plan = _Plan(source, choice, layers)
        files = shards(plan.entries, shard_bytes)
        made = stack.enter_context(unfinished_folder(target))
        left_out = _copy_others(located.path, made, source.files)
        stated["quantization_config"] = quantization_config(choice.written, choice.ignored)
        (made / _CONFIG).write_text(json.dumps(stated, indent=2), encoding="utf-8")
        _require_readable(config, replace(located, path=made, tokenizer_path=made))
        write_shards(made, files, plan.tensors(progress))
        _check_target(target, located.path, force=force)  # again: another may be there by now
        _put(made, target)
    return Written(source.num_bytes, sum((target / file).stat().st_size for file in files), choice, left_out)


class _Source:
    """The tensors of a checkpoint's files, which stay open."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        require_weights(path)
        self.files = ["model.safetensors"]  # where it is there, transformers does not look at an index
        if not (path / self.files[0]).is_file():
            self.files = sorted(set(read_json(path / INDEX)["weight_map"].values()))
        self._files: dict[str, Any] = {}
        with _naming_the_source(path):
            self.num_bytes = sum((path / name).stat().st_size for name in self.files)
            for name in self.files:
                file = stack.enter_context(safe_open(path / name, framework="pt"))
                self._files |= dict.fromkeys(file.keys(), file)

    @property
    def names(self) -> Sequence[str]:
        """Names of tensors, file by file."""
        return list(self._files)

    def size(self, name: str) -> Size:
        """Return a tensor's type and shape."""
        part = self._files[name].get_slice(name)
        stated = part.get_dtype()
        for dtype, known in TYPES.items():
            if known == stated:
                return Size(dtype, tuple(part.get_shape()))
        raise CheckpointError(f"{name} is of the type {stated}, which cannot be copied; take another checkpoint")

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, mapped."""
        with _naming_the_source(name):
            found: Tensor = self._files[name].get_tensor(name)
        return found


class _Plan:
    """Which tensors are written, in the order of those that they are made of."""

    def __init__(self, source: _Source, choice: Choice, layers: Mapping[str, str]) -> None:
        self._source = source
        self._layouts = {tensor: choice.written[layer] for tensor, layer in layers.items() if layer in choice.written}

    @property
    def entries(self) -> Iterator[Entry]:
        """Yield what is written."""
        for name in self._source.names:
            size = self._source.size(name)
            if (layout := self._layouts.get(name)) is None:
                yield Entry(name, *size)
            else:
                stem = name.removesuffix("weight")
                yield from (Entry(stem + last, *made) for last, made in layout.sizes(size).items())

    def tensors(self, progress: Callable[[int, int], None]) -> Iterator[Tensor]:
        """Yield the values of all entries."""
        total = sum(Entry(name, *self._source.size(name)).num_bytes for name in self._source.names)
        done = 0
        for name in self._source.names:
            tensor, layout = self._source.tensor(name), self._layouts.get(name)
            yield from [tensor] if layout is None else layout.rounded(tensor).values()
            before, done = done, done + tensor.nbytes
            del tensor
            if before // _RELEASED_AT_ONCE != done // _RELEASED_AT_ONCE:
                release_mapped_weights()
            progress(done, total)


def _chosen(
    config: EngineConfig, located: LocatedModel, source: _Source, wanted: Wanted
) -> tuple[Choice, Mapping[str, str]]:
    """Return what is rounded, and the layers whose weights are tensors of the files, by these tensors' names."""
    with at_load(config.model.model):
        opened = open_model(config, located)
        with closing(opened.templates):
            register_attention()
            model = opened.hooks.load_model(load_config=_without_values(opened.context))
            if not isinstance(model, PreTrainedModel):
                raise CheckpointError(
                    f"{config.model.model}: {type(model).__name__} is no model of transformers, so nothing else reads "
                    "what would be written; use quantization='int4' when it is loaded"
                )
            decoder: nn.Module = opened.hooks.get_language_model(model=model)
    names, known = ModelNames(model), model.state_dict()
    stems = [tensor.removesuffix(".weight") for tensor in source.names if tensor.endswith(".weight")]
    in_files = {(names.parameter(f"{stem}.weight") or "").removesuffix(".weight"): stem for stem in stems}
    layers = {
        f"{stem}.weight": name
        for stem in stems
        if (name := names.linear(stem)) is not None and f"{name}.weight" not in model.all_tied_weights_keys
        and source.size(f"{stem}.weight").dtype in _ROUNDED
        and source.size(f"{stem}.weight").shape == known[f"{name}.weight"].shape
    }  # fmt: skip
    return choose(model, decoder, model.get_output_embeddings(), set(layers.values()), in_files, wanted), layers


def _without_values(context: Any) -> LoadConfig:
    """Return how to make the model without weights."""
    return LoadConfig(
        model_path=context.model_path, dtype=context.dtype, device=torch.device("meta"),
        attn_implementation=ATTENTION_NAME, trust_remote_code=context.trust_remote_code, load_format="dummy",
    )  # fmt: skip


def _check_target(target: Path, source: Path, *, force: bool) -> None:
    """Raise where nothing can be written, or something would be lost."""
    place = target.absolute()
    if target.name in ("", "..") or place.is_mount():
        raise ConfigError(f"{target} is a mount point, or no name that a folder can be given; name a folder inside")
    if not os.access(place.parent, os.W_OK):
        raise ConfigError(f"cannot write {target}: there is no directory {place.parent}, or it is not writable")
    resolved = target.resolve()
    if resolved == source.resolve() or resolved in source.resolve().parents:
        raise ConfigError(f"{target} is the checkpoint itself, or has it inside; name another folder")
    if not os.path.lexists(place) or (place.is_dir() and not any(place.iterdir())):
        return
    if not force:
        raise ConfigError(f"{target} is there already; name another folder, or add --force to replace a checkpoint")
    if not (place / _CONFIG).is_file():
        raise ConfigError(f"{target} has no {_CONFIG}, so it is no checkpoint and not replaced; name another folder")


def _require_readable(config: EngineConfig, written: LocatedModel) -> None:
    """Raise where the model's adapter refuses the configuration that states rounded weights."""
    try:
        with at_load(config.model.model):
            open_model(config, written).templates.close()
    except CorellmError as error:
        said = str(error).replace(f"{written.path}{os.sep}", "")  # a folder that is gone by then
        raise CheckpointError(
            f"{config.model.model}: a checkpoint of it with rounded weights would not be loaded, so none is written; "
            f"use quantization='int4' when it is loaded ({said})"
        ) from error


def _copy_others(source: Path, made: Path, weights: Sequence[str]) -> Sequence[str]:
    """Copy tokenizer, processor, templates, code and whatever else is there, but for hidden files.

    Return the files that were not copied, beside those of the weights: such as weights in other layouts.
    """
    patterns, of_weights = shutil.ignore_patterns(*_WEIGHTS), {*weights, INDEX, _CONFIG}
    left_out: list[str] = []

    def ignored(folder: str, names: list[str]) -> set[str]:
        shown, place = {name for name in names if not name.startswith(".")}, Path(folder).relative_to(source)
        out = patterns(folder, [*shown])
        written = of_weights if not place.parts else set()
        if not place.parts:  # other engines read all safetensors that are there
            out |= {name for name in shown if name.endswith(".safetensors")}
        left_out.extend(str(place / name) for name in out - written)
        return {*names} - shown | out | written

    shutil.copytree(source, made, dirs_exist_ok=True, ignore=ignored, copy_function=_copy)
    made.chmod(0o777 & ~_umask())  # not the source's, which may be read only, nor the user's alone
    return sorted(left_out)


def _copy(source: str, to: str) -> None:
    """Copy a file's content. Errors say which of both could not be read or written."""
    try:
        shutil.copyfile(source, to)
    except OSError as error:
        if error.filename in (None, to) and not isinstance(error, shutil.SpecialFileError):
            raise
        raise CheckpointError(f"{source} cannot be read: {error.strerror or error}; download it again") from error


@contextmanager
def _naming_the_source(what: object) -> Iterator[None]:
    """Say of errors in the block that the checkpoint itself cannot be read."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{what} cannot be read: {error}; download the checkpoint again") from error


@contextmanager
def _naming_the_target(target: Path) -> Iterator[None]:
    """Say of errors of the system, as of a full disk, what could not be written."""
    try:
        yield
    except shutil.Error as error:  # of a whole folder: one for each of its files
        raise CheckpointError(f"{target} cannot be written: {error.args[0][0][2]}") from error
    except OSError as error:
        raise CheckpointError(f"{target} cannot be written: {error.strerror or error}") from error


def _put(made: Path, target: Path) -> None:
    """Give the finished folder its name, and remove what had it, which gets it back if that fails."""
    if not target.exists():
        made.rename(target)
        return
    with tempfile.TemporaryDirectory(dir=made.parent, prefix=f".{target.name}-replaced-") as aside:
        replaced = Path(aside) / target.name
        try:
            target.rename(replaced)
            made.rename(target)
        finally:
            if not os.path.lexists(target):
                replaced.rename(target)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
