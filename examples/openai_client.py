"""Asks a running server about images with OpenAI's client, all at once, and prints each output.

Start a server, then ask it:

    corellm serve demo
    python examples/openai_client.py "What number is written here?" demo/images/407.png demo/images/29.png
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import mimetypes
from pathlib import Path

import openai


async def ask(client: openai.AsyncOpenAI, model: str, question: str, image: Path) -> str:
    """The output about one image."""
    kind = mimetypes.guess_type(image)[0] or "image/png"
    url = f"data:{kind};base64,{base64.b64encode(image.read_bytes()).decode()}"
    completion = await client.chat.completions.create(
        model=model,
        temperature=0,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": url}},
                    {"type": "text", "text": question},
                ],
            }
        ],
    )
    return (completion.choices[0].message.content or "").strip()


async def main() -> None:
    """Ask about every image, and print the outputs in order."""
    parser = argparse.ArgumentParser(description="Ask a server about images.")
    parser.add_argument("question")
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="unused")
    options = parser.parse_args()
    async with openai.AsyncOpenAI(base_url=options.url, api_key=options.api_key) as client:
        model = (await client.models.list()).data[0].id
        outputs = await asyncio.gather(*(ask(client, model, options.question, image) for image in options.images))
    for image, output in zip(options.images, outputs, strict=True):
        print(f"{image}: {output}")


if __name__ == "__main__":
    asyncio.run(main())
