"""Runs encoders on the items a step needs and keeps their outputs until the engine frees them.

Which items, when, and how long they stay is the engine's decision; this file runs the adapter's encoder in batches
and checks what it returns. A failing item fails alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corellm.attention.graph import Graph
from corellm.errors import CorellmError, EmbeddingCountError, EncoderError
from corellm.modelling.defaults import floating_to
from corellm.multimodal.fields import group_joinable, join_items
from corellm.multimodal.inputs import MultiModalFeature
from corellm.multimodal.nested import shape_of
from corellm.plugin.hook_callers import HookCallers
from corellm.system.failures import failure_of
from corellm.worker.encoder_graphs import EncoderGraphs
from corellm.worker.encoder_outputs import are_finite, checked_outputs, not_finite, require_finite


class EncoderRunner:
    """Encoder outputs by item identifier: `[num_embeds, width]` each.

    Args:
        hooks: the model's hook callers.
        model: the loaded model.
        width: of an embedding: the decoder's hidden size or more; None for that of the first item, a dummy at load.
        dtype, device: of the model.
        around: returns what surrounds the encoders of a variant; the model's own have the variant "".
    """

    def __init__(
        self,
        hooks: HookCallers,
        model: Any,
        width: int | None,
        dtype: torch.dtype,
        device: torch.device,
        around: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._hooks, self._model, self.width = hooks, model, width
        self._dtype, self._device, self._around = dtype, device, around
        self._moved = partial(floating_to, dtype=dtype, device=device)
        self._outputs: dict[str, Tensor] = {}
        self._failures: dict[str, CorellmError] = {}
        self._unsettled: list[tuple[Sequence[MultiModalFeature], Tensor]] = []
        """Batches whose embeddings may not be finite: their items and, on the device, whether each one's are."""
        self._graphs: EncoderGraphs | None = None

    def __contains__(self, feature: MultiModalFeature) -> bool:
        return feature.identifier in self._outputs

    def drop(self, identifiers: Iterable[str]) -> None:
        """Forget outputs."""
        for identifier in identifiers:
            self._outputs.pop(identifier, None)

    def drop_all(self) -> None:
        """Forget every output."""
        self._outputs.clear()
        self._failures.clear()
        self._unsettled.clear()

    def output(self, feature: MultiModalFeature) -> Tensor:
        """Return the embeddings of an item that was run.

        Raises:
            CorellmError: the reason why there are none.
        """
        output = self._outputs.get(feature.identifier)
        if output is None or len(output) != feature.placeholder.num_embeds:
            raise self._failures.get(feature.identifier) or _missing(feature, output)
        return output

    @torch.inference_mode()
    def check(self, features: Sequence[MultiModalFeature]) -> None:
        """Embed the adapter's dummy items at load, to find an encoder that does not fit its placeholders.

        Raises:
            CorellmError: what is wrong with the first that fails.
        """
        self.run(features)
        for feature in features:
            self.output(feature)
        self.drop(feature.identifier for feature in features)

    def capture_graphs(self, features: Sequence[MultiModalFeature], make_graph: Callable[[], Graph]) -> None:
        """Capture the encoders of items shaped like these, where possible; see `EncoderGraphs`."""
        graphs = EncoderGraphs(self._encode, make_graph)
        for feature in features:
            graphs.capture(feature.modality, self._joined([feature]))
        self._graphs = graphs

    def drop_graphs(self) -> None:
        """Forget what `capture_graphs` captured."""
        self._graphs = None

    def run(self, features: Sequence[MultiModalFeature]) -> None:
        """Embed items and wait for them. Failures are kept for `output`."""
        self.launch(features)
        self.settle()

    def launch(self, features: Sequence[MultiModalFeature]) -> None:
        """Embed items, joined into as few encoder batches as their shapes allow; `settle` has to follow.

        The device may compute still, and `output` may return embeddings that `settle` then finds not to be finite.
        """
        self._failures.clear()
        self._unsettled.clear()
        kinds: dict[tuple[str, bool, str], list[MultiModalFeature]] = {}
        for feature in features:
            kinds.setdefault((feature.modality, feature.precomputed, feature.variant), []).append(feature)
        for group in kinds.values():
            for members in group_joinable([feature.data for feature in group]):
                self._run_batch([group[i] for i in members])

    def settle(self) -> bool:
        """Wait for what was launched; returns whether items failed now, whose embeddings are not finite."""
        unsettled, self._unsettled = self._unsettled, []
        failed = [
            feature
            for features, finite in unsettled
            for feature, is_finite in zip(features, finite.tolist(), strict=True)
            if not is_finite
        ]
        for feature in failed:
            self._outputs.pop(feature.identifier, None)
            self._failures[feature.identifier] = not_finite(feature, self._dtype)
        return bool(failed)

    def _run_batch(self, features: list[MultiModalFeature]) -> None:
        """Run one batch; if it fails, its items run alone, so that only the failing item's requests fail."""
        try:
            outputs = checked_outputs(features, self._embed(features), self.width, self._dtype, self._device)
            self.width, finite = outputs[0].shape[-1], are_finite(outputs)
            if len(features) > 1 and _are_packed(features):
                require_finite(features, finite, self._dtype)
            self._outputs |= {f.identifier: _with_own_storage(x) for f, x in zip(features, outputs, strict=True)}
            self._unsettled.append((features, finite))
            return
        except Exception as error:
            if len(features) == 1:
                stage = f"{features[0].modality} {features[0].item}: get_multimodal_embeddings"
                self._failures[features[0].identifier] = failure_of(stage, error, EncoderError)
                return
        for feature in features:  # outside `except`: the error holds the failed batch's tensors
            self._run_batch([feature])

    def _embed(self, features: list[MultiModalFeature]) -> Any:
        """Return what the adapter makes of the items; of precomputed ones, the embeddings that they are."""
        if features[0].precomputed:
            return [next(iter(feature.data.get_data().values())) for feature in features]
        modality, variant, joined = features[0].modality, features[0].variant, self._joined(features)
        outputs = self._graphs.run(modality, joined) if self._graphs is not None and not variant else None
        with self._around(variant):
            return self._encode(modality, joined) if outputs is None else outputs

    def _joined(self, features: Sequence[MultiModalFeature]) -> dict[str, Any]:
        return join_items([feature.data for feature in features], self._moved)

    def _encode(self, modality: str, mm_kwargs: Mapping[str, Any]) -> Any:
        return self._hooks.get_multimodal_embeddings(model=self._model, modality=modality, mm_kwargs=mm_kwargs)


def _are_packed(features: Sequence[MultiModalFeature]) -> bool:
    """Whether an encoder gets items one behind the other, or in a list: one that is not finite may spoil the others."""
    shapes = [[(elem.field.kind, shape_of(elem.data)) for _, elem in feature.data.items()] for feature in features]
    return any(kind == "flat" for kind, _ in shapes[0]) or any(each != shapes[0] for each in shapes)


def _missing(feature: MultiModalFeature, output: Tensor | None) -> CorellmError:
    """Return the error for an item without embeddings; `output` is that of another item of the same uuid, if any."""
    item = f"{feature.modality} {feature.item}"
    if output is None:
        return EncoderError(f"{item}: its encoder output was dropped")
    return EmbeddingCountError(
        f"{item}: its placeholder takes {feature.placeholder.num_embeds} embeddings and {len(output)} are known under "
        f"its identifier; give different items different uuids"
    )


def _with_own_storage(output: Tensor) -> Tensor:
    """Return the tensor, copied if it is a view: it would keep the whole batch's memory alive."""
    return output.clone() if output.untyped_storage().nbytes() > output.nbytes else output
