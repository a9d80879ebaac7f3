"""An extension that fails wherever a request asks it to: one mark for each stage on a request's way.

Loaded by `corellm serve` in both of its processes. Media are marked by their size or colour, texts by token ids.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from corellm.hookspecs import ModelContext, hookimpl

PARSED, PROCESSED = (31, 17), (33, 19)
"""Sizes of images."""
ENCODED, MERGED = (255, 0, 255), (0, 255, 255)
"""Colours of images."""
LOGITS, SAMPLED, DETOKENIZED = 100, 101, 102
"""Token ids: of a prompt, and of two outputs."""
FAILING_STEPS = "CORELLM_TEST_FAILING_STEPS"
"""Names a file with the number of forward passes that fail from now on."""
SECRET = "a secret at 0x7f00deadbeef"
_MERGED = 12345.0


class Fault(Exception):
    """Nothing that corellm knows."""

    def __init__(self) -> None:
        super().__init__(SECRET)


class Extension:
    """What the entry point names."""

    @hookimpl
    def wrap_adapter(self, context: ModelContext) -> Any:
        """Wrap the adapter, and what has no hook."""
        from corellm.frontend.detokenizer import IncrementalDetokenizer
        from corellm.sampling.sampler import Sampler

        append, start = IncrementalDetokenizer.append, Sampler.start

        def failing_append(self: Any, token_id: int) -> str:
            if token_id == DETOKENIZED:
                raise Fault
            return append(self, token_id)

        def failing_start(self: Any, logits: Any, states: Any, **arguments: Any) -> Any:
            if any(SAMPLED in state._outputs for state in states):
                raise Fault
            return start(self, logits, states, **arguments)

        IncrementalDetokenizer.append, Sampler.start = failing_append, failing_start  # type: ignore[method-assign]
        return Wrapper()


class Wrapper:
    """Wraps the hooks that it names."""

    def __init__(self) -> None:
        self._is_marked = False

    @hookimpl(wrapper=True)
    def get_data_parser(self) -> Iterator[Any]:
        """A parser that fails after it has read a marked image."""
        parser = yield
        parse = parser.parse

        def failing(mm_data: Any) -> Any:
            items = parse(mm_data)
            images = items.get("image", ())
            if any(images.get(index).size == PARSED for index in range(len(images))):
                raise Fault
            return items

        parser.parse = failing
        return parser

    @hookimpl(wrapper=True)
    def call_hf_processor(self, mm_data: Mapping[str, Any]) -> Iterator[Any]:
        """Fail for a marked image."""
        if any(image.size == PROCESSED for image in mm_data.get("image", [])):
            raise Fault
        return (yield)

    @hookimpl(wrapper=True)
    def get_multimodal_embeddings(self, mm_kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """Fail for an image all of one colour, or mark its embeddings."""
        embeddings = yield
        pixels = mm_kwargs["pixel_values"]  # [items, 3, height, width]
        for index, image in enumerate(pixels):
            bright = tuple(255 * bool(value) for value in image[:, 0, 0] > 0)
            if image.std(dim=(1, 2)).max() < 1e-3 and bright == ENCODED:
                raise Fault
            if image.std(dim=(1, 2)).max() < 1e-3 and bright == MERGED:
                embeddings[index].fill_(_MERGED)
        return embeddings

    @hookimpl(wrapper=True)
    def merge_multimodal_embeddings(self, multimodal_embeddings: Any) -> Iterator[Any]:
        """Fail for marked embeddings."""
        if (multimodal_embeddings == _MERGED).any():
            raise Fault
        return (yield)

    @hookimpl(wrapper=True)
    def get_input_embeddings(self, input_ids: Any) -> Iterator[Any]:
        """Fail if the next step is to; note whether a token is marked."""
        if _counted_down():
            raise Fault
        self._is_marked = bool((input_ids == LOGITS).any())
        return (yield)

    @hookimpl(wrapper=True)
    def compute_logits(self) -> Iterator[Any]:
        """Fail for a marked token."""
        if self._is_marked:
            raise Fault
        return (yield)


def _counted_down() -> bool:
    """Whether a forward pass is to fail, which is one less to come."""
    file = Path(os.environ[FAILING_STEPS])
    count = int(file.read_text()) if file.exists() else 0
    if count:
        fail_steps(file, count - 1)
    return count > 0


def fail_steps(file: Path, count: int) -> None:
    """Let so many forward passes fail from now on; a process that reads the file meanwhile never finds it empty."""
    new = file.with_suffix(".new")
    new.write_text(str(count))
    new.replace(file)


def install(folder: Path) -> dict[str, str]:
    """Make it a distribution in a folder; returns the environment in which it is installed."""
    info = folder / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[corellm.extensions]\nfaulty = {__name__}:Extension\n")
    paths = [str(Path(__file__).parents[3]), str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), FAILING_STEPS: str(folder / "failing_steps")}
