"""A checkpoint on disk: where it is, its configuration, tokenizer and dtype. No weights here.

Every hub call gets the one `revision`; nothing is unpickled; code from the checkpoint runs only with
`trust_remote_code`, which every load passes on.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corellm.config import ModelConfig
from corellm.errors import CheckpointError, ConfigError, MissingExtraError, PluginNotFoundError, install_hint
from corellm.loading.missing_torchvision import way_out
from corellm.loading.remote_code import no_questions
from corellm.modelling.checkpoint_files import read_json
from corellm.plugin.adapters import shipped_checkpoints
from corellm.plugin.extensions import call_extensions, first_result

if TYPE_CHECKING:
    import torch

    from corellm.hookspecs import ModelContext

logger = logging.getLogger(__name__)

_HUB_FILES = ["*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
_HUB_WEIGHTS = ["*.safetensors"]
_HUB_CODE = ["*.py"]
"""Downloaded as well if the checkpoint's code may run."""
_TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_TYPED_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*:.+")
"""Hub names of GGUF files: of a type, or a file."""
_MEDIA_TOKEN = re.compile(r"(image|video|audio|vision)\w*_token_(id|index)$")


def resolve_checkpoint(config: ModelConfig) -> Path:
    """Return the directory: a local one, one that a plugin ships (`demo`), or a snapshot of a hub model.

    Raises:
        CheckpointError: there is none; says what was tried.
        ConfigError: there is an `mmproj`, which it cannot have.
        MissingExtraError: it is in a layout that no installed extension reads.
    """
    local = Path(os.path.expanduser(config.model))  # `Path.expanduser` raises for an unknown user
    if os.path.isfile(local / "config.json"):  # `Path.is_file` raises for names that are too long
        _refuse_mmproj(config)
        return local.resolve()
    shipped = shipped_checkpoints()
    if config.model in shipped:  # also where a directory of that name holds something else
        _refuse_mmproj(config)
        return shipped[config.model]
    is_typed = _TYPED_NAME.fullmatch(config.model) is not None
    if (os.path.exists(local) or is_typed) and (made := _of_other_layout(local, config, is_typed)):
        return made
    if os.path.isdir(local):
        raise CheckpointError(f"{config.model}: this directory has no config.json, so it is no model checkpoint")
    if os.path.exists(local):
        raise CheckpointError(f"{config.model} is a file; give the checkpoint's directory")
    if config.model.startswith((".", "/", "~")) or config.model.count("/") != 1:
        known = ", ".join(sorted(shipped)) or "none"
        raise CheckpointError(
            f"no model {config.model!r}: no such directory or file, not shipped by an installed plugin (those: "
            f"{known}), and not a hub name (owner/name)"
        )
    _refuse_mmproj(config)
    weights = [] if config.load_format == "dummy" else _HUB_WEIGHTS
    found = download(config.model, config.revision, _HUB_FILES + weights + _code(config), what="model")
    if not (found / "config.json").is_file():
        raise CheckpointError(
            f"{config.model}: what came from the hub, or is in its cache, has no config.json; if there are GGUF files, "
            f"name one or its type behind a colon: {config.model}:Q8_0"
        )
    return found


def _refuse_mmproj(config: ModelConfig) -> None:
    if config.mmproj is not None:
        raise ConfigError(
            f"mmproj={config.mmproj!r:.100} goes with a GGUF file; {config.model} is a checkpoint with its encoders: "
            "leave mmproj out"
        )


def _of_other_layout(path: Path, config: ModelConfig, is_typed: bool) -> Path | None:
    """Return the directory that an extension makes of a checkpoint in another layout.

    Raises:
        MissingExtraError: no installed extension reads GGUF files.
    """
    given = {"path": path, "mmproj": config.mmproj, "revision": config.revision}
    found: Path | None = first_result("offer_checkpoint", lambda offer: isinstance(offer, Path), **given)
    if found is None and (is_typed or path.suffix == ".gguf" or any(path.glob("*.gguf"))):
        raise MissingExtraError(f"{path}: GGUF files need {install_hint('quantization')}")
    return found


def resolve_tokenizer(config: ModelConfig, checkpoint: Path) -> Path:
    """Return the tokenizer's directory: the checkpoint's, or that of `tokenizer`, which may be a hub name.

    Raises:
        CheckpointError: there is none; says what was tried.
    """
    if config.tokenizer is None or config.tokenizer == config.model:
        return checkpoint
    local = Path(os.path.expanduser(config.tokenizer))
    if os.path.isdir(local):
        return local.resolve()
    shipped = shipped_checkpoints()
    if config.tokenizer in shipped:
        return shipped[config.tokenizer]
    if config.tokenizer.startswith((".", "/", "~")) or config.tokenizer.count("/") != 1:
        raise CheckpointError(f"no tokenizer {config.tokenizer!r}: no such directory, and not a hub name (owner/name)")
    return download(config.tokenizer, None, _HUB_FILES + _code(config), what="tokenizer")


def _code(config: ModelConfig) -> list[str]:
    return _HUB_CODE if config.trust_remote_code else []


def download(name: str, revision: str | None, wanted: list[str], *, what: str) -> Path:
    """Return a snapshot of what the hub has under a name, from its cache where it is there.

    Args:
        name: `owner/name`.
        revision: None for the newest.
        wanted: patterns of files.
        what: for messages.

    Raises:
        CheckpointError: the hub did not give it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"no {what} {name!r}: no such directory here, and the hub did not give it "
            f"({type(error).__name__}); check the name, the network and your access token"
        ) from error


def read_architectures(path: Path) -> tuple[str, ...]:
    """Return the architectures that a checkpoint's `config.json` names, else its `model_type`.

    Imports no transformers.

    Raises:
        CheckpointError: it is broken, or names neither.
    """
    file = path / "config.json"
    content = read_json(file)
    architectures = content.get("architectures")
    if not architectures and isinstance(content.get("model_type"), str):
        architectures = [content["model_type"]]
    if not isinstance(architectures, list) or not architectures or not all(isinstance(n, str) for n in architectures):
        raise CheckpointError(f"{file} names no architecture, so no adapter can be chosen")
    return tuple(architectures)


def load_hf_config(path: Path, factory: Callable[..., Any] | None = None, *, trust_remote_code: bool) -> Any:
    """Load the checkpoint's transformers configuration: by the adapter's class or function, else `AutoConfig`.

    Raises:
        CheckpointError: it is broken, or it wants to run code that was not allowed.
    """
    from transformers import AutoConfig

    with _explaining(path, "config.json cannot be read", trust_remote_code):
        return _made_by(factory or AutoConfig, path, trust_remote_code)


def load_tokenizer(path: Path, factory: Callable[..., Any] | None = None, *, trust_remote_code: bool) -> Any:
    """Load the checkpoint's tokenizer: by the adapter's class or function, else `AutoTokenizer`.

    Raises:
        CheckpointError: there is none, it is broken, or it wants to run code that was not allowed.
    """
    from transformers import AutoTokenizer

    with _explaining(path, "the tokenizer cannot be loaded", trust_remote_code, needs=_TOKENIZER_FILES):
        return _made_by(factory or AutoTokenizer, path, trust_remote_code)


def load_processor(context: ModelContext, factory: Callable[..., Any] | None, *, own_tokenizer: bool = True) -> Any:
    """Make the checkpoint's processor: by the adapter's class or function, else `AutoProcessor`, made quicker.

    Args:
        context: of the model.
        factory: the adapter's.
        own_tokenizer: whether it keeps the tokenizer it finds in the checkpoint; else it takes the context's.

    Raises:
        CheckpointError: it cannot be made, or it wants to run code that was not allowed.
    """
    from transformers import AutoProcessor

    path, trusted = context.model_path, context.trust_remote_code
    with _explaining(path, "the processor cannot be made", trusted, needs=_PROCESSOR_FILES):
        processor = _made_by(factory or AutoProcessor, path, trusted)
        if not own_tokenizer and hasattr(processor, "tokenizer"):
            processor.tokenizer = context.tokenizer
        list(call_extensions("speed_up_processor", lambda result: result is None, processor=processor))
        return processor


def _made_by(factory: Callable[..., Any], path: Path, trust_remote_code: bool) -> Any:
    """Call `from_pretrained` of a class, or a function, on the checkpoint's directory.

    Pass `trust_remote_code` where it is accepted: without it transformers asks on standard input.
    """
    make = getattr(factory, "from_pretrained", factory)
    takes = inspect.signature(make).parameters
    accepted = "trust_remote_code" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values())
    return make(path, **({"trust_remote_code": trust_remote_code} if accepted else {}))


@contextmanager
def _explaining(path: Path, failure: str, trust_remote_code: bool, needs: Sequence[str] = ()) -> Iterator[None]:
    """Raise errors of libraries as a `CheckpointError` that names the checkpoint; nothing prompts the user.

    Of the files in `needs`, which may be patterns, one must be there; where none is, that is the reason.
    """
    try:
        with no_questions():
            yield
    except (CheckpointError, PluginNotFoundError):
        raise
    except Exception as error:
        reason = way_out(error) or _one_line(error)
        if needs and not any(found for name in needs for found in path.glob(name)):
            reason = f"it has none of the files for it ({', '.join(needs)}); download all files of the checkpoint"
        if "trust_remote_code" in str(error) and not trust_remote_code:
            reason = (
                "it is Python code in the checkpoint, which runs only with trust_remote_code=True "
                "(--trust-remote-code); read that code first, or install a plugin that does without"
            )
        raise CheckpointError(f"{path}: {failure}: {reason}") from error


@contextmanager
def naming_unknown_tokens(context: ModelContext) -> Iterator[None]:
    """Name the media tokens that the tokenizer lacks, where placeholders cannot be made of them.

    Raises:
        CheckpointError: instead of any error inside the block, if there is such a token.
    """
    try:
        yield
    except Exception as error:
        for name, token in vars(context.hf_config).items():
            if _MEDIA_TOKEN.search(name) and isinstance(token, int) and not _has_token(context.tokenizer, token):
                folder = Path(context.tokenizer.name_or_path or context.model_path)
                raise CheckpointError(
                    f"{context.model_path / 'config.json'}: {name} is {token}, a token that the tokenizer "
                    f"({folder / 'tokenizer.json'}) does not have; correct one of the two files, or set "
                    f"hf_overrides={{{name!r}: ...}}"
                ) from error
        raise


def _has_token(tokenizer: Any, token: int) -> bool:
    return 0 <= token < len(tokenizer) and tokenizer.convert_ids_to_tokens(token) is not None


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


def resolve_dtype(name: str, hf_config: Any, device: torch.device) -> torch.dtype:
    """Turn `dtype="auto"` and friends into a torch dtype; auto is the checkpoint's, float32 if it does not say.

    For float16 on a CPU, which is many times slower there, auto takes bfloat16 or float32: what the CPU computes.
    """
    import torch

    from corellm.system.devices import computes_bfloat16

    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    for config in (hf_config, hf_config.get_text_config()):
        stated = getattr(config, "dtype", None)
        if isinstance(stated, torch.dtype) and stated.is_floating_point:
            if device.type != "cpu" or stated != torch.float16:
                return stated
            instead = torch.bfloat16 if computes_bfloat16() else torch.float32
            logger.warning("float16 is slow on CPUs: the checkpoint is run in %s; dtype= decides otherwise", instead)
            return instead
    return torch.float32


def default_max_model_len(hf_config: Any) -> int:
    """Number of positions the text model was trained for; 2048 if the configuration does not say."""
    text_config = hf_config.get_text_config()
    for name in ("max_target_positions", "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(text_config, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return 2048


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
