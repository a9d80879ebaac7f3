"""Promise 35 over HTTP: requests to `corellm serve`, all at once, have the bits that they have alone, offline."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from corellm.outputs import PositionLogprobs
from extensions.server.tests.command import CHAT, command
from tests.same_results.asked import Asked, batches, told
from tests.same_results.engines import DTYPES, Engines, threads

LOWEST = -9999.0
"""What the server reports for minus infinity, which JSON does not have."""


def body_of(asked: Asked, model: str) -> dict[str, Any]:
    """Return the request as a client sends it."""
    given = {name: value for name, value in asked.params.items() if value is not None}
    if "structured_outputs" in given:
        form = asdict(given["structured_outputs"])
        given["structured_outputs"] = {name: value for name, value in form.items() if value is not None}
    top = {"logprobs": True, "top_logprobs": given["logprobs"], "return_token_ids": True}
    return {"model": model, "messages": asked.messages, "priority": asked.priority, **given, **top}


def offline(result: tuple[Any, ...], num_top: int) -> list[Any] | None:
    """Return what a response has of a result of `told`: for each completion its text, tokens and log-probabilities."""
    error, _, completions = result
    if error != "None":
        return None
    return [
        (text, [*tokens], reason, [_chances(*one, num_top) for one in zip(tokens, logprobs, strict=True)])
        for text, tokens, reason, _, logprobs, _ in completions
    ]


def _chances(token: int, position: PositionLogprobs, num_top: int) -> tuple[float, list[float]]:
    top = sorted((one for one in position.values() if one.rank <= num_top), key=lambda one: one.rank)
    return max(position[token].logprob, LOWEST), [max(one.logprob, LOWEST) for one in top]


def online(response: Mapping[str, Any]) -> list[Any]:
    """Return the same of a response."""
    return [
        (
            choice["message"]["content"] or "",
            choice["token_ids"],
            choice["finish_reason"],
            [
                (one["logprob"], [other["logprob"] for other in one["top_logprobs"]])
                for one in choice["logprobs"]["content"]
            ],
        )
        for choice in response["choices"]
    ]


@pytest.mark.full
def test_over_http(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each server has settings of its own, adapters under names, and so many threads."""

    @settings(max_examples=2, phases=[Phase.generate])
    @given(
        st.sampled_from([*DTYPES]), st.sampled_from(engines.loras), engines.settings(), st.integers(1, 3),
        batches(engines.model, 8, 16),
    )  # fmt: skip
    def check(dtype: str, lora: bool, chosen: Mapping[str, Any], number: int, batch: Sequence[Asked]) -> None:
        plain, adapters = engines.plain(dtype, lora), engines.adapters if lora else ()
        with threads(1):
            alone = [told(plain, [one], adapters)[0] for one in batch]
        wanted = [offline(one, asked.params["logprobs"]) for one, asked in zip(alone, batch, strict=True)]
        names = [found.lora_name if (found := one.own_adapter(adapters)) else "tiny" for one in batch]
        options = {
            **engines.options(dtype, lora, chosen),
            "lora_modules": [f"{a.lora_name}={a.lora_path}" for a in adapters],
        }
        given = {name.replace("_", "-"): value for name, value in options.items() if value not in (None, [])}
        folder = tmp_path_factory.mktemp("server")
        with (
            command(engines.path, folder, {**os.environ, "OMP_NUM_THREADS": str(number)}, **given) as server,
            ThreadPoolExecutor(len(batch)) as pool,
        ):
            bodies = [body_of(*one) for one in zip(batch, names, strict=True)]
            responses = [*pool.map(lambda body: server.http.post(CHAT, json=body), bodies)]
        assert wanted.count(None) < len(wanted)
        for asked, response, want in zip(batch, responses, wanted, strict=True):
            assert (response.status_code == 200) == (want is not None), (asked, response.text)
            assert want is None or online(response.json()) == want, asked

    check()
