"""The arithmetic of a measurement, on times written by hand; numpy is the oracle for percentiles."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from corellm.errors import ConfigError
from corellm_server.loadgen import plot, report
from corellm_server.loadgen.result import RequestResult
from corellm_server.loadgen.settings import LoadSettings
from corellm_server.loadgen.workload import arrival_times, request_body

URL = "http://127.0.0.1:1"


def results() -> list[RequestResult]:
    """Three that succeeded, one of them with one token, and one that failed."""
    return [
        RequestResult(0, 1.0, 1.0, [1.5, 1.7, 2.1], 2.2, prompt_tokens=10, output_tokens=4),
        RequestResult(1, 2.0, 2.0, [2.25], 2.5, prompt_tokens=10, output_tokens=1),
        RequestResult(2, 2.5, 3.0, [3.0, 4.0], 5.0, prompt_tokens=10, output_tokens=2),
        RequestResult(3, 4.0, 4.0, [4.5], 6.0, output_tokens=1, error="HTTP 429", message="queue full"),
    ]


def test_durations_of_one_request() -> None:
    """Tokens after the first share the time after the first; gaps are between parts, of which some hold two tokens."""
    result = results()[0]
    assert result.ttft == pytest.approx(0.5)
    assert result.tpot == pytest.approx(0.6 / 3)
    assert result.gaps == pytest.approx([0.2, 0.4])
    assert result.latency == pytest.approx(1.2)
    assert results()[1].tpot is None
    assert RequestResult(0, 0.0).ttft is None


def test_summary() -> None:
    """Throughput is of what succeeded, over the whole time; goodput is of what met both limits."""
    settings = LoadSettings(URL, slo_ttft=300, slo_tpot=500)
    numbers = report.summarize(settings, results())
    assert numbers["duration_s"] == 5.0
    assert numbers["request_throughput"] == 3 / 5
    assert (numbers["output_tokens"], numbers["output_throughput"]) == (7, 7 / 5)
    assert numbers["prompt_tokens"] == 30
    assert numbers["errors"] == {"HTTP 429": 1}
    assert (numbers["goodput"], numbers["good_share"]) == (1 / 5, 1 / 4)  # the second: it has no further token
    assert numbers["max_lag_ms"] == 500
    assert numbers["ttft_ms"]["p50"] == pytest.approx(250)
    assert numbers["gap_ms"]["p90"] == pytest.approx(float(np.percentile([200, 400, 1000], 90)))


@pytest.mark.parametrize(
    ("ttft", "tpot", "good"), [(None, None, 3), (250, None, 2), (499, 1000, 2), (501, 1000, 3), (None, 999, 2)]
)
def test_goodput(ttft: float | None, tpot: float | None, good: int) -> None:
    """A failed request is never good."""
    assert report.summarize(LoadSettings(URL, slo_ttft=ttft, slo_tpot=tpot), results())["good_share"] == good / 4


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_numpys(values: list[float]) -> None:
    """Interpolated between neighbours."""
    found = report._percentiles(values)
    assert list(found.values()) == pytest.approx(
        [float(np.percentile([v * 1000 for v in values], p)) for p in (50, 90, 99)]
    )


def test_text() -> None:
    """Failures have an example of what the server said; a generator that was late says so."""
    settings = LoadSettings(URL, slo_ttft=300)
    text = report.as_text(settings, "demo", results())
    assert "4, of which 3 succeeded, in 5.0 s: 0.60 requests/s (sent at 4)" in text
    assert "goodput    0.40 requests/s, 50.0% of all, with the first token within 300 ms" in text
    assert "failed     1 x HTTP 429, e.g. queue full" in text
    assert "up to 500 ms late" in text
    only_failed = report.as_text(settings, "demo", results()[3:])
    assert "time to first token              -         -         -" in only_failed


def test_json_has_no_key() -> None:
    """It can be shared; an infinite rate is still JSON."""
    text = json.dumps(
        report.as_json(LoadSettings(URL, rate=float("inf"), api_key="secret"), "m", results()), allow_nan=False
    )
    assert "secret" not in text
    assert json.loads(text)["requests"][0]["chunks"] == [1.5, 1.7, 2.1]
    assert "secret" not in repr(LoadSettings(URL, api_key="secret"))


@pytest.mark.parametrize("measured", [results(), results()[3:]])
def test_plot(measured: list[RequestResult], tmp_path: Path) -> None:
    """A drawing, also if nothing succeeded."""
    path = tmp_path / "load.png"
    plot.save_plot(LoadSettings(URL, slo_ttft=300, slo_tpot=10), "demo", measured, str(path))
    with Image.open(path) as image:
        assert image.size == (1320, 840)


def test_arrivals_are_a_poisson_process() -> None:
    """Gaps are exponential: mean and standard deviation are one over the rate; the same seed gives the same times."""
    times = arrival_times(LoadSettings(URL, rate=4, num=20_000))
    gaps = np.diff(times)
    assert times[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)
    assert times == arrival_times(LoadSettings(URL, rate=4, num=20_000, images=3))
    assert times != arrival_times(LoadSettings(URL, rate=4, num=20_000, seed=1))
    assert arrival_times(LoadSettings(URL, rate=float("inf"), num=3)) == [0, 0, 0]


def test_bodies() -> None:
    """The seed gives prompt and images; no two requests share a beginning or an image."""
    settings = LoadSettings(URL, images=2, image_size=(64, 48), extra_body={"max_tokens": 5, "ignore_eos": True})
    first, second = (request_body(settings, "m", index) for index in (0, 1))
    assert first == request_body(settings, "m", 0)
    assert first != request_body(LoadSettings(URL, seed=1, images=2, image_size=(64, 48)), "m", 0)
    body: dict[str, Any] = json.loads(first)
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (5, True, True)
    parts = body["messages"][0]["content"] + json.loads(second)["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"] * 2
    assert len({json.dumps(part) for part in parts}) == 6
    assert isinstance(json.loads(request_body(LoadSettings(URL), "m", 0))["messages"][0]["content"], str)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0},
        {"rate": float("nan")},
        {"num": 0},
        {"images": -1},
        {"image_size": (0, 1)},
        {"slo_ttft": -1},
        {"url": "x"},
    ],
)
def test_wrong_settings(options: dict[str, Any]) -> None:
    """Refused by the option's name."""
    with pytest.raises(ConfigError, match=f"--{next(iter(options)).replace('_', '-')}"):
        LoadSettings(**{"url": URL, **options})
