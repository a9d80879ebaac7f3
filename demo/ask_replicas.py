"""`make ray-demo`: ask `demo` about the sample images, on two replicas; exit with 1 if an answer is wrong.

Starts `corellm serve demo --replicas 2`, which starts a local Ray cluster, and asks all questions at once as any client
does.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai

IMAGES = Path(__file__).parent / "images"


def answer(client: openai.OpenAI, image: Path, question: str) -> str:
    """The answer."""
    url = "data:image/png;base64," + base64.b64encode(image.read_bytes()).decode()
    response = client.chat.completions.create(
        model="demo", temperature=0, max_tokens=32,
        messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question},
        ]}],
    )  # fmt: skip
    return (response.choices[0].message.content or "").strip()


def main() -> int:
    """Start, ask, end; return the exit code."""
    asked = [
        (name, question, right)
        for name, answers in json.loads((IMAGES / "questions.json").read_text()).items()
        for question, right in answers.items()
    ]
    command = [sys.executable, "-m", "corellm", "serve", "demo", "--replicas", "2", "--port", "0"]
    command += ["--replica-cpus", "0.5", "--ray-address", "local"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()  # once both replicas are there
            if " at " not in said:
                return 1
            print(said, end="", flush=True)
            with (
                openai.OpenAI(base_url=said.split(" at ")[1].split()[0], api_key="unused") as client,
                ThreadPoolExecutor(8) as pool,
            ):
                answers = list(pool.map(lambda one: answer(client, IMAGES / one[0], one[1]), asked))
        finally:
            server.send_signal(signal.SIGTERM)
    wrong = 0
    for (name, question, right), text in zip(asked, answers, strict=True):
        wrong += text != right
        print(f"  {name:16} {question:40} {text}{'' if text == right else f'   (wrong: it is {right})'}")
    print(f"\n{len(asked) - wrong} of {len(asked)} right, on two replicas")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
