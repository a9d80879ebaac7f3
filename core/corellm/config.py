"""Engine configuration: frozen dataclasses whose fields are documented, validated once and never changed.

`EngineConfig.from_kwargs` turns the flat keyword arguments of `LLM(...)` and of the command line into these.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, Literal

from corellm.errors import ConfigError
from corellm.fetch_settings import FetchSettings

DTYPES = ("auto", "float32", "bfloat16", "float16")
DTYPE_ALIASES = {"float": "float32", "half": "float16"}
LOAD_FORMATS = ("auto", "safetensors", "dummy")
GENERATION_CONFIGS = ("auto", "none")
DUMMY_OPTIONS = {"image": ("width", "height"), "video": ("num_frames", "width", "height"), "audio": ("length",)}
"""Sizes that `limit_mm_per_prompt` may limit, besides the number of items."""
_PATHS = {"tokenizer": "a directory or a hub name", "mmproj": "a file", "weight_cache": "a folder, auto or none"}
KV_CACHE_DTYPES = ("auto", "int8", "fp8")
QUANTIZATIONS = ("int4", "int8")
ACTIVATION_DTYPES = ("auto", "int8")
MEDIA_FORMATS = (
    "jpeg", "png", "gif", "webp", "bmp", "tiff",
    "mp4", "mkv", "avi", "mpegts",
    "wav", "flac", "ogg", "mp3", "aac",
)  # fmt: skip
"""File formats read by default: images, containers of video and audio (MOV and M4A are "mp4", WebM is "mkv"), audio."""
OPTIONAL_FORMATS = ("avif",)
"""Read where `media_formats` names them: their decoders find out an image's true size while they decode."""

KWARGS_GROUPS: Mapping[str, str] = {"image": "images_kwargs", "video": "videos_kwargs", "audio": "audio_kwargs"}
"""`{modality: the key of mm_processor_kwargs that holds arguments for it alone}`, named as transformers has them."""

_MAX_AUDIO_SECONDS, _MAX_TIMEOUT = 1 << 32, 1 << 20
"""The number of samples stays a number; a socket waits for at most 24 days."""


def kwargs_for(modality: str, mm_processor_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the processor arguments for one modality: those for all and its own."""
    shared = {name: value for name, value in mm_processor_kwargs.items() if name not in KWARGS_GROUPS.values()}
    return shared | dict(mm_processor_kwargs.get(KWARGS_GROUPS.get(modality, ""), {}))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known)) or 'none'}"


def argument_hint(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown argument: the nearest known one, or all of them, and where others' are taken."""
    hint = suggestion(name, known)
    if hint.endswith("?"):
        return hint
    return f"{hint}; scripts written for vLLM run with `from corellm_vllm import LLM` (extensions/vllm)"


def _positive(name: str, value: Any, *, minimum: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name} must be an integer of at least {minimum}, got {value!r}")


def _positive_if_given(config: Any, *names: str) -> None:
    for name in names:
        if (value := getattr(config, name)) is not None:
            _positive(name, value)


def _not_negative(name: str, value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf"):
        raise ConfigError(f"{name} must be a finite number, 0 or more; got {value!r}")


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}; got {value!r}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, in which precision."""

    model: str
    """A directory in the Hugging Face layout, a GGUF file, a hub name (of GGUF files with a type: `owner/name:Q8_0`),
    or a checkpoint that a plugin ships (`demo`)."""
    mmproj: str | None = None
    """GGUF file with the encoder of images, of a model in a GGUF file; None for the one beside it. `none` runs the text
    model alone."""
    revision: str | None = None
    """Branch, tag or commit of a hub model; used for every file."""
    adapter: str | None = None
    """Distribution whose adapter to use, where several claim the architecture (`corellm-llava`)."""
    tokenizer: str | None = None
    """Where the tokenizer is, if not in the checkpoint: a directory, or a hub name (its default branch)."""
    hf_overrides: Mapping[str, Any] | Callable[[Any], Any] | None = None
    """Changes of the checkpoint's configuration: `{"text_config": {"rms_norm_eps": 1e-5}}`, or in Python a function
    that takes the configuration and returns it."""
    load_format: str = "auto"
    """Weights from `safetensors`, which is what `auto` takes, or `dummy` ones: random, to try out speed and memory."""
    generation_config: str = "auto"
    """Requests without sampling parameters: `auto` takes what the checkpoint's `generation_config.json` recommends,
    `none` the defaults of `SamplingParams`."""
    dtype: str = "auto"
    """`auto` takes the checkpoint's, for float16 on a CPU bfloat16 or float32 (whichever the CPU is faster with); or
    float32 (`float`), bfloat16, float16 (`half`), or torch's of that name."""
    quantization: str | None = None
    """`int8` rounds the weights of linear layers to 8 bits when they are loaded: a quarter of float32's memory,
    and on CPUs faster. `int4` rounds them to 4 bits, in groups; it needs `corellm-quantization`."""
    activation_dtype: str = "auto"
    """`int8` rounds inputs of linear layers whose weights are integers to 8 bits, too, each group by its own factor
    (dynamic quantization): prompts and batches take less time on CPUs, and errors are larger."""
    weight_cache: str | None = "auto"
    """Folder in which weights are kept as CPU kernels read them: later starts map these files, and replicas share them.
    `auto` is the user's cache (`$XDG_CACHE_HOME/corellm/weights`, or `~/.cache/corellm/weights`), for models of 64 MiB
    or more; `none` keeps nothing. Files may be deleted at any time."""
    weight_cache_bytes: int = 64 << 30
    """Most bytes of these files together; those used longest ago are deleted. `auto` takes no more than half of what
    would be free on the disk without them."""
    device: str = "auto"
    """`auto` takes the first NVIDIA GPU there is, else the CPU; or `cpu`, `cuda`, `cuda:1`."""
    max_model_len: int | None = None
    """Longest sequence, prompt and output together; None for the length the model was trained for."""
    runner: str = "auto"
    """What the model is run for: `generate` (text) or `pooling` (embeddings, classes, scores, rewards); `auto` follows
    the architecture and a pooling configuration of sentence-transformers."""
    convert: str = "auto"
    """What a model that generates text is made into for pooling: `embed` or `classify`; `none` leaves it as it is,
    `auto` follows the architecture."""
    pooler_config: Mapping[str, Any] | None = None
    """How a pooling model pools, where it should not do as the checkpoint says: `{"pooling_type": "MEAN"}`; the keys
    are the fields of `PoolerConfig`."""
    speculative_config: Mapping[str, Any] | None = None
    """Guess the next tokens and check several in one step, which changes no output: `{"method": "ngram",
    "num_speculative_tokens": 4}`; needs `corellm-speculative`, which documents the keys."""
    enable_lora: bool = False
    """Let requests name LoRA adapters (`lora_request`). Every linear layer of the decoder is made ready for them, which
    takes memory for `max_loras` adapters. Needs `corellm-lora`."""
    max_loras: int = 1
    """Most adapters in a step; requests with others wait. Memory is taken for as many of `max_lora_rank`."""
    max_lora_rank: int = 16
    """Highest rank of an adapter."""
    max_cpu_loras: int | None = None
    """Adapters that are kept in memory after they were read; None for `max_loras`. Others are read again."""
    trust_remote_code: bool = False
    """Run Python code from the checkpoint (configuration, tokenizer, processor). Off: such checkpoints are refused."""
    attention_backend: str | None = None
    """Name of an attention backend; None for the best one on this machine."""
    fuse_layers: bool = True
    """Replace layers of the model by faster ones that were checked to compute the same: on GPUs, and on CPUs with
    compiled kernels."""
    enforce_eager: bool = False
    """Capture no decode steps, on GPUs as CUDA graphs, on CPUs as recorded plans: slower decoding, quicker start."""
    seed: int | None = 0
    """Seed of requests without their own; None for another one at every start."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(f"model must be a directory or a hub name, got {self.model!r}")
        for name, kind in _PATHS.items():
            path = getattr(self, name)
            if isinstance(path, PathLike):
                object.__setattr__(self, name, str(path))
            elif path is not None and (not isinstance(path, str) or not path):
                raise ConfigError(f"{name} must be {kind}, got {path!r:.100}")
        _positive("weight_cache_bytes", self.weight_cache_bytes)
        if not (self.hf_overrides is None or isinstance(self.hf_overrides, Mapping) or callable(self.hf_overrides)):
            raise ConfigError(f"hf_overrides must be a dict or a function, got {self.hf_overrides!r:.100}")
        _one_of("load_format", self.load_format, LOAD_FORMATS)
        if self.generation_config == "vllm":  # what scripts for that engine say
            object.__setattr__(self, "generation_config", "none")
        _one_of("generation_config", self.generation_config, GENERATION_CONFIGS)
        dtype = str(self.dtype).removeprefix("torch.")  # torch's own are known by name
        object.__setattr__(self, "dtype", DTYPE_ALIASES.get(dtype, dtype))
        _one_of("dtype", self.dtype, DTYPES)
        if self.quantization not in (None, *QUANTIZATIONS):
            raise ConfigError(
                f"quantization must be {' or '.join(QUANTIZATIONS)}, which rounds weights when they are loaded, got "
                f"{self.quantization!r:.100}; leave it out for a checkpoint whose weights are quantized"
            )
        _one_of("activation_dtype", self.activation_dtype, ACTIVATION_DTYPES)
        if not (self.speculative_config is None or isinstance(self.speculative_config, Mapping)):
            raise ConfigError(
                f'speculative_config must be like {{"method": "ngram"}}, got {self.speculative_config!r:.100}'
            )
        _positive_if_given(self, "max_model_len")
        for name in ("trust_remote_code", "fuse_layers", "enforce_eager", "enable_lora"):
            _boolean(name, getattr(self, name))
        _positive("max_loras", self.max_loras)
        _positive("max_lora_rank", self.max_lora_rank)
        for name in ("max_loras", "max_lora_rank", "max_cpu_loras"):
            if not self.enable_lora and getattr(self, name) != getattr(type(self), name):
                raise ConfigError(
                    f"{name} needs enable_lora: models that are loaded without take no adapters; set both"
                )
        if self.max_cpu_loras is not None:
            _positive("max_cpu_loras", self.max_cpu_loras, minimum=self.max_loras)
        if not isinstance(self.device, str) or not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")
        if self.seed is not None:
            _positive("seed", self.seed, minimum=-(2**63))


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Tokens per block."""
    kv_cache_memory: int | None = None
    """Bytes for KV blocks; None for what `gpu_memory_utilization` leaves, on the CPU for a share of what is free on the
    machine and within its container's limit."""
    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory to use, including what other processes use: for weights, the largest step and KV blocks.
    CUDA graphs need some of the rest."""
    kv_cache_dtype: str = "auto"
    """Type of keys and values in the cache: `auto` for the model's; int8 or fp8 take half the memory of half precision,
    with a factor for every token and head: on GPUs; int8 also on CPUs with compiled kernels."""
    num_kv_blocks: int | None = None
    """Number of KV blocks; overrides `kv_cache_memory`."""
    swap_space: float = 4.0
    """GiB of host memory for swapped-out blocks; used only with `preemption_mode="swap"`."""
    enable_prefix_caching: bool = True
    """Reuse the KV blocks of equal prefixes."""

    def __post_init__(self) -> None:
        _positive("block_size", self.block_size)
        _positive_if_given(self, "kv_cache_memory", "num_kv_blocks")
        _not_negative("swap_space", self.swap_space)
        _not_negative("gpu_memory_utilization", self.gpu_memory_utilization)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"gpu_memory_utilization must be above 0 and at most 1, got {self.gpu_memory_utilization}"
            )
        _one_of("kv_cache_dtype", self.kv_cache_dtype, KV_CACHE_DTYPES)
        _boolean("enable_prefix_caching", self.enable_prefix_caching)


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What runs together in a step."""

    max_num_seqs: int | None = None
    """Most running sequences; None for 256 on a GPU and 64 on a CPU."""
    max_num_batched_tokens: int | None = None
    """Token budget of a step; None for 8192 on a GPU and 2048 on a CPU (without chunked prefill at least
    `max_model_len`)."""
    enable_chunked_prefill: bool = True
    """Split long prompts over steps, decodes first; without it, waiting prompts run first, each in one step."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """First come first served, or by `priority` (lower first)."""
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    """Whether a preempted sequence's KV is dropped and computed again, or swapped to host memory."""
    encoder_cache_size: int | None = None
    """Most embeddings of items that are kept, and that a step computes; never less than the largest item, or than the
    longest span of tokens that see each other; None for the token budget of a step; on a CPU as many are kept as the KV
    cache has tokens."""

    def __post_init__(self) -> None:
        _positive_if_given(self, "max_num_seqs", "max_num_batched_tokens")
        if self.encoder_cache_size is not None:
            _positive("encoder_cache_size", self.encoder_cache_size, minimum=0)
        _boolean("enable_chunked_prefill", self.enable_chunked_prefill)
        _one_of("scheduling_policy", self.scheduling_policy, ("fcfs", "priority"))
        _one_of("preemption_mode", self.preemption_mode, ("recompute", "swap"))


@dataclass(frozen=True, kw_only=True)
class MultiModalConfig:
    """Items: how many, how they are processed, and how much of that is cached."""

    limit_mm_per_prompt: Mapping[str, int | Mapping[str, int]] = field(default_factory=dict)
    """`{modality: most items per prompt}`; a modality not named has the model's own limit. Or, to plan memory for
    smaller items than the largest possible, `{"image": {"count": 2, "width": 512, "height": 512}}`, of a video also
    `num_frames`, of audio `length` in samples; larger ones are served where they fit."""
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for the model's processor, for every request; a request's own override them one by one. The keys
    `images_kwargs`, `videos_kwargs` and `audio_kwargs` hold those for one modality."""
    mm_processor_cache_gb: float = 1.0
    """GiB of processed items kept by content hash; 0 for none."""
    max_image_pixels: int = 89_478_485
    """Images whose headers declare more pixels are refused before they are decoded."""
    max_video_pixels: int = 33_177_600
    """Videos whose frames have more pixels each are refused before they are decoded (the default is 8K)."""
    max_video_frames: int = 768
    """Most frames of one video that a processor gets; longer videos are sampled."""
    max_video_decoded_pixels: int = 1 << 36
    """Most pixels decoded from one video, counting frames that are decoded only to reach others. The default allows 10
    minutes of 1080p at 30 frames per second; GIFs get a 128th of it, because their pixels take longer."""
    max_video_bytes: int = 1 << 29
    """Bytes of one video held in memory: of its file, or of its frames where all are needed at once."""
    max_audio_seconds: float = 600.0
    """Longer audio is refused while it is decoded. Ten minutes take 38 MB at 16 kHz, and a second or two to decode; a
    model may use less of it."""
    media_formats: Collection[str] = MEDIA_FORMATS
    """File formats that are accepted, known by their first bytes; by default all but `avif`. Arrays and opened images
    always are."""
    media_workers: int | None = None
    """Processes that decode files, each with a limit on its memory; None for one per core, at most 4. 0 decodes in the
    engine's process, for debuggers: then `media_timeout` does not hold."""
    media_timeout: float = 10.0
    """Seconds that decoding an image or audio file, opening a video or decoding its next frames may take; also how long
    to wait for a free process."""

    def __post_init__(self) -> None:
        if not isinstance(self.limit_mm_per_prompt, Mapping):
            raise ConfigError(f'limit_mm_per_prompt must be like {{"image": 4}}, got {self.limit_mm_per_prompt!r}')
        for modality, limit in self.limit_mm_per_prompt.items():
            name = f"limit_mm_per_prompt[{modality!r}]"
            if not isinstance(limit, Mapping):
                _positive(name, limit, minimum=0)
                continue
            known = ("count", *DUMMY_OPTIONS.get(modality, ()))
            for option, value in limit.items():
                if option not in known:
                    raise ConfigError(f"{name} has no {option!r}{suggestion(str(option), known)}")
                _positive(f"{name}[{option!r}]", value, minimum=0 if option == "count" else 1)
        if not isinstance(self.mm_processor_kwargs, Mapping):
            raise ConfigError(f"mm_processor_kwargs must be a dict, got {self.mm_processor_kwargs!r}")
        for group in KWARGS_GROUPS.values():
            if not isinstance(self.mm_processor_kwargs.get(group, {}), Mapping):
                raise ConfigError(
                    f"mm_processor_kwargs[{group!r}] must be a dict, got {self.mm_processor_kwargs[group]!r}"
                )
        _not_negative("mm_processor_cache_gb", self.mm_processor_cache_gb)
        _positive("max_image_pixels", self.max_image_pixels)
        for name in ("max_video_pixels", "max_video_frames", "max_video_decoded_pixels", "max_video_bytes"):
            _positive(name, getattr(self, name))
        if not isinstance(self.media_formats, (list, tuple, set, frozenset)):
            raise ConfigError(f'media_formats must be a list like ["jpeg", "png"], got {self.media_formats!r}')
        if self.media_workers is not None:
            _positive("media_workers", self.media_workers, minimum=0)
        for name, most in (("max_audio_seconds", _MAX_AUDIO_SECONDS), ("media_timeout", _MAX_TIMEOUT)):
            _not_negative(name, getattr(self, name))
            if getattr(self, name) > most:
                raise ConfigError(f"{name} must be at most {most}, got {getattr(self, name)!r}")
        for name in self.media_formats:
            known_formats = (*MEDIA_FORMATS, *OPTIONAL_FORMATS)
            if name not in known_formats:
                raise ConfigError(f"unknown media format {name!r}; known: {', '.join(known_formats)}")

    @property
    def item_limits(self) -> dict[str, int]:
        """Return `{modality: most items per prompt}` for modalities with a limit."""
        given = self.limit_mm_per_prompt.items()
        counts = ((modality, limit.get("count") if isinstance(limit, Mapping) else limit) for modality, limit in given)
        return {modality: count for modality, count in counts if count is not None}

    @property
    def dummy_options(self) -> dict[str, dict[str, int]]:
        """Return `{modality: {"width": ..., ...}}`: the operator's limits on the sizes for which memory is planned."""
        return {
            modality: {option: value for option, value in limit.items() if option != "count"}
            for modality, limit in self.limit_mm_per_prompt.items()
            if isinstance(limit, Mapping)
        }


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The whole configuration of one engine."""

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    multimodal: MultiModalConfig = field(default_factory=MultiModalConfig)
    fetching: FetchSettings = field(default_factory=FetchSettings)

    @classmethod
    def from_kwargs(cls, *, model: Any = None, **kwargs: Any) -> EngineConfig:
        """Return a configuration from flat keyword arguments.

        None stands for the default of fields that do not take None.

        Raises:
            ConfigError: an unknown argument (with the nearest known one), or a value out of range.
        """
        rooms = {
            "model": ModelConfig,
            "cache": CacheConfig,
            "scheduler": SchedulerConfig,
            "multimodal": MultiModalConfig,
            "fetching": FetchSettings,
        }
        known = {f.name: (room, f) for room, config in rooms.items() for f in fields(config)}
        chosen: dict[str, dict[str, Any]] = {room: {} for room in rooms}
        chosen["model"]["model"] = os.fspath(model) if isinstance(model, os.PathLike) else model
        for name, value in kwargs.items():
            if name not in known:
                raise ConfigError(f"unknown engine argument {name!r}{argument_hint(name, known)}")
            room, configured = known[name]
            if value is not None or "None" in str(configured.type):
                chosen[room][name] = value
        return cls(**{room: config(**chosen[room]) for room, config in rooms.items()})
