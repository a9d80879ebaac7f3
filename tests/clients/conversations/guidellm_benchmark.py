"""guidellm's benchmark, as its command runs it, of one conversation; a message's text goes before its image."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from shared import Turns, converse


def hold(turns: Turns, *, streamed: bool) -> list[str]:
    """The output of each turn, by the benchmark's report."""
    row = {}
    for number, (text, image) in enumerate(turns):
        row |= {f"prompt_{number}": text} | ({f"image_{number}": image} if image else {})
    with tempfile.TemporaryDirectory() as folder:
        data, report = Path(folder, "conversation.jsonl"), Path(folder, "report.json")
        data.write_text(json.dumps(row) + "\n")
        backend = {
            "kind": "openai_http", "target": turns.url, "model": turns.model, "stream": streamed,
            "extras": {"body": {"temperature": 0}},
        }  # fmt: skip
        options = {
            "--backend": backend,
            "--profile": {"kind": "synchronous"},
            "--data": {"kind": "json_file", "path": str(data)},
            "--output": {"kind": "json", "path": str(report)},
        }
        words = [word for name, given in options.items() for word in (name, json.dumps(given))]
        command = [str(Path(sys.executable).with_name("guidellm")), "run", *words]
        caching = os.environ | {"HF_HOME": folder}  # the conversation is read through a cache
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=caching)
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
        requests = sorted(benchmark["requests"]["successful"], key=lambda request: request["info"]["turn_index"])
    return [request["output"] for request in requests]


converse(hold)
