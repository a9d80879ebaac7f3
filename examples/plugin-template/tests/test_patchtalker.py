"""PatchTalker's own behaviour, beside the contract: the layout of tokens, the size of images, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corellm import LLM, SamplingParams
from corellm.errors import CheckpointError, CorellmError, ProcessorKwargsError
from PIL import Image

from corellm_patchtalker.tiny import make_tiny_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=4)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("patchtalker"))


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(str(checkpoint)) as loaded:
        yield loaded


def ask(llm: LLM, images: list[Image.Image], **kwargs: Any) -> list[str]:
    """The prompt's tokens after `Look:` and a placeholder per image."""
    prompt = {
        "prompt": "Look:" + "<image>" * len(images),
        "multi_modal_data": {"image": images},
        "mm_processor_kwargs": kwargs,
    }
    (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    tokens: list[str] = llm.engine.context.tokenizer.convert_ids_to_tokens(output.prompt_token_ids)
    return [token for token in tokens if token in ("<image>", "<row>")]


@pytest.mark.parametrize(
    ("size", "rows", "columns"),
    [((8, 8), 1, 1), ((1, 1), 1, 1), ((9, 8), 1, 2), ((24, 40), 5, 3), ((48, 80), 5, 3), ((3, 600), 19, 1)],
)
def test_rows_of_patches(llm: LLM, size: tuple[int, int], rows: int, columns: int) -> None:
    """Images of any size: sides are rounded up to whole patches, halved until there are no more than 24."""
    assert ask(llm, [Image.new("RGB", size)]) == [*["<image>"] * columns, "<row>"] * rows


def test_images_keep_their_order(llm: LLM) -> None:
    """Each placeholder becomes its own image's rows."""
    one, two = ["<image>", "<row>"], ["<image>", "<image>", "<row>"]
    assert ask(llm, [Image.new("RGB", (8, 8)), Image.new("RGB", (16, 8))]) == one + two


def test_fewer_patches_may_be_asked_for(llm: LLM) -> None:
    """More than memory is planned for is an error, and so is what is no number."""
    assert ask(llm, [Image.new("RGB", (16, 16))], max_patches=1) == ["<image>", "<row>"]
    for wrong in (0, 25, True, "4"):
        with pytest.raises(ProcessorKwargsError, match=r"max_patches .*1 to 24"):
            ask(llm, [Image.new("RGB", (16, 16))], max_patches=wrong)


def test_a_checkpoint_without_weights(checkpoint: Path, tmp_path: Path) -> None:
    """Missing and truncated weights are errors; the latter names the file."""
    for file in checkpoint.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match="has no weights"):
        LLM(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(CorellmError, match=r"model\.safetensors: .*cannot be read"):
        LLM(str(tmp_path))


def test_dummy_weights(llm: LLM, checkpoint: Path, tmp_path: Path) -> None:
    """`load_format="dummy"` reads no weights; the layout of images is the same."""
    for file in checkpoint.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    images = [Image.new("RGB", (16, 8))]
    with LLM(str(tmp_path), load_format="dummy") as dummy:
        assert ask(dummy, images) == ask(llm, images)
