"""`make demo`: ask the shipped models about the sample images and videos; exit with 1 if an answer is wrong.

Uses the public API only, so it is also an example.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import av
from PIL import Image

from corellm import LLM, SamplingParams

HERE = Path(__file__).parent


def thumbnail(image: Image.Image, width: int = 32) -> list[str]:
    """Return an image as lines of coloured half blocks, two pixels to a character."""
    height = max(2, round(width * image.height / image.width) // 2 * 2)
    image = image.convert("RGB").resize((width, height), Image.Resampling.BOX)
    lines = []
    for y in range(0, height, 2):
        cells = []
        for x in range(width):
            top, bottom = image.getpixel((x, y)), image.getpixel((x, y + 1))
            assert isinstance(top, tuple)
            assert isinstance(bottom, tuple)
            cells.append("\x1b[38;2;{};{};{};48;2;{};{};{}m▀".format(*top, *bottom))
        lines.append("".join(cells) + "\x1b[0m")
    return lines


def preview(path: Path) -> str:
    """Return a thumbnail of an image, or of the first, middle and last frame of a video, side by side."""
    if path.suffix != ".mp4":
        return "\n".join(f"  {line}" for line in thumbnail(Image.open(path)))
    with av.open(path) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    parts = [thumbnail(Image.fromarray(frames[k]), width=20) for k in (0, len(frames) // 2, -1)]
    return "\n".join("  " + "  ".join(lines) for lines in zip(*parts, strict=True))


def ask(model: str, folder: Path, modality: str) -> tuple[int, int]:
    """Ask a model all questions of a folder; return the number of questions and of wrong answers."""
    questions: dict[str, dict[str, str]] = json.loads((folder / "questions.json").read_text())
    tasks = [(folder / name, question, right) for name, qa in questions.items() for question, right in qa.items()]
    conversations = [
        [{"role": "user", "content": [{"type": modality, modality: path}, {"type": "text", "text": question}]}]
        for path, question, _ in tasks
    ]
    with LLM(model) as llm:
        outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=32))
    wrong, current = 0, None
    for (path, question, right), output in zip(tasks, outputs, strict=True):
        if path != current:
            current = path
            print(f"\n{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
            if sys.stdout.isatty():
                print(preview(path))
        answer = output.outputs[0].text.strip()
        wrong += answer != right
        print(f"  {question:40} {answer}{'' if answer == right else f'   (wrong: it is {right})'}")
    return len(tasks), wrong


def main() -> int:
    """Ask about the images, then about the videos; return the exit code."""
    counts = [ask("demo", HERE / "images", "image"), ask("demo-video", HERE / "videos", "video")]
    total, wrong = (sum(numbers) for numbers in zip(*counts, strict=True))
    print(f'\n{total - wrong} of {total} right. Ask about your own: .venv/bin/corellm run demo image.png "How many?"')
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
