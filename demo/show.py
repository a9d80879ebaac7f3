"""`make demo`: the shipped model answers questions about picture files, through a plugin found by entry point.

Uses the public API only, so it is also an example. Exits with 1 if an answer is not the known right one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from PIL import Image

from corellm import LLM, SamplingParams

PICTURES = Path(__file__).parent / "pictures"


def thumbnail(path: Path, width: int = 32) -> str:
    """A picture as coloured half blocks: two pixels to a character cell."""
    picture = Image.open(path).convert("RGB")
    height = max(2, round(width * picture.height / picture.width) // 2 * 2)
    picture = picture.resize((width, height), Image.Resampling.BOX)
    lines = []
    for y in range(0, height, 2):
        cells = []
        for x in range(width):
            top, bottom = picture.getpixel((x, y)), picture.getpixel((x, y + 1))
            assert isinstance(top, tuple)
            assert isinstance(bottom, tuple)
            cells.append("\x1b[38;2;{};{};{};48;2;{};{};{}m▀".format(*top, *bottom))
        lines.append("  " + "".join(cells) + "\x1b[0m")
    return "\n".join(lines)


def main() -> int:
    """Ask every question about every picture."""
    questions: dict[str, dict[str, str]] = json.loads((PICTURES / "questions.json").read_text())
    asked = [(PICTURES / name, question, right) for name, qa in questions.items() for question, right in qa.items()]
    conversations = [
        [{"role": "user", "content": [{"type": "image", "image": path}, {"type": "text", "text": question}]}]
        for path, question, _ in asked
    ]
    with LLM("demo") as llm:
        outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=32))
    wrong, shown = 0, None
    for (path, question, right), output in zip(asked, outputs, strict=True):
        if path != shown:
            shown = path
            print(f"\n{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
            if sys.stdout.isatty():
                print(thumbnail(path))
        answer = output.outputs[0].text.strip()
        wrong += answer != right
        print(f"  {question:40} {answer}{'' if answer == right else f'   (wrong: it is {right})'}")
    print(f'\n{len(asked) - wrong} of {len(asked)} right. Ask about your own: corellm run demo picture.png "How many?"')
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
