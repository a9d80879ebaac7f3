"""Builds the pooler of a loaded model: which heads its tasks have, and where their weights come from.

Knows the configuration and the checkpoint; knows no requests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from corellm.config import EngineConfig
from corellm.errors import CheckpointError, ConfigError
from corellm.hookspecs import ModelContext
from corellm_pooling.conversion import as_embedding_model, as_seq_cls_model, remove_output_layer
from corellm_pooling.head_weights import (
    linear_of,
    read_inline_projector,
    read_output_rows,
    read_projector,
    read_score,
)
from corellm_pooling.heads import ClassificationHead, EmbeddingHead
from corellm_pooling.late_interaction import skipped_ids
from corellm_pooling.params import PoolerConfig
from corellm_pooling.poolers import DispatchPooler, Pooler, SequencePooler, TokenPooler
from corellm_pooling.sentence_transformers import read_stated_pooling
from corellm_pooling.settings import Conversion

_BY_PROBLEM_TYPE = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_TWO_WAY, _AS_THEY_ARE = "from_2_way_softmax", "no_post_processing"


def adapted_class(cls: Any, conversion: Conversion) -> Any:
    """Return the class to load in place of a transformers class."""
    if conversion.convert == "none":
        return cls
    return (
        as_seq_cls_model(cls) if conversion.convert == "classify" or conversion.is_reward else as_embedding_model(cls)
    )


def build_pooler(
    config: EngineConfig, context: ModelContext, model: Any, conversion: Conversion, width: int
) -> DispatchPooler:
    """Return the pooler of a loaded model, its heads on the model's device; also sets `model.pooler`.

    Args:
        config: of the engine.
        context: of the model.
        model: without output layer; where it pools itself, its own `pooler` is returned.
        conversion: what it became.
        width: of its hidden states.

    Raises:
        CheckpointError, ConfigError: there is no head, or it does not fit.
    """
    own = getattr(model, "pooler", None)
    if conversion.convert == "none":
        if not isinstance(own, DispatchPooler):
            raise ConfigError(
                f"convert='none': {type(model).__name__} does not pool itself (it has no corellm pooler); set "
                "convert='embed' or convert='classify'"
            )
        return own
    if not hasattr(model, "output_layer"):  # its adapter loaded it without `adapt_class`
        model.output_layer = remove_output_layer(model)
    pooler_config = PoolerConfig.of(config.model.pooler_config)
    build = _Builder(pooler_config, context, model, width)
    poolers = build.classes() if conversion.convert == "classify" else embedding_poolers(pooler_config, context, width)
    if conversion.is_reward:
        poolers["reward"] = poolers["token_classify"] = build.rewards()
    pooler = model.pooler = DispatchPooler(poolers)
    return pooler


def embedding_poolers(
    config: PoolerConfig, context: ModelContext, width: int, *, unstated: str = "LAST", is_encoder: bool = False
) -> dict[str, Pooler]:
    """Return the poolers of embeddings, by task.

    Args:
        config: of the pooler.
        context: of the model.
        width: of its hidden states.
        unstated: how to pool where neither configuration nor checkpoint says.
        is_encoder: whether its tokens see later ones, and can be kept from seeing some.

    Raises:
        CheckpointError, ConfigError: a part is absent, or cannot be run.
    """
    stated = read_stated_pooling(context.model_path)
    late = None if stated is None else stated.late
    if late is not None and late.filling is not None and not (is_encoder or late.filling.is_seen):
        raise CheckpointError(
            f"{context.model_path}: queries are filled up with tokens that others do not see (query expansion), which "
            "only encoders can do; run it with sentence-transformers (MultiVectorEncoder)"
        )
    normalize = config.use_activation
    if normalize is None:
        normalize = stated.normalize if stated is not None else True
    projector = None if stated is None else read_projector(stated)
    if late is not None and late.is_inline:
        projector = read_inline_projector(context.model_path)
    kinds = stated.pooling_types if stated is not None else (unstated,)
    if config.sequence_pooling is not None:
        if late is not None:
            raise ConfigError(
                f"pooling_type={config.sequence_pooling!r}: a ColBERT model has vectors of tokens only; leave it out"
            )
        kinds = (config.sequence_pooling,)
    head = EmbeddingHead(
        projector,
        width * max(1, len(kinds)),
        normalize=normalize,
        dimensions=_stated_value(context.hf_config, "matryoshka_dimensions"),
    )
    if projector is not None:
        projector.to(context.device)
    if late is not None:
        return {"token_embed": TokenPooler(head, skipped=skipped_ids(late, context.tokenizer))}
    whole: dict[str, Pooler] = {"embed": SequencePooler(kinds, head)}
    return whole if len(kinds) > 1 else whole | {"token_embed": TokenPooler(head)}  # a token is pooled in one way


class _Builder:
    def __init__(self, config: PoolerConfig, context: ModelContext, model: Any, width: int) -> None:
        self._config, self._context, self._model, self._width = config, context, model, width
        self._step_tag_id = config.step_tag_id if config.pools_steps else None

    def classes(self) -> dict[str, Pooler]:
        score, num_labels = self._score()
        activation = activation_of(self._config.activation, self._context.hf_config, num_labels)
        head = ClassificationHead(score, self._config, activation)
        is_own = self._score_tokens() is None
        sequence = SequencePooler(
            (self._config.sequence_pooling or "LAST",),
            head,
            padding=padding_of(self._config, self._context.hf_config) if is_own else None,
        )
        poolers: dict[str, Pooler] = {"classify": sequence, "token_classify": TokenPooler(head, self._step_tag_id)}
        return poolers | ({"score": sequence} if num_labels == 1 else {})

    def rewards(self) -> Pooler:
        """Rewards of tokens as the head gives them; of steps as probabilities."""
        score, num_labels = self._score()
        activation = self._config.activation
        if activation == "auto" and self._step_tag_id is None:
            activation = "none"
        activation = activation_of(activation, self._context.hf_config, num_labels)
        return TokenPooler(ClassificationHead(score, self._config, activation), self._step_tag_id)

    def _score(self) -> tuple[nn.Module, int]:
        """Return the head from hidden states to logits, and its number of labels."""
        score = self._score_of_tokens() or read_score(self._context.model_path)
        if score is None and not any(self._context.model_path.glob("*.safetensors")):  # `load_format="dummy"`
            score = linear_of(torch.randn(self._context.hf_config.num_labels, self._width), None)
        if score is None:
            raise CheckpointError(
                f"{self._context.model_path}: the checkpoint has no head for classes (score, classifier, v_head); to "
                "make one of tokens, set hf_overrides={'classifier_from_token': ['no', 'yes'], "
                "'method': 'from_2_way_softmax'}; for embeddings, set convert='embed'"
            )
        score = score.to(self._context.device).eval()
        try:
            probe = score(torch.zeros(1, self._width, device=self._context.device))
        except RuntimeError as error:
            raise CheckpointError(
                f"{self._context.model_path}: its head does not take hidden states {self._width} wide: {error}"
            ) from error
        self._model.score = score
        return score, int(probe.shape[-1])

    def _score_tokens(self) -> Any:
        """Return the tokens of which a head is to be made; None for the checkpoint's own head."""
        return self._config.returned_token_ids or _stated_value(self._context.hf_config, "classifier_from_token")

    def _score_of_tokens(self) -> nn.Module | None:
        """Return a head made of rows of the output layer, if the configuration names tokens."""
        hf_config, tokens = self._context.hf_config, self._score_tokens()
        if tokens is None:
            return None
        ids = [self._token_id(token) for token in tokens]
        method = _stated_value(hf_config, "method") or (_TWO_WAY if self._is_pair(ids) else _AS_THEY_ARE)
        if method not in (_TWO_WAY, _AS_THEY_ARE):
            raise ConfigError(f"method must be {_TWO_WAY} or {_AS_THEY_ARE}, got {method!r:.100}")
        if method == _TWO_WAY and len(ids) != 2:
            raise ConfigError(f"method={_TWO_WAY!r} takes two tokens, false and true; got {len(ids)}: {tokens!r:.100}")
        self._refuse_changed_logits()
        is_tied = any(getattr(c, "tie_word_embeddings", False) for c in (hf_config, hf_config.get_text_config()))
        tied = self._model.get_input_embeddings().weight if is_tied else None
        rows, bias = read_output_rows(self._context.model_path, self._model.output_layer, tied, ids)
        if method == _TWO_WAY:
            rows, bias = rows[1:] - rows[:1], bias[1:] - bias[:1]
        return linear_of(rows, bias if bias.any() else None)

    def _refuse_changed_logits(self) -> None:
        """Refuse models that change the output layer's logits: a head of its rows would give other probabilities."""
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            value = _stated_value(self._context.hf_config, name)
            if value not in (None, 1.0):
                raise ConfigError(
                    f"a head cannot be made of tokens: the model changes the output layer's logits ({name}={value}); "
                    f"if its rows are meant as they are, set hf_overrides={{{name!r}: None}}"
                )

    def _is_pair(self, ids: list[int]) -> bool:
        return len(ids) == 2 and self._config.returned_token_ids is None

    def _token_id(self, token: Any) -> int:
        """Return the id of a token given by text or id."""
        tokenizer = self._context.tokenizer
        found = tokenizer.convert_tokens_to_ids(token) if isinstance(token, str) else token
        unknown = found is None or (isinstance(token, str) and found == tokenizer.unk_token_id)
        rows = self._model.get_input_embeddings().weight.shape[0]
        if unknown or not isinstance(found, int) or not 0 <= found < rows:
            raise ConfigError(f"classifier_from_token: {token!r:.100} is no single token of this model's tokenizer")
        return found


def padding_of(config: PoolerConfig, hf_config: Any) -> int | None:
    """Return the token that a checkpoint's own head was not trained on, where it takes the last one.

    Transformers' classes with a head take the last token that is not `pad_token_id`, also where the tokenizer ends each
    text with that token. None where `pooling_type` says how to pool.
    """
    padding: int | None = hf_config.get_text_config().pad_token_id
    return padding if config.sequence_pooling is None else None


def activation_of(configured: str, hf_config: Any, num_labels: int) -> str:
    """Return the activation of classes: the configured one, else the checkpoint's, else by number of labels."""
    if configured != "auto":
        return configured
    by_type = _BY_PROBLEM_TYPE.get(getattr(hf_config, "problem_type", None) or "")
    return _cross_encoder_activation(hf_config) or by_type or ("sigmoid" if num_labels < 2 else "softmax")


def _cross_encoder_activation(hf_config: Any) -> str | None:
    """Return the activation that sentence-transformers wrote into the configuration; None if it wrote none.

    Raises:
        CheckpointError: there is no such activation.
    """
    stated = (getattr(hf_config, "sentence_transformers", None) or {}).get("activation_fn")
    name = stated or getattr(hf_config, "sbert_ce_default_activation_function", None)
    if name is None:
        return None
    kinds = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
    kind = kinds.get(str(name).rpartition(".")[2])
    if kind is None:
        raise CheckpointError(
            f"config.json: the activation {name!r:.100} cannot be run; set pooler_config={{'activation': ...}}"
        )
    return kind


def _stated_value(hf_config: Any, name: str) -> Any:
    """Return what the configuration says, also in its part for text; None if it says nothing."""
    for part in (hf_config, hf_config.get_text_config()):
        if getattr(part, name, None) is not None:
            return getattr(part, name)
    return None
