"""Where a head on a model's hidden states is, and whether it is of a published layout: EAGLE's, or that of EAGLE-3.

Read from `config.json` and the headers of weights, before any weight is. Imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from corellm.config import ModelConfig
from corellm.errors import CheckpointError, ConfigError
from corellm.loading.checkpoint import resolve_checkpoint
from corellm.modelling.checkpoint_files import check_files, read_json, require_weights
from corellm_speculative.draft_checkpoint import draft_config
from corellm_speculative.settings import EAGLE3, DraftSettings

_LEFT_OUT = {"eagle": ("embed_tokens.weight", "lm_head.weight"), EAGLE3: ("t2d",)}
"""Tensors that are not read: EAGLE has the model's own embeddings and output layer; `t2d` says what `d2t` does."""
_NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_OPTIONAL = ("num_hidden_layers", "num_key_value_heads", "head_dim", "draft_vocab_size", "target_hidden_size")


@dataclass(frozen=True)
class HeadCheckpoint:
    """A head on disk, whose tensors' names and shapes are those of its layout."""

    path: Path
    config: Mapping[str, Any]
    """Configuration of its layers, which are Llama's."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the tensors that are read, by name."""
    files: Mapping[str, tuple[Path, str]]
    """File of each, and the name that it has there."""
    model_width: int
    """Hidden size of the model that it is for."""
    layers: tuple[int, ...] | None
    """Layers of the model whose inputs an EAGLE-3 head reads; None for the usual ones."""

    @property
    def hidden_size(self) -> int:
        """Width of its rows."""
        width: int = self.config["hidden_size"]
        return width

    @property
    def num_layers(self) -> int:
        """Number of its layers."""
        count: int = self.config.get("num_hidden_layers") or 1
        return count


def locate_head(config: ModelConfig, settings: DraftSettings, model_path: Path) -> HeadCheckpoint:
    """Return a head's checkpoint.

    Args:
        config, model_path: of the model.
        settings: of drafts.

    Raises:
        CheckpointError, ConfigError: what is wrong with it, or why it is not for this model.
    """
    name = f"speculative_config: the head {settings.model}"
    try:
        path = resolve_checkpoint(draft_config(config, settings))
        check_files(path)
        require_weights(path)
        stated = _layers_config(read_json(path / "config.json"), name)
    except CheckpointError as error:
        raise CheckpointError(f"{name}: {error}") from error
    found = dict(_tensors(path, settings.method))
    _refuse_other_method(found, settings.method, name)
    width: int = stated.get("target_hidden_size") or stated["hidden_size"]
    expected = _expected(stated, width, settings.method, name)
    shapes = {tensor: shape for tensor, (shape, *_) in found.items()}
    _check_shapes(shapes, expected, name)
    _check_model(stated, width, model_path, settings.method, name)
    files = {tensor: (file, there) for tensor, (_, file, there) in found.items()}
    return HeadCheckpoint(path, stated, shapes, files, width, _layer_ids(stated, name))


def _layers_config(stated: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the configuration of the head's layers, which some publish inside that of the head.

    Raises:
        ConfigError: they are no layers that are known.
    """
    inner = stated.get("transformer_layer_config")
    stated = {**inner, **stated, "model_type": inner.get("model_type")} if isinstance(inner, dict) else dict(stated)
    if (kind := stated.get("model_type")) != "llama":
        raise ConfigError(f"{name} has layers of the type {kind!r:.100}; heads with Llama's layers are read (llama)")
    for key in (*_NEEDED, *_OPTIONAL):
        if (value := stated.get(key)) is None and key in _OPTIONAL:
            continue
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: {key} in config.json must be a number of at least 1, got {value!r:.100}")
    return stated


def _tensors(path: Path, method: str) -> Iterator[tuple[str, tuple[tuple[int, ...], Path, str]]]:
    """Yield each tensor that is read: its name in the layout, its shape, its file, its name there."""
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            for there in opened.keys():  # noqa: SIM118 - it is no dictionary
                tensor = there.removeprefix("model.")
                if method == EAGLE3 and tensor.startswith("layers.0."):
                    tensor = tensor.replace("layers.0.", "midlayer.")
                if tensor not in _LEFT_OUT[method] and not tensor.endswith("rotary_emb.inv_freq"):
                    yield tensor, (tuple(opened.get_slice(there).get_shape()), file, there)


def _refuse_other_method(found: Mapping[str, Any], method: str, name: str) -> None:
    is_eagle3 = any(tensor.endswith(".hidden_norm.weight") for tensor in found)
    if is_eagle3 != (method == EAGLE3):
        other = EAGLE3 if is_eagle3 else "eagle"
        raise ConfigError(f"{name} is one of the method {other!r}, not {method!r}; say method={other!r}")


def _expected(
    config: Mapping[str, Any], model_width: int, method: str, name: str
) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return the shapes of a layout's tensors, and whether each must be there.

    Raises:
        ConfigError: the layout has more layers than are read.
    """
    width = config["hidden_size"]
    expected: dict[str, tuple[tuple[int, ...], bool]] = {}

    def matrix(module: str, rows: int, columns: int) -> None:
        expected[f"{module}.weight"], expected[f"{module}.bias"] = ((rows, columns), True), ((rows,), False)

    def layer(prefix: str, inputs: int, norms: tuple[str, ...]) -> None:
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or width // heads
        key_heads, inner = config.get("num_key_value_heads") or heads, config["intermediate_size"]
        for part, count in (("q_proj", heads), ("k_proj", key_heads), ("v_proj", key_heads)):
            matrix(f"{prefix}.self_attn.{part}", count * size, inputs)
        matrix(f"{prefix}.self_attn.o_proj", width, heads * size)
        matrix(f"{prefix}.mlp.gate_proj", inner, width)
        matrix(f"{prefix}.mlp.up_proj", inner, width)
        matrix(f"{prefix}.mlp.down_proj", width, inner)
        expected.update({f"{prefix}.{norm}.weight": ((width,), True) for norm in norms})

    num_layers = config.get("num_hidden_layers") or 1
    if method == EAGLE3:
        if num_layers > 1:
            raise ConfigError(f"{name} has {num_layers} layers; heads of EAGLE-3 with one are read")
        matrix("fc", width, 3 * model_width)
        layer("midlayer", 2 * width, ("input_layernorm", "hidden_norm", "post_attention_layernorm"))
        num_drafted = config.get("draft_vocab_size") or config["vocab_size"]
        expected["norm.weight"] = (width,), True
        expected["lm_head.weight"] = (num_drafted, width), True
        expected["d2t"] = (num_drafted,), num_drafted != config["vocab_size"]
        expected["embed_tokens.weight"] = (config["vocab_size"], width), False
        return expected
    matrix("fc", width, 2 * width)
    for index in range(num_layers):
        norms = ("post_attention_layernorm",) if index == 0 else ("input_layernorm", "post_attention_layernorm")
        layer(f"layers.{index}", width, norms)
    return expected


def _check_shapes(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[tuple[int, ...], bool]], name: str
) -> None:
    """Raise if a tensor is missing, not known, or of another shape."""
    for tensor, (shape, is_needed) in expected.items():
        if is_needed and tensor not in found:
            raise ConfigError(f"{name} lacks {tensor} {list(shape)}; its layout is not one that is known")
        if tensor in found and found[tensor] != shape:
            raise ConfigError(f"{name}: {tensor} is {list(found[tensor])}, and by config.json {list(shape)}")
    if others := sorted(found.keys() - expected.keys()):
        raise ConfigError(
            f"{name} has {others[0]}, which heads of its layout do not have; it is not known what it does"
        )


def _check_model(config: Mapping[str, Any], width: int, model_path: Path, method: str, name: str) -> None:
    """Raise if the model's configuration says that the head is for another one."""
    whole = read_json(model_path / "config.json")
    text = whole.get("text_config")
    model = {**whole, **text} if isinstance(text, dict) else whole
    for key, wanted in (("hidden_size", width), ("vocab_size", config["vocab_size"])):
        stated = model.get(key)
        if isinstance(stated, int) and stated != wanted:
            raise ConfigError(f"{name} is for a model with {key} {wanted}, and this one has {stated}; take one for it")
    if method != EAGLE3 and width != config["hidden_size"]:
        raise ConfigError(f"{name} is {config['hidden_size']} wide and its model {width}, which only EAGLE-3's can be")


def _layer_ids(config: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """Return the layers whose inputs a head of EAGLE-3 reads, if it states them."""
    inner = config.get("eagle_config")
    key = "eagle_aux_hidden_state_layer_ids"
    stated = (inner.get(key) if isinstance(inner, dict) else None) or config.get(key)
    if stated is None:
        return None
    if not isinstance(stated, list) or len(stated) != 3 or not all(isinstance(index, int) for index in stated):
        raise ConfigError(f"{name}: {key} must be three numbers of layers, got {stated!r:.100}")
    return tuple(stated)
