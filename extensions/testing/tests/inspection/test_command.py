"""`corellm inspect` as an author uses it: with a working adapter, with a broken one, and with mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from corellm.cli import main
from corellm.hookspecs import hookimpl
from corellm.multimodal import PromptReplacement
from corellm_llava import Llava

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tiny: Callable[[str], Path]) -> Run:
    """`run(*arguments)`: status, standard output, standard error; of the tiny LLaVA."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main(["inspect", str(tiny("llava")), *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def report_of(output: tuple[int, str, str]) -> dict[str, Any]:
    status, out, _ = output
    report: dict[str, Any] = json.loads(out)
    assert status == int(report["error"] is not None)
    return report


def test_takes_what_run_takes(run: Run, media: Path, tmp_path: Path) -> None:
    """Files and text in any order make a chat message, `--raw` a prompt; a page is written beside."""
    image, page = media / "image.png", tmp_path / "page.html"
    chat = [report_of(run(*words, "--json")) for words in ([image, "Hi"], ["Hi", "--image", image])]
    assert chat[0]["prompt"] == chat[1]["prompt"] == "USER: <image>\nHi ASSISTANT:"
    raw = report_of(run(image, "--raw", "a <image> b", "--json", "--html", page))
    assert raw["prompt"] == "a <image> b"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    status, out, err = run(image, "Hi")
    assert (status, err) == (0, "")
    assert "<image> × 16" in out


def test_an_encoder_with_too_few_embeddings(run: Run, media: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`corellm run` refuses to load such a model; the report has its layout and the encoder's shapes."""
    whole = Llava.get_multimodal_embeddings

    @hookimpl
    def short(self: Llava, model: Any, mm_kwargs: Any) -> list[torch.Tensor]:
        return [embeddings[:-1] for embeddings in whole(self, model, mm_kwargs)]

    monkeypatch.setattr(Llava, "get_multimodal_embeddings", short)
    report = report_of(run(media / "image.png", "Hi", "--json"))
    assert report["error"].startswith("dummy items: EmbeddingCountError: image 0: ")
    item = report["items"][0]
    assert (item["num_embeds"], item["embeddings"]["shape"]) == (16, "[15, 64]")
    assert sum(token["embed"] is not None for token in report["tokens"]) == 16
    assert [token["positions"] for token in report["tokens"]] == [[i] for i in range(len(report["tokens"]))]
    assert "EmbeddingCountError" in item["error"]


def test_an_encoder_that_raises_or_forgets(run: Run, media: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is on one line, and a forgotten return is no crash either."""

    @hookimpl
    def raises(self: Llava) -> None:
        raise IndexError("out\nof range")

    @hookimpl
    def forgets(self: Llava) -> None:
        return

    for broken, told in ((raises, "IndexError: out\\nof range"), (forgets, "NoneType")):
        monkeypatch.setattr(Llava, "get_multimodal_embeddings", broken)
        status, out, err = run(media / "image.png", "Hi")
        assert status == 1
        assert err.count("\n") == 1
        assert told in err
        assert "<image> × 16" in out


@pytest.mark.parametrize("positions", [(torch.zeros(4), 3), torch.zeros(4)])
def test_wrong_positions(run: Run, media: Path, monkeypatch: pytest.MonkeyPatch, positions: Any) -> None:
    """Positions of a wrong shape or type are unknown in the report, with the engine's error."""

    @hookimpl
    def wrong(self: Llava) -> Any:
        return positions

    monkeypatch.setattr(Llava, "get_rope_positions", wrong, raising=False)
    report = report_of(run(media / "image.png", "Hi", "--json"))
    assert report["error"].startswith("first token: ")
    assert "get_rope_positions" in report["error"]
    assert report["position_offset"] is None
    assert {len(token["positions"]) for token in report["tokens"]} == {0}
    assert report["items"][0]["error"] is None


def test_an_adapter_whose_dummies_fail(run: Run, media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading stops there; the hooks called so far are reported with their results, on a page, too."""

    @hookimpl
    def nowhere(self: Llava) -> list[PromptReplacement]:
        return [PromptReplacement("image", [99], [99])]

    monkeypatch.setattr(Llava, "get_prompt_updates", nowhere)
    report = report_of(run(media / "image.png", "Hi", "--json", "--html", tmp_path / "page.html"))
    assert report["error"].startswith("load: MissingPlaceholderError")
    assert [stage["name"] for stage in report["stages"]] == ["load"]
    calls = {call["hook"]: call["result"] for call in report["stages"][0]["hooks"]}
    assert "pixel_values: [1, 3, 56, 56] float32" in calls["call_hf_processor"]
    assert list(calls)[-1] == "get_prompt_updates"
    assert "MissingPlaceholderError" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.png", "Hi"], "no such file: 'missing.png'"),
        (["broken.png", "Hi"], "broken.png"),
        ([], "nothing to inspect"),
        (["Hi", "--html", "nowhere/page.html"], "directory 'nowhere'"),
        (["Hi", "--html", "."], "--html .: Is a directory"),
        (["Hi", "--mm-processor-kwargs", '{"sise": 1}'], "does not take 'sise'"),
        (["Hi", "--max-model-len", "9999"], "max_model_len=9999 exceeds"),
        (["Hi", "--adapter", "corellm-nothing"], "adapter 'corellm-nothing' does not serve"),
        (["--audio", "audio.wav", "Hi"], "no audio"),
    ],
)
def test_mistakes_get_one_line(
    run: Run, media: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """As in `corellm run`: exit status 1, one readable line, no report."""
    (tmp_path / "broken.png").write_bytes((media / "image.png").read_bytes()[:200])
    (tmp_path / "audio.wav").write_bytes((media / "audio.wav").read_bytes())
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert err.startswith("corellm: error: ")
    assert err.count("\n") == 1
    assert message in err


def test_help_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    """The help says what --raw is for."""
    with pytest.raises(SystemExit):
        main(["inspect", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "--raw says" in out
