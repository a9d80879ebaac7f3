"""`make demo`: the shipped models answer questions about pictures and clips, through plugins found by entry point.

Uses the public API only, so it is also an example. Exits with 1 if an answer is not the known right one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import av
from PIL import Image

from corellm import LLM, SamplingParams

HERE = Path(__file__).parent


def thumbnail(picture: Image.Image, width: int = 32) -> list[str]:
    """A picture as lines of coloured half blocks: two pixels to a character cell."""
    height = max(2, round(width * picture.height / picture.width) // 2 * 2)
    picture = picture.convert("RGB").resize((width, height), Image.Resampling.BOX)
    lines = []
    for y in range(0, height, 2):
        cells = []
        for x in range(width):
            top, bottom = picture.getpixel((x, y)), picture.getpixel((x, y + 1))
            assert isinstance(top, tuple)
            assert isinstance(bottom, tuple)
            cells.append("\x1b[38;2;{};{};{};48;2;{};{};{}m▀".format(*top, *bottom))
        lines.append("".join(cells) + "\x1b[0m")
    return lines


def sketch(path: Path) -> str:
    """A picture small, or the beginning, middle and end of a clip side by side."""
    if path.suffix != ".mp4":
        return "\n".join(f"  {line}" for line in thumbnail(Image.open(path)))
    with av.open(path) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    parts = [thumbnail(Image.fromarray(frames[k]), width=20) for k in (0, len(frames) // 2, -1)]
    return "\n".join("  " + "  ".join(lines) for lines in zip(*parts, strict=True))


def ask(model: str, folder: Path, modality: str) -> tuple[int, int]:
    """Ask a model every question about every file of a folder; how many there were, and how many answers were wrong."""
    questions: dict[str, dict[str, str]] = json.loads((folder / "questions.json").read_text())
    asked = [(folder / name, question, right) for name, qa in questions.items() for question, right in qa.items()]
    conversations = [
        [{"role": "user", "content": [{"type": modality, modality: path}, {"type": "text", "text": question}]}]
        for path, question, _ in asked
    ]
    with LLM(model) as llm:
        outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=32))
    wrong, shown = 0, None
    for (path, question, right), output in zip(asked, outputs, strict=True):
        if path != shown:
            shown = path
            print(f"\n{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
            if sys.stdout.isatty():
                print(sketch(path))
        answer = output.outputs[0].text.strip()
        wrong += answer != right
        print(f"  {question:40} {answer}{'' if answer == right else f'   (wrong: it is {right})'}")
    return len(asked), wrong


def main() -> int:
    """Pictures, then clips."""
    counts = [ask("demo", HERE / "pictures", "image"), ask("demo-video", HERE / "clips", "video")]
    total, wrong = (sum(numbers) for numbers in zip(*counts, strict=True))
    print(f'\n{total - wrong} of {total} right. Ask about your own: corellm run demo picture.png "How many?"')
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
