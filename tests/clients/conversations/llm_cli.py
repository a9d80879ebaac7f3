"""Simon Willison's `llm`, whose models of OpenAI's form are listed in a file."""

import os
import sys
import tempfile
from pathlib import Path

import llm
from shared import Turns, converse

folder = Path(tempfile.mkdtemp())
os.environ["LLM_USER_PATH"] = str(folder)
url, name = sys.argv[1:3]
listed = f"- model_id: {name}\n  model_name: {name}\n  api_base: {url}/v1\n  vision: true\n"
(folder / "extra-openai-models.yaml").write_text(listed)
model = llm.get_model(name)
model.key = "x"


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn of its conversation."""
    conversation = model.conversation()
    return [
        conversation.prompt(
            text, attachments=[llm.Attachment(path=turns.path)] if image else [], stream=streamed, temperature=0
        ).text()
        for text, image in turns
    ]


converse(hold)
