"""A directory in the Hugging Face layout for a GGUF file: configuration, tokenizer, processor. Weights stay there.

Configuration and tokenizer are what transformers makes of the file, with what it leaves out. The directory is made
once for a file and kept in the user's cache: to make a tokenizer takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf.constants import GGMLQuantizationType

import corellm
from corellm.errors import CheckpointError
from corellm.system.cache_folder import cache_folder
from corellm_quantization.gguf.file import GgufFile, read_file, state_of
from corellm_quantization.gguf.rope import rope_parameters
from corellm_quantization.gguf.tower import add_tower

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger(__name__)

NO_TOWER = "none"
"""Value of `mmproj` for a text model alone."""
_UNFINISHED, _LONGEST = ".unfinished-", 3600
"""How names of directories begin in which one is made, and after how many seconds none is any longer."""
_TOWERS = "*mmproj*.gguf"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
"""Names of parts of a file."""
_GEMMA_3_SCALARS = {62: 168}
"""`query_pre_attn_scalar` of Gemma 3 by number of layers, where it is not the width of a head; files do not say."""
_SAME_FOR_TEXTS = {"qwen2vl": "qwen2"}
"""Architectures that transformers does not read, and those that compute the same without images."""


def make_checkpoint(path: Path, mmproj: str | None) -> Path:
    """Return a directory for a GGUF file, or for the one in a directory.

    Args:
        path: of it, or of one of its parts.
        mmproj: the tower's file; `none` for none, None for the one in the same directory.

    Raises:
        CheckpointError: a file cannot be read, or does not fit; there are several, and none was named.
    """
    named = _text_files(path)
    files, tower = [part.resolve() for part in named], _tower_file(named[0], mmproj)
    folder = cache_folder("gguf") / _key([files] if tower is None else [files, [tower]])
    if not (folder / "config.json").is_file():
        header = read_file(files)
        if header.architecture == "clip":
            raise CheckpointError(f"{header.path} is an encoder alone: name the model's file, and this one with mmproj")
        header.count(f"{header.architecture}.block_count")  # transformers would make any number of layers
        try:
            _make(folder, header, None if tower is None else read_file([tower]))
        except OSError as error:
            raise CheckpointError(
                f"{header.path}: its configuration and tokenizer cannot be kept in {folder} ({error}); remove what is "
                f"there, or set XDG_CACHE_HOME to a directory that can be written"
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
        file.require_state(state_of(*file.paths))  # transformers has read it by its name
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


def _key(files: list[list[Path]]) -> str:
    """Return what tells apart files, each of one or more parts, and what is made of them."""
    import transformers

    stats = [[*map(str, parts), *state_of(*parts)] for parts in files]
    versions = [module.__version__ for module in (corellm, transformers)]
    return hashlib.sha256(json.dumps([stats, versions]).encode()).hexdigest()[:32]


def _text_files(path: Path) -> list[Path]:
    """Return the parts of the file that is meant, in their order; of most files, one."""
    if not path.is_dir():
        return parts_of(path, os.path.isfile)
    towers = {*path.glob(_TOWERS)}
    found = files_of({*path.glob("*.gguf")} - towers, os.path.isfile)
    if len(found) != 1:
        names = ", ".join(parts[0].name for parts in found[:9])
        raise CheckpointError(f"{path} has {len(found)} GGUF files of models ({names}); name one of them")
    return found[0]


def files_of(names: Iterable[Path], is_there: Callable[[Path], bool]) -> list[list[Path]]:
    """Return the parts of each file of which one is named, in the order of their names.

    Raises:
        CheckpointError: a part is not there.
    """
    found = dict[Path, list[Path]]()
    for name in sorted(names):
        if name not in found:  # a file may have thousands of parts
            found |= dict.fromkeys(parts := parts_of(name, is_there), parts)
    return [parts for name, parts in found.items() if name == parts[0]]


def parts_of(file: Path, is_there: Callable[[Path], bool]) -> list[Path]:
    """Return a file's parts, of which the name of one tells the others; most files are their only one.

    Raises:
        CheckpointError: one is not there.
    """
    named = _PART.fullmatch(file.name)
    if named is None or not 0 < int(named[2]) <= int(named[3]):
        return [file]
    parts = [file.with_name(f"{named[1]}-{number:05}-of-{named[3]}.gguf") for number in range(1, int(named[3]) + 1)]
    for part in parts:
        if not is_there(part):
            raise CheckpointError(f"{file} is one of {len(parts)} parts, and {part.name} is not beside it")
    return parts


def _tower_file(file: Path, mmproj: str | None) -> Path | None:
    """Return the encoder's file; it is beside the name of the text model's, whose bytes may be stored elsewhere."""
    if mmproj == NO_TOWER:
        return None
    if mmproj is not None:
        named = Path(mmproj).expanduser()
        if not os.path.isfile(named):  # `Path.is_file` raises for names that are too long
            raise CheckpointError(f"mmproj: there is no file {mmproj!r:.300}")
        return named.resolve()
    found = sorted(other for other in file.parent.glob(_TOWERS) if other.resolve() != file.resolve())
    if len(found) > 1:
        names = ", ".join(other.name for other in found[:9])
        raise CheckpointError(f"{file.parent} has several encoders ({names}); name one with mmproj, or `{NO_TOWER}`")
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
    tokenizer.save_pretrained(folder)
    if tower is not None:
        config = add_tower(folder, config, tokenizer, file, tower)
    config.quantization_config = {
        "quant_method": "gguf",
        "files": [[*map(str, header.paths)] for header in (file, tower) if header is not None],
        "states": [header.state for header in (file, tower) if header is not None],
    }
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
    if "output.weight" in file.tensors and len(file.paths) > 1:
        config.tie_word_embeddings = False  # of parts, transformers has read the first
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.dtype = _dtype(file)
    for name, tensor in (("attention_bias", "blk.0.attn_q.bias"), ("mlp_bias", "blk.0.ffn_up.bias")):
        if hasattr(config, name):
            setattr(config, name, tensor in file.tensors)
    if config.model_type == "gemma3_text":
        config.query_pre_attn_scalar = _GEMMA_3_SCALARS.get(config.num_hidden_layers, config.head_dim)
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
