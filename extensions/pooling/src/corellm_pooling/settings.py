"""What a checkpoint is pooled for: the three settings `runner`, `convert` and a request's task, and what combines.

The tables are all there is; knows names only, no model and no tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from corellm.errors import ConfigError

RUNNERS = ("auto", "generate", "pooling", "draft")
CONVERTS = ("auto", "none", "embed", "classify")

_BY_SUFFIX = (
    (r"(.+)(ForCausalLM|ForConditionalGeneration|EncoderDecoderModel|ChatModel|LMHeadModel)", "generate", "none"),
    (r"(.+)(ForTextEncoding|EmbeddingModel)", "pooling", "embed"),
    (r"(.+?)(For\w*Classification|ClassificationModel)", "pooling", "classify"),
    (r"(.+)(ForMaskedLM|ForPreTraining)", "pooling", "embed"),
    (r"(.+?)(For\w*RewardModel(ing)?|RewardModel)", "pooling", "embed"),
    (r"(.+)(Model)", "pooling", "embed"),
    (r"(HF_Col)(BERT)", "pooling", "embed"),  # Stanford's, of an encoder that is known by its configuration
)
"""Architecture to runner and conversion, the first that fits; none of them: generate, none."""

_GENERATIVE_SUFFIXES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")

TASKS = {"none": (), "embed": ("embed", "token_embed"), "classify": ("classify", "token_classify", "score")}
"""Tasks by conversion. Reward models have `OF_REWARDS` besides; with `none` the model's own class says which it has."""

OF_REWARDS = ("reward", "token_classify")
"""Two names of the same: the head's result for every token."""

WAYS = {
    "generate": "load the model with runner='generate', convert='none'",
    "embed": "load the model with convert='embed'",
    "token_embed": "load the model with convert='embed'",
    "classify": "load the model with convert='classify'",
    "token_classify": "load the model with convert='classify'",
    "score": "load the model with convert='classify'",
    "reward": "load a reward model (an architecture that ends in RewardModel)",
}


@dataclass(frozen=True)
class Conversion:
    """What a checkpoint becomes that is pooled."""

    convert: str
    is_reward: bool = False
    """Whether the checkpoint is a reward model, with a head of its own."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may have."""
        return TASKS[self.convert] + (OF_REWARDS if self.is_reward else ())


def resolve(runner: str, convert: str, architecture: str, *, states_pooling: bool = False) -> Conversion | None:
    """Return what a checkpoint is converted to; None for one that generates text.

    Args:
        runner, convert: of the configuration.
        architecture: of the checkpoint.
        states_pooling: whether it has a pooling configuration of sentence-transformers.

    Raises:
        ConfigError: they do not combine; says which to change.
    """
    _check_known(runner, convert)
    _, own_runner, own_convert = _parts(architecture)
    is_reward, generates = "Reward" in architecture, own_runner == "generate"
    if runner == "auto":
        runner = "pooling" if convert in ("embed", "classify") or states_pooling else own_runner
    if runner == "generate":
        if convert in ("embed", "classify"):
            raise ConfigError(
                f"runner='generate' gives text, and convert={convert!r} takes the layer away that does; "
                f"set runner='pooling' (or leave it out), or convert='none'"
            )
        if not generates:
            raise ConfigError(f"{architecture} cannot generate text: it has no output layer; set runner='pooling'")
        return None
    if convert == "auto":
        convert = "embed" if generates else own_convert
    if convert == "none" and generates:
        raise ConfigError(
            f"runner='pooling' needs {architecture} to be converted, as it generates text; set convert='embed' or "
            f"convert='classify'"
        )
    if is_reward and convert == "classify":
        raise ConfigError(
            f"{architecture} is a reward model: its head gives rewards, not classes; leave convert out, and use reward"
        )
    return Conversion(convert, is_reward and convert == "embed")


def compares_tokens(tasks: Sequence[str]) -> bool:
    """Whether a model that embeds has vectors of tokens alone, so that texts are compared by these (ColBERT)."""
    return "token_embed" in tasks and "embed" not in tasks


def generative_names(architecture: str) -> tuple[str, ...]:
    """Return under which names a plugin may serve a pooling architecture's family: `LlavaModel` is one of LLaVA's."""
    family, runner, _ = _parts(architecture)
    return tuple(family + suffix for suffix in _GENERATIVE_SUFFIXES) if runner == "pooling" else ()


def _parts(architecture: str) -> tuple[str, str, str]:
    for pattern, runner, convert in _BY_SUFFIX:
        found = re.fullmatch(pattern, architecture)
        if found:
            return found[1], runner, convert
    return architecture, "generate", "none"


def _check_known(runner: str, convert: str) -> None:
    if runner not in RUNNERS:
        raise ConfigError(f"runner must be one of {', '.join(RUNNERS[:-1])}; got {runner!r:.100}")
    if runner == "draft":
        raise ConfigError("runner='draft' is for models that draft, which there are not yet; leave runner out")
    if convert == "reward":
        raise ConfigError(
            "convert='reward' would need a head, and no rule makes one from a model that generates text; load a reward "
            "model (an architecture that ends in RewardModel) and leave convert out, or set convert='classify'"
        )
    if convert not in CONVERTS:
        raise ConfigError(f"convert must be one of {', '.join(CONVERTS)}; got {convert!r:.100}")
