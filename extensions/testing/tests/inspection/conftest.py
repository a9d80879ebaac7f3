"""Reports of tiny models, each made once, and their media files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from corellm.cli.conversation import user_message
from corellm.cli.media import by_modality, open_file
from corellm.config import EngineConfig
from corellm.engine.llm_engine import LLMEngine
from corellm_testing.inspection.collect import collect
from corellm_testing.inspection.report import Report
from extensions.media.tests.videos import encode, moving

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llava": ("corellm_llava.tiny", {}),
    "fuyu": ("corellm_fuyu.tiny", {}),
    "blip2": ("corellm_blip2.tiny", {}),
    "qwen2_vl": ("corellm_qwen_vl.tiny", {}),
    "qwen3_vl": ("corellm_qwen_vl.tiny", {"architecture": "Qwen3VLForConditionalGeneration"}),
    "qwen2_audio": ("corellm_qwen_audio.tiny", {}),
}
"""`{family: (module of its tiny checkpoint, options)}`."""

Inspect = Callable[..., Report]


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `image.png`, `video.mp4` and `audio.wav`."""
    path = tmp_path_factory.mktemp("media")
    gradient = np.linspace(0, 255, 90 * 120 * 3).reshape(90, 120, 3).astype(np.uint8)
    Image.fromarray(gradient).save(path / "image.png")
    (path / "video.mp4").write_bytes(encode([moving(i) for i in range(50)]))
    soundfile.write(path / "audio.wav", 0.5 * np.sin(np.arange(16_000) ** 2 / 20_000), 16_000)
    return path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`tiny(family)`: the path of its checkpoint."""
    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            module, options = FAMILIES[family]
            made[family] = tmp_path_factory.mktemp(family)
            importlib.import_module(module).make_tiny_checkpoint(made[family], **options)
        return made[family]

    return make


@pytest.fixture(scope="session")
def inspect(tiny: Callable[[str], Path], media: Path) -> Inspect:
    """`inspect(family, text, *files)`: the report of that chat message; `raw=True` takes the text as it is."""
    reports: dict[tuple[Any, ...], Report] = {}

    def make(family: str, text: str, *names: str, raw: bool = False) -> Report:
        key = (family, text, *names, raw)
        if key not in reports:
            path, files = tiny(family), [open_file(str(media / name)) for name in names]
            prompt = {"prompt": text, "multi_modal_data": by_modality(files)}
            reports[key] = collect(
                lambda: LLMEngine(EngineConfig.from_kwargs(model=str(path)), check_encoders=False),
                lambda inputs: inputs.process(prompt) if raw else inputs.process_chat([user_message(text, files)]),
                by_modality(files),
                model=family,
            )
        return reports[key]

    return make
