"""A directory in the Hugging Face layout for a GGUF file: configuration, tokenizer, processor. Weights stay there.

Configuration and tokenizer are what transformers makes of the file, with what it leaves out. The directory is made
once for a file and kept in the user's cache: to make a tokenizer takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf.constants import GGMLQuantizationType

import corellm
from corellm.errors import CheckpointError
from corellm_quantization.gguf.file import GgufFile, read_header, state_of
from corellm_quantization.gguf.rope import rope_parameters
from corellm_quantization.gguf.tower import add_tower

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger(__name__)

_NONE = "none"
_UNFINISHED, _LONGEST = ".unfinished-", 3600
"""How names of directories begin in which one is made, and after how many seconds none is any longer."""
_TOWERS = "*mmproj*.gguf"
_SAME_FOR_TEXTS = {"qwen2vl": "qwen2"}
"""Architectures that transformers does not read, and those that compute the same without images."""


def make_checkpoint(path: Path, mmproj: str | None) -> Path:
    """Return a directory for a GGUF file, or for the one in a directory.

    Args:
        path: of it.
        mmproj: the tower's file; `none` for none, None for the one in the same directory.

    Raises:
        CheckpointError: a file cannot be read, or does not fit; there are several, and none was named.
    """
    named = _text_file(path)
    file, tower = named.resolve(), _tower_file(named, mmproj)
    folder = _folder() / _key([file] if tower is None else [file, tower])
    if not (folder / "config.json").is_file():
        header = read_header(file)
        if (split := header.value("split.count", int, default=0)) > 1:
            raise CheckpointError(f"{file} is one of {split} parts; join them first (llama-gguf-split --merge)")
        if header.architecture == "clip":
            raise CheckpointError(f"{file} is an encoder alone: name the model's file, and this one with mmproj")
        header.count(f"{header.architecture}.block_count")  # transformers would make any number of layers
        try:
            _make(folder, header, None if tower is None else read_header(tower))
        except OSError as error:
            raise CheckpointError(
                f"{file}: its configuration and tokenizer cannot be kept in {folder} ({error}); remove what is there, "
                f"or set XDG_CACHE_HOME to a directory that can be written"
            ) from error
    return folder


def _make(folder: Path, file: GgufFile, tower: GgufFile | None) -> None:
    """Write a checkpoint that is there as a whole, or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{_UNFINISHED}*"):  # of processes that were killed
        with suppress(FileNotFoundError):
            if left.stat().st_mtime < time.time() - _LONGEST:
                shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=_UNFINISHED))
    try:
        _write(made, file, tower)
        file.require_state(state_of(file.path))  # transformers has read it by its name
        _put(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _require_tokenizers() -> None:
    """Raise where transformers makes other tokens of a file than the model was trained with."""
    import transformers
    from transformers.integrations.gguf import gguf_tokenizer_mapping as tokenizers

    if not hasattr(tokenizers, "GGUF_TOKENIZER_TYPES"):  # those before know architectures instead
        raise CheckpointError(
            f"transformers {transformers.__version__} makes wrong tokenizers of GGUF files; install a newer one "
            f"(tested: 5.24)"
        )


def _put(made: Path, folder: Path) -> None:
    """Give a directory its name; one that another process made meanwhile is as good."""
    try:
        made.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return Path(cache or Path.home() / ".cache") / "corellm" / "gguf"


def _key(files: list[Path]) -> str:
    """Return what tells apart files, and what is made of them."""
    import transformers

    stats = [(str(file), *state_of(file)) for file in files]
    versions = [module.__version__ for module in (corellm, transformers)]
    return hashlib.sha256(json.dumps([stats, versions]).encode()).hexdigest()[:32]


def _text_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    towers = {*path.glob(_TOWERS)}
    found = sorted(file for file in path.glob("*.gguf") if file not in towers)
    if len(found) != 1:
        names = ", ".join(file.name for file in found[:9])
        raise CheckpointError(f"{path} has {len(found)} GGUF files of models ({names}); name one of them")
    return found[0]


def _tower_file(file: Path, mmproj: str | None) -> Path | None:
    """Return the encoder's file; it is beside the name of the text model's, whose bytes may be stored elsewhere."""
    if mmproj == _NONE:
        return None
    if mmproj is not None:
        named = Path(mmproj).expanduser()
        if not os.path.isfile(named):  # `Path.is_file` raises for names that are too long
            raise CheckpointError(f"mmproj: there is no file {mmproj!r:.300}")
        return named.resolve()
    found = sorted(other for other in file.parent.glob(_TOWERS) if other.resolve() != file.resolve())
    if len(found) > 1:
        names = ", ".join(other.name for other in found[:9])
        raise CheckpointError(f"{file.parent} has several encoders ({names}); name one with mmproj, or `{_NONE}`")
    return found[0].resolve() if found else None


def _write(folder: Path, file: GgufFile, tower: GgufFile | None) -> None:
    """Write the files of a checkpoint."""
    from safetensors.torch import save_file

    _require_tokenizers()
    try:
        config, tokenizer = _configuration(file), _tokenizer(file)
    except CheckpointError:
        raise
    except Exception as error:  # of transformers, for whatever a file lacks
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise CheckpointError(f"{file.path}: transformers cannot use this file: {reason}") from error
    if tower is not None:
        config = add_tower(folder, config, tokenizer, file, tower)
    config.quantization_config = {
        "quant_method": "gguf", "model": str(file.path), "mmproj": None if tower is None else str(tower.path),
        "states": [header.state for header in (file, tower) if header is not None],
    }  # fmt: skip
    tokenizer.save_pretrained(folder)
    save_file({}, folder / "model.safetensors")  # what is looked for; the configuration says where the weights are
    (folder / "generation_config.json").write_text(json.dumps(_generation(file)))
    config.save_pretrained(folder)
    logger.info("%s: configuration and tokenizer are kept in %s", file.path, folder.parent)


def _configuration(file: GgufFile) -> PreTrainedConfig:
    """Return the text model's configuration."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = _as_transformers(file)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path} has no token_embd.weight: no model that generates text")
    config.vocab_size = embedding.shape[0]
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.dtype = _dtype(file)
    for name, tensor in (("attention_bias", "blk.0.attn_q.bias"), ("mlp_bias", "blk.0.ffn_up.bias")):
        if hasattr(config, name):
            setattr(config, name, tensor in file.tensors)
    if (changed := rope_parameters(file, config)) is not None:
        config.rope_parameters = changed
    return config


def _as_transformers(file: GgufFile) -> PreTrainedConfig:
    """Return the configuration that transformers makes of the file, or of one that is the same for texts."""
    from transformers import AutoConfig
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    if (same := _SAME_FOR_TEXTS.get(file.architecture)) is None:
        return AutoConfig.from_pretrained(file.path.parent, gguf_file=file.path.name)
    places = {f"{file.architecture}.{key}": place for key, place in GGUF_CONFIG_MAPPING[same].items() if place}
    stated = {place: file.stated[key] for key, place in places.items() if key in file.stated}
    return AutoConfig.for_model(same, tie_word_embeddings="output.weight" not in file.tensors, **stated)


def _dtype(file: GgufFile) -> str:
    """Return the type that the file's matrices are in; float16 where they are in integers."""
    kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if kinds <= {GGMLQuantizationType.F32}:
        return "float32"
    return "bfloat16" if kinds <= {GGMLQuantizationType.F32, GGMLQuantizationType.BF16} else "float16"


def _tokenizer(file: GgufFile) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(file.path.parent, gguf_file=file.path.name)


def _generation(file: GgufFile) -> Mapping[str, Any]:
    """Return the ids of special tokens: a turn may end with another token than a text."""
    key = "tokenizer.ggml.{}_token_id".format
    ends = [file.stated[key(name)] for name in ("eos", "eot", "eom") if key(name) in file.stated]
    others = {f"{name}_token_id": file.stated.get(key(stated)) for name, stated in (("bos", "bos"), ("pad", "padding"))}
    return {"eos_token_id": [*dict.fromkeys(ends)] or None, **others}
