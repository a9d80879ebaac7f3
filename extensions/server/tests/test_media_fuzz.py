"""Damaged files over HTTP: each gets a 200 or a 400 of our shape; no process ends, grows without bound, or errs later.

A few hundred files here; `make fuzz` sends 10,000. A case is made of its number alone, so that it can be sent again.
"""

from __future__ import annotations

import base64
import importlib
import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from extensions.media.tests import test_audio
from extensions.server.tests.command import CHAT, Command, command
from extensions.server.tests.conftest import chat, user
from extensions.server.tests.test_promises import error_of
from tests.media import test_image, test_media_formats
from tests.media.mutation import mutated

Files = dict[tuple[str, str], bytes]
"""Valid files by modality and format."""

VIDEOS: Files = {key: make() for key, make in test_media_formats.FILES.items() if key[0] == "video"}
IMAGES: Files = {("image", name): data for name, data in test_image.FILES.items()}
AUDIO: Files = {("audio", name): data for name, data in test_audio.FILES.items()} | {
    ("audio", name): test_media_formats.FILES["audio", name]() for name in ("aac", "mp4", "mkv")
}
MODELS: dict[str, tuple[str, Files]] = {
    "images and videos": ("corellm_qwen_vl.tiny", IMAGES | VIDEOS),
    "audio": ("corellm_qwen_audio.tiny", AUDIO),
}
MOST_GROWTH = 100 << 20
"""Bytes by which a process may grow after the first cases."""


def request(modality: str, data: bytes, number: int = 0) -> dict[str, Any]:
    """A conversation about a file; every third is a stream."""
    url = f"data:{modality}/any;base64," + base64.b64encode(data).decode()
    part = {"type": f"{modality}_url", f"{modality}_url": {"url": url}}
    return chat(user(part, "what?"), max_tokens=1 + number % 2, stream=number % 3 == 0)


def sent(running: Command, files: Files, number: int) -> str:
    """Send the case of a number; returns its modality and how it ended."""
    (modality, name), data = list(files.items())[number % len(files)]
    same = [other for key, other in files.items() if key[0] == modality]
    damaged = mutated(data, same, random.Random(number))
    response = running.http.post(CHAT, json=request(modality, damaged, number))
    case = f"case {number}, {name}: {response.text[:1000]}"
    assert response.status_code in (200, 400), case
    if response.status_code == 400:
        error = error_of(response, 400)
        assert error["param"] == "messages[0].content[0]" or error["code"] == "context_length_exceeded", case
        assert "/tmp" not in error["message"], case  # no file of this machine
    else:
        assert '"error"' not in response.text, case
    return f"{modality} {response.status_code}"


def memory(running: Command) -> dict[str, int]:
    """Resident bytes: of the API process, of the engine's, and of the largest that decodes."""
    api = psutil.Process(running.process.pid)
    others = [child for child in api.children(recursive=True) if child.pid != running.engine]
    decoding = max((child.memory_info().rss for child in others), default=0)
    engine = psutil.Process(running.engine).memory_info().rss
    return {"api": api.memory_info().rss, "engine": engine, "decoding": decoding}


def canary(running: Command, files: Files) -> list[str]:
    """The outputs for the valid files."""
    texts = []
    for (modality, name), data in files.items():
        response = running.http.post(CHAT, json={**request(modality, data), "stream": False, "max_tokens": 8})
        assert response.status_code == 200, (name, response.text)
        texts.append(response.json()["choices"][0]["message"]["content"])
    return texts


def fuzz(running: Command, files: Files, numbers: Iterable[int], seen: Counter[str]) -> None:
    """Send the cases of all numbers, four at once, and count how they ended."""
    with ThreadPoolExecutor(4) as threads:
        seen.update(threads.map(lambda number: sent(running, files, number), numbers))


RETURNING = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Has freed memory go back to the system: engines keep up to a gigabyte of it (`corellm.system.allocator`), which takes
thousands of cases to fill up, and would look like a leak."""


@pytest.mark.parametrize("cases", [150, pytest.param(5000, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", MODELS)
def test_damaged_media(kind: str, cases: int, tmp_path: Path) -> None:
    """Valid files have the same outputs before and after; nothing was logged as an internal error."""
    module, files = MODELS[kind]
    model = importlib.import_module(module).make_tiny_checkpoint(tmp_path / "model")
    seen: Counter[str] = Counter()
    with command(model, tmp_path, RETURNING, mm_processor_cache_gb=0.01) as running:
        wanted, engine = canary(running, files), running.engine
        assert len(set(wanted)) > 1
        fuzz(running, files, range(cases // 5), seen)
        first = now = memory(running) if cases == 5000 else {}  # few cases say nothing of memory
        for start in range(cases // 5, cases, 100):
            fuzz(running, files, range(start, min(start + 100, cases)), seen)
            now = memory(running) if first else {}
            assert all(now[name] < first[name] + MOST_GROWTH for name in now), (first, now)
        assert running.engine == engine
        assert canary(running, files) == wanted
    assert seen.total() == cases
    for modality in {modality for modality, _ in files}:
        assert seen[f"{modality} 200"]
        assert seen[f"{modality} 400"]
    log = (tmp_path / "stderr").read_text()
    assert "internal error" not in log
    assert "Traceback" not in log
    print(kind, dict(seen), "resident bytes after a fifth of the cases", first, "at the end", now)
