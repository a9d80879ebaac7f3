"""A checkpoint on disk: where it is, its configuration, tokenizer and dtype. No weights here.

Every hub call gets the one `revision`; nothing is unpickled; code from the checkpoint runs only when the operator
said so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.config import ModelConfig
from corellm.errors import CheckpointError, ConfigError
from corellm.multimodal.pixel_values import quicken
from corellm.plugin.adapters import shipped_checkpoints

if TYPE_CHECKING:
    import torch

    from corellm.hookspecs import ModelContext

_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]


def resolve_checkpoint(config: ModelConfig) -> Path:
    """Find the directory: a local one, one that a plugin ships (`demo`), or a snapshot of a hub model.

    Raises:
        CheckpointError: there is none; says what was tried.
    """
    local = Path(config.model).expanduser()
    if (local / "config.json").is_file():
        return local.resolve()
    shipped = shipped_checkpoints()
    if config.model in shipped:  # also where a directory of that name holds something else
        return shipped[config.model]
    if local.is_dir():
        raise CheckpointError(f"{config.model}: this directory has no config.json, so it is no model checkpoint")
    if local.exists():
        raise CheckpointError(f"{config.model} is a file; give the checkpoint's directory")
    if config.model.startswith((".", "/", "~")) or config.model.count("/") != 1:
        known = ", ".join(sorted(shipped)) or "none"
        raise CheckpointError(
            f"no model {config.model!r}: no such directory, not shipped by an installed plugin (those: {known}), "
            f"and not a hub name (owner/name)"
        )
    return _download(config)


def _download(config: ModelConfig) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(config.model, revision=config.revision, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"no model {config.model!r}: no such directory here, and the hub did not give it "
            f"({type(error).__name__}); check the name, the network and your access token"
        ) from error


def read_architectures(path: Path) -> tuple[str, ...]:
    """The architectures that a checkpoint's `config.json` names, without importing transformers.

    Raises:
        CheckpointError: it is broken, or names none.
    """
    file = path / "config.json"
    try:
        architectures = tuple(json.loads(file.read_text(encoding="utf-8")).get("architectures") or ())
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{file}: not a readable JSON object ({error})") from error
    if not architectures or not all(isinstance(name, str) for name in architectures):
        raise CheckpointError(f"{file} names no architecture, so no adapter can be chosen")
    return architectures


def load_hf_config(path: Path, factory: Callable[..., Any] | None = None, *, trust_remote_code: bool) -> Any:
    """Load the checkpoint's transformers configuration: by the adapter's class or function, else `AutoConfig`.

    Raises:
        CheckpointError: it is broken, or it wants to run code that was not allowed.
    """
    from transformers import AutoConfig

    try:
        if factory is not None:
            return _made_by(factory, path)
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path / 'config.json'}: {_first_line(error)}") from error


def load_tokenizer(path: Path, factory: Callable[..., Any] | None = None, *, trust_remote_code: bool) -> Any:
    """Load the checkpoint's tokenizer: by the adapter's class or function, else `AutoTokenizer`.

    Raises:
        CheckpointError: there is none, or it is broken.
    """
    from transformers import AutoTokenizer

    try:
        if factory is not None:
            return _made_by(factory, path)
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path}: the tokenizer cannot be loaded: {_first_line(error)}") from error


def load_processor(context: ModelContext, factory: Callable[..., Any] | None) -> Any:
    """Make the checkpoint's processor: by the adapter's class or function, else `AutoProcessor`, made quicker.

    Raises:
        CheckpointError: it cannot be made.
    """
    from transformers import AutoProcessor

    try:
        processor = _made_by(factory or AutoProcessor, context.model_path)
        quicken(processor)
        return processor
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{context.model_path}: the processor cannot be made: {_first_line(error)}") from error


def _made_by(factory: Callable[..., Any], path: Path) -> Any:
    """What a class with `from_pretrained`, or a function of the checkpoint's directory, makes of it."""
    return getattr(factory, "from_pretrained", factory)(path)


def resolve_device(name: str) -> torch.device:
    """Turn `device="auto"` and friends into a torch device; auto is the first NVIDIA GPU, if torch sees one.

    Raises:
        ConfigError: there is no such GPU.
    """
    import torch

    count = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda", 0) if count else torch.device("cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= count:
        seen = f"{count or 'no'} NVIDIA GPU{'' if count == 1 else 's'}"
        raise ConfigError(
            f"device={name!r}: torch {torch.__version__} sees {seen} here; leave it out, or install a CUDA build of "
            f"torch and its driver"
        )
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def resolve_dtype(name: str, hf_config: Any) -> torch.dtype:
    """Turn `dtype="auto"` and friends into a torch dtype; auto is the checkpoint's, float32 if it does not say."""
    import torch

    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    for config in (hf_config, hf_config.get_text_config()):
        stated = getattr(config, "dtype", None)
        if isinstance(stated, torch.dtype) and stated.is_floating_point:
            return stated
    return torch.float32


def default_max_model_len(hf_config: Any) -> int:
    """How many positions the text model was trained for; 2048 where the configuration does not say."""
    text_config = hf_config.get_text_config()
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(text_config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 2048


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
