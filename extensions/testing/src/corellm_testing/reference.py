"""The contract's oracle: transformers' own processor and `generate` on a checkpoint.

Nothing of corellm processes or generates here. An adapter whose model or processor transformers lacks brings an
independent one in a subclass.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from corellm.multimodal.nested import same_values

if TYPE_CHECKING:
    from torch import Tensor

Media = Mapping[str, Sequence[Any]]
"""`{modality: items}`: images `PIL.Image`, videos `(frames, metadata)`, audio `[num_samples]` float32.

Metadata of a video have `fps`, None if it is not known. Frames with `frames_indices` are a sample already, of
`total_num_frames`."""


@dataclass(frozen=True)
class Continuation:
    """A prompt's tokens and the model's greedy continuation."""

    prompt_token_ids: list[int]
    """With placeholders expanded."""
    token_ids: list[int]
    logprobs: list[float]
    """Log-probability of each of `token_ids`."""
    end_token_ids: frozenset[int] = frozenset()
    """Tokens that were suppressed because they end a text."""
    masked_token_ids: frozenset[int] | None = None
    """Tokens that the model itself never gives a chance; None if that is not known."""


class Reference:
    """Transformers' processor and model of one checkpoint.

    Args:
        checkpoint: its directory.
    """

    ignored_tensors: ClassVar[Mapping[str, str]] = {}
    """`{tensor of the processor's: why the adapter has no use for it}`."""

    end_token_ids: frozenset[int] = frozenset()
    """Tokens that end a text for the loaded model under test: these are suppressed while outputs are compared, on both
    sides. Which they should be, other rules say. Empty if it is not loaded: then those of the checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint

    @cached_property
    def processor(self) -> Any:
        """The Hugging Face processor.

        Raises:
            ContractBroken: `AutoProcessor` cannot make it, so the contract class has to say how it is made.
        """
        import transformers

        from corellm_testing.rules import ContractBroken

        try:
            return transformers.AutoProcessor.from_pretrained(self.checkpoint)
        except Exception as error:
            raise ContractBroken(
                "the contract class",
                "reference: transformers' processor is compared with",
                expected="AutoProcessor makes the processor of the tiny checkpoint",
                got=f"{type(error).__name__}: {' '.join(str(error).split())}",
                fix="set reference to a subclass of corellm_testing.Reference with a `processor` that is made as "
                "register_processor makes it, of transformers' own classes",
            ) from error

    @cached_property
    def config(self) -> Any:
        """The configuration that transformers reads."""
        import transformers

        return transformers.AutoConfig.from_pretrained(self.checkpoint)

    @cached_property
    def model(self) -> Any:
        """The transformers model, in float32; its texts end with `end_token_ids`."""
        import torch

        from corellm.modelling.defaults import transformers_class

        cls = transformers_class(self.config)
        model = cls.from_pretrained(self.checkpoint, config=self.config, dtype=torch.float32).eval()
        for module in model.modules() if self.end_token_ids else ():
            if getattr(module, "generation_config", None) is not None:  # a decoder's own, too
                module.generation_config.eos_token_id = sorted(self.end_token_ids)
        return model

    def process(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output for text and media together.

        Args:
            text: with placeholders, as a user writes them.
            media: in the order of their placeholders; may be empty.
            kwargs: a request's `mm_processor_kwargs`.

        Returns:
            `input_ids` `[1, num_tokens]` and the tensors of all items.
        """
        given: dict[str, Any] = {}
        if media.get("image"):
            given["images"] = list(media["image"])
        if media.get("video"):
            given["videos"] = [frames for frames, _ in media["video"]]
            given["video_metadata"] = [_metadata(len(frames), known) for frames, known in media["video"]]
            if any("frames_indices" in known for _, known in media["video"]):
                given["do_sample_frames"] = False
        if media.get("audio"):
            given["audio"] = list(media["audio"])
            given["sampling_rate"] = self.processor.feature_extractor.sampling_rate
        return dict(self.processor(text=text, return_tensors="pt", **{**given, **kwargs}))

    def same(self, name: str, ours: Any, theirs: Any) -> bool:
        """Whether one item's value is the processor's: a tensor bit for bit, or a list of tensors, or plain data.

        A subclass may have a reason to allow more.
        """
        return same_values(ours, theirs)

    def generate(self, text: str, media: Media, kwargs: Mapping[str, Any], max_tokens: int) -> Continuation:
        """Return transformers' greedy continuation of one request, of exactly `max_tokens` tokens."""
        return generate_one(self.model, self.process(text, media, kwargs), max_tokens)

    def visible_tokens(self, text: str, media: Media, kwargs: Mapping[str, Any]) -> Mapping[int, Tensor] | None:
        """Return by layer which tokens of a prompt each sees, `[num_tokens, num_tokens]` bool, as the masks say.

        None where the model does not attend through transformers' `AttentionInterface`, and so cannot be asked.
        """
        from transformers import PreTrainedModel

        from corellm.modelling import visible_tokens

        if not isinstance(self.model, PreTrainedModel) or not self.model._supports_attention_backend:
            return None
        return visible_tokens(self.model, self.model.get_decoder(), self.process(text, media, kwargs))

    def close(self) -> None:
        """Free the reference's resources; called once, at the end."""


def _metadata(num_frames: int, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a video's metadata as a reader of files states them: with the sample of frames, and the duration."""
    duration = num_frames / known["fps"] if known.get("fps") else None
    sample = list(range(num_frames))
    stated = {"total_num_frames": num_frames, "frames_indices": sample, "duration": duration}
    return {**stated, **copy.deepcopy(dict(known))}


def token_ids_of(output: Mapping[str, Any]) -> list[int]:
    """Return the token ids of what `Reference.process` returned for one prompt."""
    ids = output["input_ids"]
    flat: list[int] = list(ids[0] if hasattr(ids[0], "__len__") else ids)
    return [int(token) for token in flat]


def generate_one(model: Any, inputs: Mapping[str, Any], max_tokens: int) -> Continuation:
    """Return a transformers model's greedy continuation of one request.

    Args:
        model: with a `generate`.
        inputs: arguments of `generate`, including `input_ids`.
        max_tokens: exact number of tokens; the end of text is suppressed until then.
    """
    import torch

    # a forced first token is among the decoder's, before the output
    count = max_tokens + int(
        model.config.is_encoder_decoder and model.generation_config.forced_bos_token_id is not None
    )
    output = model.generate(
        **inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    tokens = output.sequences[0, -max_tokens:].tolist()
    steps = output.logits[-max_tokens:]
    logprobs = [torch.log_softmax(step[0].float(), -1)[token].item() for step, token in zip(steps, tokens, strict=True)]
    stated = model.generation_config.eos_token_id
    ends = frozenset(stated if isinstance(stated, list) else [stated]) - {None}
    return Continuation(inputs["input_ids"][0].tolist(), tokens, logprobs, ends, masked_token_ids(torch.cat(steps)))


def masked_token_ids(logits: Any) -> frozenset[int]:
    """Return the tokens that are minus infinity, or the lowest number, in all rows of logits `[rows, tokens]`."""
    import torch

    masked = (logits <= torch.finfo(logits.dtype).min / 2).all(0)
    return frozenset(masked.nonzero().flatten().tolist())
