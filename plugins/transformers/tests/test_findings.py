"""What the check at load finds of a model holds for every prompt, also where another process prepares them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from corellm import LLM, SamplingParams
from corellm.engine.process.client import ProcessLLM
from corellm.errors import ItemLimitError, UnsupportedModalityError
from corellm.multimodal import dummy_audios, dummy_images
from corellm_transformers import checks
from corellm_transformers.tiny import make_tiny_checkpoint

_PARAMS = SamplingParams(temperature=0, max_tokens=2)


def _prompt(llm: Any, **media: list[Any]) -> dict[str, Any]:
    """Return a prompt with these items, one behind another."""
    place = llm.input_processor.mm_processor.hooks.get_placeholder_str
    marks = [place(modality=modality, index=i) for modality, items in media.items() for i in range(len(items))]
    return {"prompt": f"{' '.join(marks)} What?", "multi_modal_data": media}


def test_a_limit_that_was_found_holds_in_a_process_without_the_model(tmp_path: Path) -> None:
    """Emu3 pads the images of a prompt to one size, so that one of two differs from it alone."""
    path = make_tiny_checkpoint(tmp_path, architecture="Emu3ForConditionalGeneration")
    llm = ProcessLLM(str(path), dtype="float32")
    try:
        llm.input_processor.process(_prompt(llm, image=dummy_images(1, width=60, height=40)))
        with pytest.raises(ItemLimitError):
            llm.input_processor.process(_prompt(llm, image=dummy_images(2, width=60, height=40)))
    finally:
        llm.close()


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(
        tmp_path_factory.mktemp("omni"), architecture="Qwen2_5OmniThinkerForConditionalGeneration"
    )


def test_items_that_differ_beside_each_other_are_kept_apart(omni: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt with both is refused, whichever comes first; one with either is served."""
    check = checks._check

    def differs(forward: Any, wanted: Sequence[str]) -> None:
        if len(set(wanted)) == 2:
            raise checks._Differs("makes other embeddings", None)
        check(forward, wanted)

    monkeypatch.setattr(checks, "_check", differs)
    image, audio = dummy_images(1, width=60, height=40), dummy_audios(1, num_samples=8_000)
    with LLM(str(omni), dtype="float32") as llm:
        for media in ({"image": image}, {"audio": audio}):
            llm.generate(_prompt(llm.engine, **media), _PARAMS, use_tqdm=False)
        for media in ({"image": image, "audio": audio}, {"audio": audio, "image": image}):
            with pytest.raises(UnsupportedModalityError, match="audio beside an image"):
                llm.generate(_prompt(llm.engine, **media), _PARAMS, use_tqdm=False)
