"""Directories of images as requests: one question for all, or those of a table; and what is wrong with them."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from corellm.errors import ConfigError
from corellm_server.batch.image_folder import ImageFolder
from corellm_server.batch.input_file import BatchRequest
from corellm_server.batch.inputs import InputOptions
from corellm_server.batch.opening import open_input
from corellm_server.batch.results import decoded, of_wrong_line
from corellm_server.batch.running import finish
from corellm_server.options import ServerConfig
from tests.fixtures import random_image


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three of them, one in a folder within, and a file that is none."""
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    for seed, name in enumerate(("b.png", "a.JPG", "more/c.webp")):
        random_image(20, 10, seed).save(folder / name)
    (folder / "notes.txt").write_text("no image")
    return folder


def requests(folder: Path, question: str | None = None, column: str = "question", **fields: Any) -> list[BatchRequest]:
    with ImageFolder(str(folder), "m", question, column, fields, max_bytes=10_000) as opened:
        first = list(opened.requests())
        assert list(opened.requests()) == first  # as often as wanted
        assert not any(request.body for request in first)
        return [request.loaded() for request in first]


def asked(request: BatchRequest) -> tuple[bytes, str]:
    """The image and the question of a request."""
    (message,) = json.loads(request.body)["messages"]
    image, text = message["content"]
    return base64.b64decode(image["image_url"]["url"].partition(",")[2]), text["text"]


def test_one_question_for_all_images(images: Path) -> None:
    """In the order of their names, those within included; further fields are in each request."""
    found = requests(images, "what?", temperature=0)
    assert [request.custom_id for request in found] == ["a.JPG", "b.png", "more/c.webp"]
    assert [asked(request) for request in found] == [((images / str(r.custom_id)).read_bytes(), "what?") for r in found]
    body = json.loads(found[0].body)
    assert (body["model"], body["temperature"], found[0].url) == ("m", 0, "/v1/chat/completions")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_questions_of_a_table(images: Path, kind: str) -> None:
    """In the order of its rows."""
    rows = [("more/c.webp", "what, then?"), ("b.png", 'is it "b"?')]
    table = images / f"metadata.{kind}"
    if kind == "jsonl":
        table.write_text("\n".join(json.dumps({"file_name": name, "asked": text}) for name, text in rows) + "\n\n")
    else:
        quoted = (f'{name},"{text.replace(chr(34), 2 * chr(34))}"\n' for name, text in rows)
        table.write_text("file_name,asked\n" + "".join(quoted), encoding="utf-8-sig")
    found = requests(images, column="asked")
    assert [request.custom_id for request in found] == [name for name, _ in rows]
    assert [asked(request)[1] for request in found] == [text for _, text in rows]


def test_rows_that_are_no_requests_say_why(images: Path) -> None:
    """Nothing outside of the directory is read."""
    (images.parent / "secret.png").write_bytes(b"secret")
    (images / "link.png").symlink_to(images.parent / "secret.png")
    names = ["b.png", "b.png", "../secret.png", "link.png", "none.png", "", 3]
    lines = [json.dumps({"file_name": name, "question": "what?"}) for name in names]
    lines += ['{"file_name": "a.JPG"}', "[1]", "{"]
    (images / "metadata.jsonl").write_text("\n".join(lines))
    told = [request.wrong for request in requests(images)]
    assert told == [
        None,
        "file_name 'b.png' is that of an earlier row",
        *(f"there is no image {name!r} in the directory" for name in names[2:5]),
        "file_name must be the name of an image, got ''",
        "file_name must be the name of an image, got 3",
        "question must be text, got None",
        "file_name must be the name of an image, got None",
        "file_name must be the name of an image, got None",
    ]


def test_names_that_no_file_has_end_nothing(images: Path) -> None:
    """Nor do links in a circle, and files of which no request can be made; the rest is done."""
    (images / "loop.png").symlink_to("loop.png")
    (images / "large.png").write_bytes(bytes(10_001))
    (images / os.fsdecode(b"\xff.png")).write_bytes(b"an image")
    names = ["a\0.png", "x" * 300, "loop.png", "large.png", "\udcff.png", "b.png"]
    lines = [json.dumps({"file_name": name, "question": "what?"}) for name in names]
    (images / "metadata.jsonl").write_text("\n".join(lines))
    found = requests(images)
    assert [request.custom_id for request in found] == [*names[:4], None, "b.png"]
    assert [request.wrong for request in found] == [
        *(f"there is no image {name!r:.100} in the directory" for name in names[:3]),
        "the image 'large.png' has more than the 10000 bytes of a request",
        "file_name '\\udcff.png' is not Unicode; rename the image",
        None,
    ]
    for result in map(of_wrong_line, found[:-1]):
        assert decoded(result.line.rstrip()) is not None  # it can be written, and is found again
    everything = requests(images, "what?")
    assert [r.custom_id for r in everything if r.wrong is None] == ["a.JPG", "b.png", "more/c.webp"]


def test_an_image_is_read_when_its_request_is_run(images: Path) -> None:
    """Before that it costs no memory; what it is then counts, and what cannot be read any more fails alone."""
    with ImageFolder(str(images), "m", "what?", "question", {}, max_bytes=10_000) as opened:
        gone, changed, grown = opened.requests()
    sizes = [(images / str(request.custom_id)).stat().st_size for request in (gone, changed, grown)]
    assert [request.num_bytes for request in (gone, changed, grown)] == [4 * size // 3 for size in sizes]
    (images / "a.JPG").unlink()
    (images / "b.png").write_bytes(b"another")
    (images / "more" / "c.webp").write_bytes(bytes(10_001))
    app: Any = None
    finished = asyncio.run(finish(app, app, gone))
    result = decoded(finished.line.rstrip())
    told = "line 1: the image 'a.JPG' cannot be read: No such file or directory"
    assert result is not None
    assert result.error is not None
    assert (result.custom_id, result.error.message, finished.told) == ("a.JPG", told, told)
    assert asked(changed.loaded()) == (b"another", "what?")
    assert grown.loaded().wrong == "the image 'more/c.webp' has more than the 10000 bytes of a request"


def test_what_comes_in_the_place_of_an_image_is_not_read(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link out of the directory, also one that is there only as the image is opened; a pipe, which would block."""
    (images.parent / "secret").write_bytes(b"secret")
    with ImageFolder(str(images), "m", "what?", "question", {}, max_bytes=10_000) as opened:
        linked, piped, raced = opened.requests()
    for name in ("a.JPG", "b.png"):
        (images / name).unlink()
    (images / "a.JPG").symlink_to(images.parent / "secret")
    os.mkfifo(images / "b.png")
    for request in (linked, piped):
        assert request.loaded().wrong == f"there is no image {request.custom_id!r} in the directory"
    (images / "b.png").unlink()
    resolve = Path.resolve

    def resolved(path: Path, **arguments: Any) -> Path:
        found = resolve(path, **arguments)
        if path.name == "c.webp":
            path.unlink()
            path.symlink_to(images.parent / "secret")
        return found

    monkeypatch.setattr(Path, "resolve", resolved)
    assert raced.loaded().wrong == "there is no image 'more/c.webp' in the directory"


def test_an_image_that_may_not_be_read_is_not_said_to_be_absent(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another user's."""
    opened = os.open

    def denied(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).startswith("/dev/fd/"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", denied)
    assert requests(images, "what?")[0].wrong == "the image 'a.JPG' cannot be read: Permission denied"


def test_directories_and_options_that_do_not_fit(images: Path) -> None:
    """Before anything is loaded."""
    with pytest.raises(ConfigError, match=r"has neither metadata\.jsonl nor metadata\.csv: give one --question"):
        requests(images)
    (images / "metadata.csv").write_text("file_name,text\nb.png,what?\n")
    with pytest.raises(ConfigError, match="no column 'question'; it has file_name, text"):
        requests(images)
    (images / "metadata.csv").write_text("file_name,question\n")
    assert requests(images) == []
    (images / "metadata.jsonl").write_text("")
    with pytest.raises(ConfigError, match="has both"):
        requests(images)
    file, config = images.parent / "requests.jsonl", ServerConfig()
    file.write_text("")
    with pytest.raises(ConfigError, match=r"is a file of requests, .* leave out question$"):
        open_input(str(file), InputOptions(question="what?"), config, {"model": "m"})
    with pytest.raises(ConfigError, match=r"cannot read the input nowhere: No such file"):
        open_input("nowhere", InputOptions(question="what?"), config, {"model": "m"})
    (images.parent / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty has no image: no file in it ends in \.bmp, "):
        requests(images.parent / "empty", "what?")
    with open_input(str(images), InputOptions(question="what?"), config, {"model": "m"}) as opened:
        assert isinstance(opened, ImageFolder)
    with pytest.raises(ConfigError, match="image_column is for tables"):
        open_input(str(images), InputOptions(question="what?", image_column=None), config, {"model": "m"})
    with pytest.raises(ConfigError, match="leave one out"):
        open_input(str(images), InputOptions(question="what?", question_column="text"), config, {"model": "m"})


@pytest.mark.parametrize(
    "wrong",
    [{"question": ""}, *({"request_fields": text} for text in ("[1]", "{", "[" * 100_000, '{"stream": true}'))],
    ids=range(5),
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        InputOptions(**wrong)
