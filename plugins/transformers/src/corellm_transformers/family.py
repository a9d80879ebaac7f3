"""What a checkpoint's processor says of each modality: placeholder, tensors, the largest item.

Found by processing small items. Knows processors, no model.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from corellm.errors import CheckpointError, MediaError, UnsupportedModalityError
from corellm.hookspecs import ModelContext
from corellm.multimodal import dummy_audios, dummy_images, dummy_videos
from corellm_transformers.largest import largest_image, largest_video, longest_audio
from corellm_transformers.placeholders import ARGUMENT, Ends, between, candidates, ends, flat, marked
from corellm_transformers.processors import Absent
from corellm_transformers.small_items import small_audio, small_image, small_size, turned
from corellm_transformers.videos import processed, video_of

if TYPE_CHECKING:
    from corellm.multimodal import Video

logger = logging.getLogger(__name__)

_PARTS = {
    "image": ("image_processor",),
    "video": ("video_processor",),
    "audio": ("feature_extractor", "audio_processor"),
}
"""Parts of a processor by which it takes a modality."""
_FPS = 4.0
"""Frames per second of the videos that are made here."""
_CPU_TOKENS = 1024
"""Most tokens of a dummy video on a CPU."""
_MOST_FRAMES = 64
"""Frames of the largest video, where the processor does not say how many it samples."""
_TEXT = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "text_replacement_offsets", "labels"}
)
"""What processors return about the text."""


@dataclass(frozen=True)
class Modality:
    """How a processor places the items of one modality."""

    text: str
    """What users write for an item."""
    target: tuple[int, ...]
    """Its tokens."""
    embed_token_ids: frozenset[int]
    """Which of an item's tokens take embeddings."""
    tensors: frozenset[str]
    """The names of a small item's tensors; larger ones may have more."""
    tokens_name: str
    """The name under which its tokens are kept beside them."""
    limit: int | None
    """The most items of a prompt; None for any number."""


class Family:
    """The modalities of a checkpoint.

    Args:
        context: of the model.

    Attributes:
        ends: what the processor puts around every prompt.
        modalities: by name. The check at load may limit the items of one.
        apart: pairs of modalities that no prompt may have both of. Set by the check at load.

    Raises:
        CheckpointError: the processor takes no item, or does not say how it places them.
    """

    def __init__(self, context: ModelContext) -> None:
        self.context, self.processor = context, context.hf_processor
        self.ends = ends(self.processor)
        self.modalities: dict[str, Modality] = {}
        self.apart: set[tuple[str, str]] = set()
        for modality, parts in _PARTS.items():
            known = [part for name in parts if (part := getattr(self.processor, name, None)) is not None]
            if not known or getattr(context.hf_config, f"{modality}_config", "") is None:
                continue  # the model has no encoder of it
            if all(isinstance(part, Absent) for part in known):
                self.leave_out(modality, "transformers processes them by torchvision, which is not installed")
                continue
            try:
                self.modalities[modality] = self._examine(modality)
            except CheckpointError as error:
                if modality != "video":
                    raise
                self.leave_out(modality, error)
        if context.findings:
            self._take(context.findings)
        if not self.modalities:
            raise self.refused("takes neither images nor audio without torchvision", "register_processor")

    def refused(self, reason: str, hook: str) -> CheckpointError:
        """Return the error that the checkpoint needs a plugin of its own, with a hook that says what is missing."""
        return needs_plugin(f"{type(self.processor).__name__} {reason}", hook)

    def leave_out(self, modality: str, reason: Exception | str) -> None:
        """Note that a model is served without a modality."""
        logger.warning("%s: no %s items are taken: %s", self.context.model_path, modality, reason)
        self.modalities.pop(modality, None)

    def keep_apart(self, pair: tuple[str, str], reason: str) -> None:
        """Note that no prompt may have items of both of two modalities."""
        logger.warning("%s: no prompt may have %s and %s items: %s", self.context.model_path, *pair, reason)
        self.apart.add(pair)

    def state_findings(self) -> None:
        """Tell the context what the check at load found, for adapters of this checkpoint that have no model."""
        self.context.findings["forms"] = {name: [known.text, known.limit] for name, known in self.modalities.items()}
        self.context.findings["apart"] = sorted(self.apart)

    def _take(self, findings: Mapping[str, Any]) -> None:
        """Be as the check at load found, in the process that has the model."""
        forms = findings["forms"]
        self.modalities = {
            name: replace(self.modalities[name], text=text, target=tuple(self._tokenize(text)), limit=limit)
            for name, (text, limit) in forms.items()
        }
        self.apart = {(first, second) for first, second in findings["apart"]}

    def check_together(self, present: Collection[str]) -> None:
        """Check the modalities of a prompt's items.

        Raises:
            UnsupportedModalityError: two of them are to be kept apart.
        """
        for first, second in self.apart:
            if first in present and second in present:
                raise UnsupportedModalityError(
                    f"this model takes no {second} beside an {first}, which it would embed otherwise than alone; send "
                    f"them in prompts of their own",
                    modality=second,
                )

    def small(self, modality: str, seed: int = 0) -> Any:
        """Return a small item; another one, and of another size, for each seed."""
        if modality == "audio":
            return small_audio(self.sampling_rate, seed)
        if modality == "video":
            width, height = small_size(seed)
            part = self.processor.video_processor
            sampled = getattr(part, "num_frames", None) if getattr(part, "do_sample_frames", False) else None
            frames = max(8, sampled or 0) + 2 * seed  # some processors take no video of fewer frames than they sample
            return video_of(dummy_videos(1, width=width, height=height, num_frames=frames)[0], _FPS)
        return small_image(seed)

    def turned(self, modality: str) -> Any:
        """Return an item of the size of a small one that differs from it: upside down, or backwards."""
        item = self.small(modality)
        if modality == "video":
            return video_of(np.stack(list(item.read()))[:, ::-1, ::-1].copy(), _FPS)
        return turned(item)

    def in_chats(self, modality: str) -> str:
        """Return what stands for an item in a conversation: its text, with the tokens of the chat template around."""
        tokenizer, text = self.context.tokenizer, self.modalities[modality].text
        special = [str(token) for token in tokenizer.added_tokens_decoder.values() if str(token) != text]
        return marked(text, self.context.chat_template or "", special)

    def with_marks(self, modality: str) -> list[Modality]:
        """Return how items are placed if what a chat template writes around one is part of it; nothing if it has none.

        Some models tell a video's frames from images by the tokens around the video.
        """
        text = self.in_chats(modality)
        known = self.modalities[modality]
        return [] if text == known.text else [replace(known, text=text, target=tuple(self._tokenize(text)))]

    @property
    def sampling_rate(self) -> int:
        """Samples per second of audio."""
        part = next(part for name in _PARTS["audio"] if (part := getattr(self.processor, name, None)) is not None)
        return int(part.sampling_rate)

    # --- placeholders -----------------------------------------------------------------------------------------------

    def _examine(self, modality: str) -> Modality:
        reasons: dict[str, list[str]] = {}
        for text in candidates(self.processor, modality):
            try:
                tensors, tokens = self._placed(modality, text, self.small(modality), {})
            except Exception as error:
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                reasons.setdefault(reason, []).append(repr(text))
                continue
            embeds = frozenset(self._embed_token_ids(modality) & set(tokens))
            if embeds:
                limit = None if self._takes_two(modality, text) else 1
                target, name = tuple(self._tokenize(text)), f"{modality}_placeholder_ids"
                return Modality(text, target, embeds, frozenset(tensors), name, limit)
            reasons.setdefault(f"no {modality} token in its place", []).append(repr(text))
        why = "; ".join(f"{', '.join(texts)}: {reason}" for reason, texts in reasons.items()) or "nothing does"
        raise self.refused(f"does not say what stands for an {modality} in a prompt ({why})", "get_prompt_updates")

    def _takes_two(self, modality: str, text: str) -> bool:
        try:
            self.call(f"{text}{text}", [(modality, self.small(modality, seed)) for seed in (0, 1)], {})
        except ValueError:
            return False
        return True

    def _embed_token_ids(self, modality: str) -> set[int]:
        if modality == "video":  # of tokens of its own, or of its frames' as images
            return self._stated_token_ids(modality) | self._stated_token_ids("image")
        return self._stated_token_ids(modality)

    def _stated_token_ids(self, modality: str) -> set[int]:
        names = (f"{modality}_token_id", f"{modality}_token_index")
        config = {getattr(self.context.hf_config, name, None) for name in names} - {None}
        # some processors call the token by that name that users write, which marks an item and takes no embedding
        stated = config or {getattr(self.processor, name, None) for name in names}
        stated |= set(getattr(self.processor, f"{modality}_token_ids", None) or ())
        indicators = (
            getattr(self.context.hf_config, "visual_indicator_token_ids", None) if modality == "image" else None
        )
        return {token for token in stated if isinstance(token, int)} | set(indicators or ())

    def with_ends(self, tokens: list[int]) -> list[int]:
        """Return a prompt's tokens with what the processor puts around them, unless they have that already."""
        before, after = self.ends.before, self.ends.after
        first, plain = list(self.context.tokenizer("a")["input_ids"]), self._tokenize("a")
        own = first[: first.index(plain[0])]  # what the tokenizer itself begins with
        begun = tokens[: len(before) + len(own)] == [*before, *own]
        finished = tokens[len(tokens) - len(after) :] == list(after)
        return Ends(() if begun else before, () if finished else after).put(tokens)

    def _tokenize(self, text: str) -> list[int]:
        return list(self.context.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _placed(
        self, modality: str, text: str, item: Any, kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[int]]:
        output = self.call(text, [(modality, item)], kwargs)
        tokens, bare = flat(output["input_ids"]), self.ends.put(self.context.tokenizer(text)["input_ids"])
        placed = between(tokens, bare, self._tokenize(text))
        if placed is None:
            raise ValueError(f"it puts tokens around a prompt that its tokenizer does not: {tokens} for {bare}"[:200])
        return without_text(output), placed

    def call(self, text: str, items: Sequence[tuple[str, Any]], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the processor's output for a text with items `(modality, item)`, in its order."""
        media: dict[str, Any] = {}
        for modality, item in items:
            media.setdefault(ARGUMENT[modality], []).append(item)
        if ARGUMENT["audio"] in media:
            media["sampling_rate"] = self.sampling_rate
        videos: list[Video] = media.pop(ARGUMENT["video"], [])
        call = partial(self.processor, text=text, return_tensors="pt")
        return dict(processed(call, videos, {**kwargs, **media}) if videos else call(**{**kwargs, **media}))

    def process(self, modality: str, item: Any, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Return an item's tensors, with the processor's dimension of items, and its tokens `[num_tokens]`.

        Raises:
            MediaError: it becomes no token.
        """
        import torch

        known = self.modalities[modality]
        tensors, tokens = self._placed(modality, known.text, item, kwargs)
        if known.embed_token_ids.isdisjoint(tokens):
            raise MediaError(f"this {modality} is too small: {type(self.processor).__name__} makes no token of it")
        return tensors, torch.tensor(tokens)

    def modalities_of(self, names: Collection[str]) -> dict[str, str]:
        """Return `{name of a tensor: modality}`: the item's, by the name of its tokens, if these are there.

        Else that of small items' tensors; larger ones may have more beside.
        """
        of_item = [modality for modality, one in self.modalities.items() if one.tokens_name in names]
        known = {name: modality for modality, one in self.modalities.items() for name in one.tensors}
        (first, *_) = of_item or [known[name] for name in names if name in known] or self.modalities
        return dict.fromkeys(names, first) if of_item else {name: known.get(name, first) for name in names}

    # --- the largest items ------------------------------------------------------------------------------------------

    def largest(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Mapping[str, int]]
    ) -> dict[str, Any]:
        """Return items that become the most tokens, of those that fit a prompt of `seq_len`."""
        media: dict[str, Any] = {}
        if count := mm_counts.get("image", 0):
            width, height = self._largest_size(seq_len, mm_options.get("image", {}))
            media["image"] = dummy_images(count, width=width, height=height)
        if count := mm_counts.get("video", 0):
            # on a CPU memory is not measured by the dummies, and a real tower needs minutes for more
            tokens = min(seq_len, _CPU_TOKENS) if self.context.device.type == "cpu" else seq_len
            frames, width, height = self._largest_video(tokens, mm_options.get("video", {}))
            videos = dummy_videos(count, width=width, height=height, num_frames=frames)
            media["video"] = [(video, {"fps": _FPS, "do_sample_frames": False}) for video in videos]
        if count := mm_counts.get("audio", 0):
            samples = longest_audio(self._count_audio, self.sampling_rate, seq_len)
            media["audio"] = dummy_audios(count, num_samples=samples, bounds=mm_options.get("audio"))
        return media

    def _largest_size(self, seq_len: int, bounds: Mapping[str, int]) -> tuple[int, int]:
        """Return an image's width and height; tokens are counted by the processor's formula, else by processing."""
        if hasattr(self.processor, "_get_num_multimodal_tokens"):
            return largest_image(self._count_by_formula, seq_len, bounds)
        return largest_image(self._count_by_processing, seq_len, bounds, quick=False)

    def _count_by_formula(self, width: int, height: int) -> int | None:
        kwargs = self.context.kwargs_for("image")
        try:
            with _kept_defaults(self.processor):
                stated = self.processor._get_num_multimodal_tokens(image_sizes=[(height, width)], **kwargs)
        except ValueError:
            return None  # an aspect ratio that the processor refuses
        return int(stated["num_image_tokens"][0])

    def _count_by_processing(self, width: int, height: int) -> int | None:
        if max(width, height) > 2000:  # processing takes long, and processors without a formula resize to less
            return None
        (image,) = dummy_images(1, width=width, height=height)
        try:
            return len(self.process("image", image, self.context.kwargs_for("image"))[1])
        except (ValueError, MediaError):
            return None

    def _largest_video(self, seq_len: int, bounds: Mapping[str, int]) -> tuple[int, int, int]:
        """Return a video's frames, width and height; most frames are those that the processor samples."""
        part, kwargs = self.processor.video_processor, self.context.kwargs_for("video")
        names = ("num_frames", "max_frames")
        stated = (kwargs.get(name) or getattr(part, name, None) for name in names)
        most = next((count for count in stated if isinstance(count, int)), _MOST_FRAMES)
        return largest_video(self._count_video, seq_len, {"num_frames": most, **bounds})

    def _count_video(self, frames: int, width: int, height: int) -> int | None:
        (pixels,) = dummy_videos(1, width=width, height=height, num_frames=frames)
        kwargs = {**self.context.kwargs_for("video"), "do_sample_frames": False}
        try:
            return len(self.process("video", video_of(pixels, _FPS), kwargs)[1])
        except (ValueError, MediaError):
            return None

    def _count_audio(self, samples: int) -> int | None:
        (audio,) = dummy_audios(1, num_samples=samples)
        try:
            return len(self.process("audio", audio, self.context.kwargs_for("audio"))[1])
        except ValueError:
            return None


def needs_plugin(what: str, hook: str | None) -> CheckpointError:
    """Return the error that a checkpoint cannot be served by the generic adapter.

    Args:
        what: what is in the way.
        hook: in which a plugin of its own would say what the generic adapter cannot find out; None where no hook can.
    """
    plugin = "" if hook is None else f"this architecture needs a plugin of its own, whose {hook} says it, or "
    return CheckpointError(f"{what}; {plugin}run the checkpoint with transformers' own generate")


def without_text(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a processor's output that are about items."""
    return {name: value for name, value in output.items() if name not in _TEXT and value is not None}


@contextmanager
def _kept_defaults(processor: Any) -> Iterator[None]:
    """Restore what transformers' processors write their arguments into: the defaults of all models of the process."""
    modules = [vars(sys.modules[base.__module__]) for base in type(processor).__mro__]
    named = [one for module in modules for one in module.values()]
    classes: list[Any] = [one for one in named if isinstance(one, type) and "_defaults" in vars(one)]
    kept = [deepcopy(one._defaults) for one in classes]
    try:
        yield
    finally:
        for one, defaults in zip(classes, kept, strict=True):
            one._defaults = defaults
