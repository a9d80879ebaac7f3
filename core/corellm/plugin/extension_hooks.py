"""The hooks of extension plugins: things that are not a model family.

An extension is an object (module, class instance) named by an entry point in the group `corellm.extensions`:

    [project.entry-points."corellm.extensions"]
    my-tracing = "my_package:Tracing"

Its `@hookimpl` methods implement the hooks below. The core's own attention backends are an extension, too. Like an
adapter's, an extension's module must import neither torch nor transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

from corellm.hookspecs import PROJECT_NAME

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch
    from torch import nn

    from corellm.config import EngineConfig, ModelConfig
    from corellm.engine.async_llm import AsyncLLM
    from corellm.fetch_settings import FetchSettings
    from corellm.frontend.prompt_key import PromptKey
    from corellm.hookspecs import ModelContext
    from corellm.llm import LLM
    from corellm.loading.attended_states import StatesOffer
    from corellm.loading.kept_states import KeptStates
    from corellm.loading.model_use import ModelUse
    from corellm.loading.weight_key import WeightKey
    from corellm.modelling.defaults import MergeRows
    from corellm.modelling.linear_additions import AddLowRank, LinearAdditions
    from corellm.multimodal.media_reader import MediaReader
    from corellm.quantization import MakeQuantize, Quantize
    from corellm.sampling.constraint import MakeConstraint
    from corellm.sampling.device_sampling import Sample
    from corellm.sampling.processing import LogitsProcessing
    from corellm.worker.parts.step_part import StepPart
    from corellm_server.offers import BatchOffer, EngineOffer

_hookspec = pluggy.HookspecMarker(PROJECT_NAME)


@_hookspec
def register_attention_backends() -> dict[str, str] | None:
    """Offer attention backends: `{name: "module:Class"}`, the class a `corellm.attention.AttentionBackend`.

    Named by string, so that a backend's module (and what it imports) is loaded only when it is chosen.
    """


@_hookspec
def register_sampling(device: torch.device) -> Sample | None:
    """Offer a function that chooses tokens on a device: a `corellm.sampling.device_sampling.Sample`.

    The first offer is taken. None if it does not run on this device.
    """


@_hookspec
def register_constraints(tokenizer: Any, vocab_size: int) -> dict[str, MakeConstraint] | None:
    """Offer kinds of constraints on sampling: `{kind: function}`, a `corellm.sampling.constraint.MakeConstraint` each.

    A request names the kind in its `SamplingParams.constraint`. Called once per loaded model in each process that
    prepares its requests or runs it, also if no request has one: do what takes long when a constraint is made, or in
    `MakeConstraint.prepare`. None for a tokenizer that cannot be read. A kind that two extensions offer is an error.

    Args:
        tokenizer: the model's, of transformers, or what `register_tokenizer` makes.
        vocab_size: width of the logits; the tokenizer may have fewer tokens, or more.
    """


@_hookspec
def register_logits_processors(tokenizer: Any, vocab_size: int) -> dict[str, Callable[[Mapping[str, Any]], Any]] | None:
    """Offer functions that change logits: `{name: function}`, which `corellm-decoding` calls.

    A request names one in `logits_processors`, with arguments; the function gets these, and returns a function or an
    object that `corellm_decoding.processors` describes, or raises an `InvalidParameterError`. Called as
    `register_constraints` is. A name that two extensions offer is an error.
    """


@_hookspec
def offer_logits_processing(tokenizer: Any, vocab_size: int) -> LogitsProcessing | None:
    """Offer what applies `SamplingParams.logits_processors`: a `corellm.sampling.processing.LogitsProcessing`.

    The first offer is taken. Arguments as of `register_constraints`.
    """


@_hookspec
def register_tool_parsers() -> dict[str, str] | None:
    """Offer forms of tool calls to `corellm serve`: `{name: "module:Class"}`.

    The class is a `corellm_server.tools.calls.ToolParser`. Called when a server starts. An operator chooses one by name
    (`--tool-call-parser`), an adapter states one (`tool_parser`), else it is the one whose `TEMPLATE` is in the model's
    chat template. A name that two extensions offer is an error.
    """


@_hookspec
def register_reasoning_parsers() -> dict[str, str] | None:
    """Offer forms of reasoning to `corellm serve`: `{name: "module:Class"}`.

    The class is a `corellm_server.reasoning.marked.ReasoningParser`. It is chosen as parsers of tool calls are:
    `--reasoning-parser`, `reasoning_parser`, or the chat template.
    """


@_hookspec
def register_merging(device: torch.device) -> MergeRows | None:
    """Offer a function that writes items' embeddings into the text's: a `corellm.modelling.defaults.MergeRows`.

    It is used for adapters that do not implement `merge_multimodal_embeddings`. The first offer is taken. None if it
    does not run on this device.
    """


@_hookspec
def speed_up_processor(processor: Any) -> None:
    """Change a checkpoint's processor, in place, so that it takes less time to make the same tensors, bit for bit.

    Called whenever a processor is made; those of a family's own code come here, too, and must stay as they are.
    """


@_hookspec(
    warn_on_impl_args={"quantization": FutureWarning("corellm 0.4 gives no quantization; quantize rounds a layer")}
)
def fuse_layers(
    model: nn.Module,
    device: torch.device,
    dtype: torch.dtype,
    quantization: str | None,
    quantize: Quantize | None,
    kept: WeightKey | None,
) -> list[str] | None:
    """Replace layers of a loaded model by faster ones that compute the same.

    Called once per loaded model, if the operator has not switched it off (`fuse_layers=False`). A module that joins
    linear layers says where each is (`corellm.plain_linears.JoinedOutputs`): additions know them by their names.

    Args:
        model: the result of the adapter's `load_model`, on the device; changed in place.
        device, dtype: of the model.
        quantization: the operator's `quantization`, for one more version.
        quantize: what rounds the weights of linear layers, if they are to have fewer bits; the core rounds those of
            every `nn.Linear` that is left.
        kept: where, and under which key, what is made of the weights may be kept for later starts; None for nowhere.

    Returns:
        What was replaced, for the log: `["32 x LlamaAttention"]`. None if nothing was.
    """


@_hookspec
def register_quantization(name: str) -> MakeQuantize | None:
    """Offer what rounds the weights of linear layers: a `corellm.quantization.MakeQuantize`.

    The first offer is taken. None for other types of weights.

    Args:
        name: of the type of weights, as in `quantization`.
    """


@_hookspec
def offer_quantized_reading(stated: Mapping[str, Any]) -> dict[str, Any] | None:
    """Offer to read a checkpoint with quantized weights, which transformers does not read itself.

    Called before weights are read. The first offer is taken. None for formats that are not the extension's.

    Args:
        stated: the checkpoint's `quantization_config`.

    Returns:
        The `quantization_config` to load with instead, of a method that the extension registered with transformers.

    Raises:
        CheckpointError: a variant of the extension's formats that it cannot read.
    """


@_hookspec
def register_low_rank(device: torch.device, dtype: torch.dtype) -> AddLowRank | None:
    """Offer products of low rank that differ from row to row: a `corellm.modelling.linear_additions.AddLowRank`.

    Extensions whose parts add such products to linear layers take the first offer, if there is one. None if it does not
    run on this device, or not in this type.
    """


@_hookspec
def offer_step_part(
    linears: LinearAdditions, config: EngineConfig, context: ModelContext, max_num_seqs: int, most_rows: int
) -> StepPart | None:
    """Offer what runs beside the decoder in every step: a `corellm.worker.parts.step_part.StepPart`.

    Called once per loaded model with a decoder, after its layers were replaced by faster ones and before the profile
    run: what it allocates counts as weights. All offers are taken; they run after the core's own parts. A part knows
    which sequence has which rows, so what it adds to linear layers can differ from request to request: an adapter of
    low rank is such a part. What it must know of a request comes from a key of the prompt (`offer_prompt_key`).

    Args:
        linears: the decoder's linear layers; `linears.add(name, addition)` adds to the outputs of one, also where it
            was packed, quantized, or joined with others.
        config: of the engine.
        context: of the model: its configuration, dtype and device.
        max_num_seqs: most sequences of a step.
        most_rows: most rows of a captured step; others may have more. A sequence with drafts has a row and a chunk for
            each token.
    """


@_hookspec
def offer_attended_states(context: ModelContext) -> StatesOffer | None:
    """Offer states that decoders attend to beside their own tokens: a `corellm.loading.attended_states.StatesOffer`.

    Called once per model that is opened to generate text, in each process that prepares its prompts or runs it. The
    first offer is taken. Which of its models have such states, it says itself.
    """


@_hookspec
def offer_kept_states(modules: Mapping[str, nn.Module]) -> KeptStates | None:
    """Offer to run a decoder's modules that keep a state of each sequence: a `corellm.loading.kept_states.KeptStates`.

    Called once per loaded model that has such modules, before its decoder runs. The first offer is taken.

    Args:
        modules: by name.
    """


@_hookspec
def offer_prompt_key(context: ModelContext) -> PromptKey | None:
    """Offer a key that prompts may have: a `corellm.frontend.prompt_key.PromptKey`.

    Called once per loaded model in each process that prepares its prompts or runs it. All offers are taken; a key that
    two extensions read is an error. What a request's key says reaches a `StepPart` by the request's part.
    """


@_hookspec
def offer_checkpoint(path: Path, mmproj: str | None, revision: str | None) -> Path | None:
    """Offer a directory in the Hugging Face layout for a file or directory in another, before anything of it is read.

    The first offer is taken. None for what is not the extension's. Weights may stay where they are: the configuration's
    `quantization_config` then tells `offer_quantized_reading` of them.

    Args:
        path: what the user names: a file, a directory without a `config.json`, or `owner/name:TYPE` of the hub.
        mmproj: the file of encoders that the user names, or `none`; None for what is found.
        revision: of the hub; None for the newest.

    Raises:
        CheckpointError: the files are the extension's, and are wrong.
    """


@_hookspec
def offer_use(config: ModelConfig, path: Path, architectures: Sequence[str]) -> ModelUse | None:
    """Offer another use of a checkpoint than generating text, before a plugin is looked up for it.

    Offers of two extensions are an error. None for a checkpoint that generates text, or is another extension's.

    Args:
        config: of the model.
        path: directory of the checkpoint.
        architectures: that it states, or `hf_overrides`.

    Raises:
        CheckpointError: the files of such a use are wrong.
        ConfigError: the settings cannot be.
    """


@_hookspec
def wrap_adapter(context: ModelContext) -> Any:
    """Give an object whose `hookimpl(wrapper=True)` methods surround any of the adapter's hooks, or None.

    Called once per loaded model. A wrapper is a generator: it runs, yields, receives the adapter's return value and
    returns it or another (see pluggy's documentation). Use it for logging, tracing, token pruning.
    """


@_hookspec
def offer_media_reader() -> MediaReader | None:
    """Offer to read audio, and videos in files: a `corellm.multimodal.media_reader.MediaReader`.

    The first offer is taken. Called when a model is loaded, and when such an item is read: import decoders later.
    """


@_hookspec
def offer_fetching(settings: FetchSettings) -> Any:
    """Offer what fetches the media that conversations name by URL; called where the operator allows hosts.

    Returns:
        An object with `load(messages)`, which replaces URLs in normalized messages by files or raises a `RequestError`,
        in any thread; and with `close()`. The first offer is taken.
    """


@_hookspec
def offer_calls(llm: LLM | AsyncLLM) -> Any:
    """Give an object whose methods are calls that `LLM` or `AsyncLLM` has names for (`embed`, ...); or None."""


@_hookspec
def offer_engine_client() -> EngineOffer | None:
    """Offer options of `corellm serve` that put another engine behind it: a `corellm_server.offers.EngineOffer`.

    All offers are taken; the options of one at most may ask for its engine. Called whenever the command's arguments are
    read: what the engine imports must be imported when it is opened.
    """


@_hookspec
def offer_batch_runner() -> BatchOffer | None:
    """Offer options of `corellm batch` that have its requests done elsewhere: a `corellm_server.offers.BatchOffer`.

    All offers are taken; the options of one at most may ask for it. Called whenever the command's arguments are read.
    """


@_hookspec
def register_commands(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add commands to `corellm`: `subparsers.add_parser(...)` with `set_defaults(run=function of the arguments)`.

    `run` returns the exit status. The helpers of the core's commands are in `corellm.cli`: `arguments` and `fields` add
    a model's options. A default `reword`, a function of the command's parser and its words, may return others.
    """
