"""`corellm run` as people use it: arguments in any order, standard input, conversations, and their mistakes."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile

from corellm import LLM, SamplingParams
from corellm.cli import build_parser, main
from corellm.cli.conversation import Conversation
from corellm.cli.media import MOST_OF_A_FOLDER, MediaFile, files_of, open_file, open_files
from corellm.config import MultiModalConfig
from corellm.errors import RequestError
from corellm.plugin.adapters import KNOWN_FAMILIES
from tests.fixtures import random_image

QUESTION = "What shape?"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    random_image(40, 30, 5).save(path)
    return path


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Six frames, eight a second."""
    path = tmp_path / "video.mp4"
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for seed in range(6):
            container.mux(stream.encode(av.VideoFrame.from_image(random_image(64, 48, seed))))
        container.mux(stream.encode(None))
    return path


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    """Half a second of noise."""
    path = tmp_path / "audio.flac"
    soundfile.write(path, np.random.default_rng(0).uniform(-0.5, 0.5, 4000), 8000)
    return path


@pytest.fixture(scope="module")
def expected(tiny_llava: Path) -> Callable[[list[Path]], str]:
    """The engine's output for the question about these images."""

    def ask(images: list[Path]) -> str:
        parts = [{"type": "image", "image": str(i)} for i in images]
        messages = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
        with LLM(str(tiny_llava)) as llm:
            return (
                llm.chat(messages, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)[0]
                .outputs[0]
                .text.lstrip()
            )

    return ask


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main([str(a) for a in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_image_and_question(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, image: Path, expected: Callable[[list[Path]], str]
) -> None:
    """Files and text in any order, `--image`, and a question on standard input: one output."""
    want = expected([image]) + "\n"
    for arguments in (
        [image, QUESTION],
        [QUESTION, image],
        ["--image", image, QUESTION],
        [image, "What", "shape?"],
    ):
        assert run(capsys, "run", tiny_llava, "--max-tokens", 6, *arguments) == (0, want, "")


def test_loading_and_a_cut_are_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says which model is being loaded, and is removed before the output; another says what cut that."""
    assert run(capsys, "run", tiny_llava, QUESTION, "--max-tokens", 1)[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run(capsys, "run", tiny_llava, QUESTION, "--max-tokens", 1)[2] == (
        f"loading {tiny_llava} ...\r\x1b[K(cut at its longest length; see --max-tokens)\n"
    )
    assert run(capsys, "run", "demo", QUESTION, "--max-tokens", 200)[2].count("\n") == 0


def test_question_from_standard_input(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, image: Path, expected: Callable[[list[Path]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`echo question | corellm run MODEL image`."""
    monkeypatch.setattr("sys.stdin", io.StringIO(QUESTION + "\n"))
    assert run(capsys, "run", tiny_llava, image, "--max-tokens", 6)[1] == expected([image]) + "\n"


def pipe_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Put a file on standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_folder(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, tmp_path: Path, expected: Callable[[list[Path]], str]
) -> None:
    """A folder is its images, in the order of their names, whatever else it holds."""
    folder = tmp_path / "shots"
    (folder / "older.png").mkdir(parents=True)
    files = [folder / name for name in ("a.PNG", "b.jpg", "c.png")]
    for seed, path in enumerate(reversed(files)):
        random_image(40, 30, seed).save(path)
    (folder / "notes.txt").write_text("these are notes")
    (folder / "._a.png").write_bytes(b"of another system")
    want = expected(files) + "\n"
    for arguments in ([folder, QUESTION], ["--image", folder, QUESTION], [QUESTION, f"{folder}/"]):
        assert run(capsys, "run", tiny_llava, "--max-tokens", 6, *arguments) == (0, want, "")


def test_image_from_standard_input(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, image: Path, expected: Callable[[list[Path]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`-` is the piped image, before or after options, and beside files."""
    for images, arguments in (
        ([image], ["-", QUESTION, "--max-tokens", 6]),
        ([image], ["--max-tokens", 6, QUESTION, "-"]),
        ([image], ["--image", "-", QUESTION, "--max-tokens", 6]),
        ([image, image], [image, "-", QUESTION, "--max-tokens", 6]),
    ):
        pipe_in(monkeypatch, image.read_bytes())
        assert run(capsys, "run", tiny_llava, *arguments) == (0, expected(images) + "\n", "")


def test_the_kind_of_standard_input_is_told_from_its_bytes(
    video: Path, audio: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's bytes go into the prompt under their modality."""
    for modality, path in {"image": image, "video": video, "audio": audio}.items():
        pipe_in(monkeypatch, path.read_bytes())
        file = open_file("-")
        assert (file.path, file.modality) == ("-", modality)
        assert file.part == {"type": modality, modality: path.read_bytes()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "standard input"),
        (b"What shape?", "standard input is no image (JPEG"),
        (b"\x89PNG\r\n\x1a\n", "standard input is no image (JPEG"),
    ],
)
def test_wrong_standard_input(content: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, a text, and a cut image are errors of their own."""
    pipe_in(monkeypatch, content)
    with pytest.raises(RequestError) as refused:
        open_file("-")
    assert message in str(refused.value)


def test_inspect_takes_folders_and_standard_input(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`corellm inspect` names each file of the folder, and what was piped in."""
    pipe_in(monkeypatch, image.read_bytes())
    status, out, _ = run(capsys, "inspect", tiny_llava, image.parent, "-", QUESTION)
    assert status == 0
    assert "image 0  image.png\n" in out
    assert "image 1  standard input\n" in out


def test_limits_hold_for_files(tmp_path: Path, image: Path) -> None:
    """How many files of a folder are taken, and how large they may be, is what the engine's options say."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(MOST_OF_A_FOLDER + 1):
        (folder / f"{number}.png").write_bytes(image.read_bytes())
    default, more, small = MultiModalConfig(), MultiModalConfig(limit_mm_per_prompt={"image": 100}), 40 * 30 - 1
    with pytest.raises(RequestError, match=f"{MOST_OF_A_FOLDER + 1} image files"):
        open_files(str(folder), None, default)
    assert len(open_files(str(folder), None, more)) == MOST_OF_A_FOLDER + 1
    assert len(files_of(str(folder))) == MOST_OF_A_FOLDER + 1
    with pytest.raises(RequestError, match=f"{small} allowed"):
        open_files(str(image), None, MultiModalConfig(max_image_pixels=small))


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_closed_streams(stream: int) -> None:
    """A caller that closed a standard stream (`<&-`) gets no traceback: nothing is read, or nothing is seen."""
    command = shlex.join([sys.executable, "-m", "corellm", "run", "demo"]) + f" {stream}{'<' if stream == 0 else '>'}&-"
    done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if stream != 2:
        assert done.stderr.startswith("corellm: error: the prompt")


def test_conversation(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, image: Path, expected: Callable[[list[Path]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """On a terminal without a prompt: images by /image, mistakes that cost nothing, /reset, the end of input."""
    script = [
        "/image nowhere.png",
        f"/image {image}",
        QUESTION,
        "and <image> now?",
        "image is a word",
        "/reset",
        "/what",
        "/image",
    ]
    lines = iter([*script, f"/image {image}", QUESTION])

    def read(_: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    monkeypatch.setattr("builtins.input", read)
    status, out, err = run(capsys, "run", tiny_llava, "--max-tokens", 6)
    assert status == 0
    assert out.count(expected([image]) + "\n") == 2
    assert "'nowhere.png'" in err
    assert out.count("/what is no") == 1
    assert "/image is no" not in out


@pytest.mark.parametrize("is_there", [True, False])
def test_a_conversation_edits_lines_where_it_can(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`input` edits and recalls lines once readline is imported; without one it reads them as they are."""
    monkeypatch.delitem(sys.modules, "readline", raising=False)
    if not is_there:
        monkeypatch.setitem(sys.modules, "readline", None)  # what an import of it then raises is an ImportError
    seen: list[object] = []
    monkeypatch.setattr("builtins.input", lambda _: seen.append(sys.modules.get("readline")) or "/exit")
    engine: Any = None
    assert Conversation(engine, SamplingParams(), "demo", None, []).run() == 0
    assert [found is not None for found in seen] == [is_there]


def test_a_conversation_keeps_to_the_formats(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--media-formats` is also for files that come by /image."""
    lines = iter([f"/image {image}", "/exit"])
    monkeypatch.setattr("sys.stdin", type("Terminal", (io.StringIO,), {"isatty": lambda self: True})())
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    _, out, err = run(capsys, "run", tiny_llava, "--media-formats", "jpeg")
    assert f"({image.name}, " not in out
    assert "format png" in err


def test_media_of_every_kind(
    capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, video: Path,
    image: Path,
) -> None:  # fmt: skip
    """Images and videos as plain arguments, by name, by content, by option: what `chat` makes of them."""
    from corellm_qwen_vl.tiny import make_tiny_checkpoint

    model = make_tiny_checkpoint(tmp_path_factory.mktemp("qwen"))
    nameless = tmp_path / "video"
    nameless.write_bytes(video.read_bytes())
    parts = [{"type": "image", "image": str(image)}, {"type": "video", "video": str(video)}]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]
    with LLM(str(model)) as llm:
        outputs = llm.chat(messages, SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    want = outputs[0].outputs[0].text.lstrip() + "\n"
    for arguments in (
        [image, video, QUESTION],
        [QUESTION, image, nameless],
        ["--image", image, "--video", video, QUESTION],
    ):
        assert run(capsys, "run", model, "--max-tokens", 6, *arguments)[:2] == (0, want)


def test_files_are_told_apart_by_content(tmp_path: Path, video: Path, audio: Path, image: Path) -> None:
    """A name that says nothing does not matter; what is said of a file is its size or length."""
    about = {"image": "40 x 30", "video": "64 x 48, 6 frames, 0.8 s", "audio": "0.5 s"}
    for modality, path in {"image": image, "video": video, "audio": audio}.items():
        nameless = tmp_path / "nameless"
        nameless.write_bytes(path.read_bytes())
        for name in (path, nameless):
            assert open_file(str(name)) == MediaFile(str(name), modality, about[modality])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["broken.mp4", QUESTION], "broken.mp4"),
        (["--video", "notes.txt", QUESTION], "notes.txt"),
        (["--audio", "missing.wav", QUESTION], "no such file: 'missing.wav'"),
        (["photo.heic", QUESTION], "no such file: 'photo.heic'"),
        (["https://example.com/a.jpg", QUESTION], "download https://example.com/a.jpg"),
        (["--mm-processor-kwargs", '{"sise": 1}', "image.png", QUESTION], "does not take 'sise'; did you mean "),
        (["--media-formats", "jpeg,mp4", "image.png", QUESTION], "format png"),
        (["--media-formats", "png,jpg", "image.png", QUESTION], "unknown media format 'jpg'; known: jpeg, png, gif"),
        (["missing.png", QUESTION], "no such file: 'missing.png'"),
        (["notes.txt", QUESTION], "'notes.txt' is no image (JPEG"),
        (["shots/day", QUESTION], "'shots/day' has no images"),
        (["shots", QUESTION], "'shots' has no images"),
        (["shots"], "if 'shots' is the question"),
        (["--video", "films", QUESTION], "the folder 'films' has no video files (.avi, "),
        ([""], "prompt is empty"),
        (["--raw", "type <image> by hand"], "image"),
        (["--temperature", "-3", "hi"], "got -3.0"),
        (["--max-model-len", "9999", "hi"], "max_model_len=9999 exceeds the 1024 positions"),
        (["--adapter", "corellm-nothing", "hi"], "adapter 'corellm-nothing' does not serve"),
        (["--attention-backend", "triton", "hi"], "not on cpu"),
    ],
)
def test_mistakes_get_one_line(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    """Exit status 1 and one readable line, no traceback."""
    (tmp_path / "notes.txt").write_text("these are notes")
    (tmp_path / "shots" / "day").mkdir(parents=True)
    (tmp_path / "films").mkdir()
    random_image(40, 30, 5).save(tmp_path / "films" / "still.png")
    random_image(40, 30, 5).save(tmp_path / "image.png")
    (tmp_path / "broken.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(500))
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "run", tiny_llava, *arguments)
    assert (status, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("corellm: error: ")


def test_a_file_in_place_of_the_model(capsys: pytest.CaptureFixture[str], image: Path) -> None:
    """Without a model, the file that is taken for one is told apart."""
    status, out, err = run(capsys, "run", image, QUESTION)
    assert (status, out) == (1, "")
    assert err.startswith(f"corellm: error: '{image}' ")
    assert err.endswith(f": demo {image}\n")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nowhere", "no model './nowhere': no such directory or file"),
        ("nonsense", "hub name (owner/name)"),
        ("EMPTY", "has no config.json"),
        ("FILE", "checkpoint's directory"),
        ("BROKEN", "readable JSON"),
        ("TOY", "serves ToyForCausalLM; install corellm-toy"),
        ("NOWEIGHTS", "cannot be loaded"),
        ("CUTWEIGHTS", "cannot be read"),
    ],
)
def test_wrong_models_get_one_line(
    capsys: pytest.CaptureFixture[str], tiny_llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    model: str, message: str,
) -> None:  # fmt: skip
    """Wrong path, empty directory, a file, broken JSON, a missing plugin, missing and truncated weights."""
    directory = tmp_path / "model"
    directory.mkdir()
    if model == "BROKEN":
        (directory / "config.json").write_text('{"architectures": [')
    elif model == "TOY":
        monkeypatch.setitem(KNOWN_FAMILIES, "ToyForCausalLM", "corellm-toy")
        (directory / "config.json").write_text('{"architectures": ["ToyForCausalLM"], "model_type": "toy"}')
    elif model in ("NOWEIGHTS", "CUTWEIGHTS"):
        for file in tiny_llava.iterdir():
            content = file.read_bytes()
            if file.suffix != ".safetensors":
                (directory / file.name).write_bytes(content)
            elif model == "CUTWEIGHTS":
                (directory / file.name).write_bytes(content[: len(content) // 2])
    elif model == "FILE":
        directory = directory / "weights.bin"
        directory.write_bytes(b"x")
    status, out, err = run(capsys, "run", directory if model.isupper() else model, "hi")
    assert (status, out) == (1, "")
    assert message in err
    assert err.count("\n") == 1


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    """Examples in the help of both levels."""
    for argv in (["--help"], ["run", "--help"]):
        with pytest.raises(SystemExit):
            main(argv)
        assert "corellm run demo image.png" in capsys.readouterr().out.replace("--image a.png", "image.png")


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("512M", 512 << 20), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("3 kb", 3072)]
)
def test_sizes_may_have_units(text: str, size: int) -> None:
    parser = build_parser()
    assert parser.parse_args(["run", "demo", "--kv-cache-memory", text]).kv_cache_memory == size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-cache-memory", "1Q"], "not a size: '1Q'; write bytes, or 512M, 2G"),
        (["--scheduling-policy", "lifo"], "invalid choice: 'lifo'; choose from fcfs, priority"),
        (["--scheduling-policy", "priorty"], "invalid choice: 'priorty'; did you mean priority?"),
        (["--attention-bakend", "cpu"], "unknown option --attention-bakend; did you mean --attention-backend?"),
        (["--nonsense"], "unknown option --nonsense (see"),
    ],
)
def test_wrong_options_get_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "demo", "hi", *arguments])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("corellm run: error: ")
    assert message in told
    assert told.endswith("corellm run --help)\n")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "hint"), [("rnu", "did you mean run?"), ("embedd", "did you mean embed?"), ("xyz", "choose from run, ")]
)
def test_wrong_commands_get_one_line(command: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "demo"])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("corellm: error: ")
    assert f"'{command}'; {hint}" in told
    assert told.count("\n") == 1
