"""`corellm serve`: options from the command line and from a file, and what is wrong with them."""

from __future__ import annotations

import re
import socket
from dataclasses import fields
from pathlib import Path

import pytest

from corellm.cli import build_parser, main
from corellm.cli.arguments import ENGINE_CONFIGS
from corellm.errors import ConfigError
from corellm.fetch_settings import FetchSettings
from corellm_server.commands import absent_flags, serve
from corellm_server.commands import arguments as server_arguments
from corellm_server.commands.absent_flags import SERVER_FLAGS, without_absent
from corellm_server.limits import RequestLimits
from corellm_server.options import ServerOptions
from corellm_server.service import served_names


def configured(*arguments: str) -> tuple[ServerOptions, RequestLimits, dict[str, object]]:
    config, engine = server_arguments.configured(build_parser().parse_args(["serve", *arguments]))
    return config.options, config.limits, engine


def test_every_field_is_an_option() -> None:
    """The server's classes and the engine's: each field has help, in which there is no None: nobody can type it."""
    parser = build_parser()._subparsers._group_actions[0].choices["serve"]  # type: ignore[union-attr,index,call-overload]
    options = {option: action for action in parser._actions for option in action.option_strings}
    for config in (ServerOptions, RequestLimits, FetchSettings, *ENGINE_CONFIGS):
        for field in fields(config):
            if field.name != "model":
                words = options[f"--{field.name.replace('_', '-')}"].help or ""
                assert len(words) > 10
                assert "None" not in words.split()
    assert (options["--max-num-seqs"].help or "").endswith("; default: 256 on a GPU and 64 on a CPU.")


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    """Values are read by their types; what is given nowhere has the class's default."""
    file = tmp_path / "server.yaml"
    file.write_text(
        "model: demo\nport: 9000\napi-key: [a, b]\nmax_n: 3\nlimit_mm_per_prompt: {image: 2}\ncors_origins: '*'\n"
    )
    options, limits, engine = configured("--config", str(file), "--port", "9001", "--max-body-bytes", "2M")
    assert (options.port, options.api_key, options.cors_origins, options.host) == (
        9001,
        ("a", "b"),
        ("*",),
        "127.0.0.1",
    )
    assert (limits.max_n, limits.max_body_bytes, limits.max_stop) == (3, 2 << 20, 4)
    assert engine == {"model": "demo", "limit_mm_per_prompt": {"image": 2}}
    options, _, engine = configured("x", "--api-key", "a,b", "--api-key", "c", "--no-fuse-layers", "--seed", "4")
    assert options.api_key == ("a", "b", "c")
    assert engine == {"model": "x", "fuse_layers": False, "seed": 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which model"),
        (["demo", "--port", "70000"], "port .*70000"),
        (["demo", "--api-key", "a b"], "API key"),
        (["demo", "--api-key", ""], "api_key is empty"),
        (["demo", "--api-key-file", "/nowhere"], "api_key_file: '/nowhere': No such file"),
        (["demo", "--api-key-file", "/dev/null"], "no key in '/dev/null'"),
        (["demo", "--otlp-traces-endpoint", "localhost:4318"], "like http://localhost:4318/v1/traces"),
        (["demo", "--max-connections", "0"], "max_connections"),
        (["demo", "--client-timeout", "0"], "client_timeout"),
        (["demo", "--ssl-certfile", "x"], "give both"),
        (["demo", "--allowed-local-media-path", "/nowhere"], "directory '/nowhere'"),
        (["demo", "--root-path", "llm/"], "root_path .*/llm"),
        (["demo", "--max-queue", "0"], "max_queue"),
        (["demo", "--enable-lora", "--lora-modules", "sql"], "lora_modules .*name=directory, got 'sql'"),
        (["demo", "--lora-modules", "sql=x"], "lora_modules needs enable_lora"),
        (
            ["demo", "--enable-lora", "--lora-modules", "a=x", "--lora-modules", "a=y"],
            "'a' is the name of another model",
        ),
        (["demo", "--enable-lora", "--served-model-name", "a", "--lora-modules", "a=x"], "'a' is the name of another"),
        (["demo", "--allow-runtime-lora-updating", "."], "allow_runtime_lora_updating needs enable_lora"),
        (["demo", "--enable-lora", "--allow-runtime-lora-updating", "x"], "there is no directory 'x'"),
        (["demo", "--max-logprobs", "-1"], "max_logprobs .* large number"),
        (["demo", "--ready-timeout", "1"], "ready_timeout .*2"),
        (["demo", "--allowed-media-domains", "http://x"], "not a host"),
        (["demo", "--config", "/nowhere"], "No such file"),
    ],
)
def test_wrong_options(arguments: list[str], message: str) -> None:
    """Each is refused before a model is loaded, and says what to write. A key is not repeated."""
    with pytest.raises(ConfigError, match=message) as caught:
        configured(*arguments)
    assert "a b" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "unknown option 'prot'; did you mean 'port'"),
        ("- 1", "lines like"),
        ("a: [", "is not YAML"),
        ("port: 1\nhost: x\nport: 2", "'port' is there twice"),
        ("max-n: 1\nmax_n: 2", "'max_n' is there twice"),
        ("limit_mm_per_prompt: {image: 1, image: 2}", "'image' is there twice"),
        ("port: '8000'", "port: .*'8000'"),
        ("port: true", "port: .*True"),
        ("port:", "port: .*None"),
        ("host: 5", "host: .*5"),
        ("request_timeout: soon", "request_timeout: .*'soon'"),
        ("enforce_eager: 1", "enforce_eager: .*got 1"),
        ("limit_mm_per_prompt: 3", "must be a mapping, like {image: 2}, got 3"),
        ("log_format: [text]", "log_format: "),
        ("max_body_bytes: 2 tons", "max_body_bytes: not a size: '2 tons'"),
        ("api_key: 12345", "api_key: .*names$"),
        ("api_key:", "api_key: .*names$"),
        ("api_key: []", "api_key is empty"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    """A mistake in the file names the file and the option."""
    file = tmp_path / "server.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        configured("demo", "--config", str(file))


SERVED = {option for action in build_parser()._subparsers._group_actions[0].choices["serve"]._actions  # type: ignore[union-attr,index,call-overload]
          for option in action.option_strings}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("--tensor-parallel-size 2 demo", "one device"), ("demo -tp 2", "one device"),
        ("demo --tool-parser-plugin x.py", "extension plugin"), ("demo --tool-server x", "the client runs tools"),
        ("demo --lora-dtype float16", "the model's type"), ("--model demo", "first word"),
        ("demo --ctx-size 4096", "--max-model-len"),
        ("demo --chat-template x.jinja", "chat_template.jinja"), ("demo --no-async-scheduling", "enforce_eager"),
        ("demo --enable-lora-bias true", "without biases"), ("demo --enable-lora-bias=True", "without biases"),
        ("demo --tp=", "one device"),
        ("demo --data-parallel-rank -1", "--data-parallel-size"), ("demo --tensor_parallel_size=2", "one device"),
        ("demo --speculative-model x", "speculative_config"), ("demo --max_logprobs -1", "--max-logprobs"),
        ("demo --allowed_media_domains []", "--allowed-media-domains"), ("demo --served-model-name a b", "commas"),
    ],
)  # fmt: skip
def test_flags_of_other_servers_get_advice(words: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is loaded: what they mean here, or what to use instead."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *words.split()])
    assert ended.value.code == 2
    assert advice in capsys.readouterr().err


def test_flags_of_other_servers_without_an_effect_are_taken() -> None:
    """With the values that ask for nothing; what is no flag stays."""
    words = (
        "--tensor-parallel-size 1 demo --disable-log-requests --pp=1 --port 9000 --distributed-executor-backend mp "
        "--chat-template-content-format auto --enable-request-id-headers --no-enable-lora-bias "
        "--enable-auto-tool-choice --enable-log-requests false --enable-lora-bias=False "
        "--enable-dbo False --reasoning-parser-plugin= "
        "--download-dir None --disable_log_stats --compilation-config.level 0"
    )
    assert without_absent(words.split(), SERVED) == (["demo", "--port", "9000"], "")
    for name, entry in SERVER_FLAGS.items():
        assert f"--{name.replace('_', '-')}" not in SERVED, "it is an option here"
        assert len(entry.instead) > 10
        for option in re.findall(r"--[a-z-]+[a-z]", entry.instead):
            assert option in SERVED


def test_flags_of_another_engine_are_known_where_its_names_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without corellm-vllm the server knows its own table alone, and what is in no table is argparse's to refuse."""
    monkeypatch.setattr(absent_flags, "find_spec", lambda name: None)
    absent_flags.engine_flags.cache_clear()
    words = ["demo", "--tensor-parallel-size", "1"]
    assert without_absent([*words, "--disable-log-requests"], SERVED) == (words, "")
    monkeypatch.undo()
    absent_flags.engine_flags.cache_clear()
    assert without_absent(words, SERVED) == (["demo"], "")


def test_options_of_other_servers_in_files(tmp_path: Path) -> None:
    """As on the command line."""
    file = tmp_path / "server.yaml"
    file.write_text("model: demo\ntensor-parallel-size: 1\nenable_lora_bias: false\n")
    assert configured("--config", str(file))[2] == {"model": "demo"}
    file.write_text("model: demo\ntensor-parallel-size: 2\n")
    with pytest.raises(ConfigError, match="one device"):
        configured("--config", str(file))


def test_files_of_every_type(tmp_path: Path) -> None:
    """Sizes may have units; None is allowed where it means something; an empty file is no mistake."""
    file = tmp_path / "server.yaml"
    file.write_text("model: demo\nmax_body_bytes: 2M\nmax_held_bytes: 5000000\nseed: null\nrequest_timeout: 5\n")
    options, limits, engine = configured("--config", str(file))
    assert (limits.max_body_bytes, limits.max_held_bytes, options.request_timeout) == (2 << 20, 5_000_000, 5)
    assert engine == {"model": "demo", "seed": None}
    file.write_text("# nothing\n")
    assert configured("demo", "--config", str(file))[0] == ServerOptions()


def test_keys_of_a_file(tmp_path: Path) -> None:
    """One a line, beside those given otherwise; they are not on the command line."""
    file = tmp_path / "keys"
    file.write_text("# of the web site\nfirst\n\n  second  \nthird\n")
    options, _, _ = configured("demo", "--api-key", "third", "--api-key-file", str(file))
    assert options.api_key == ("third", "first", "second")


def test_what_opens_the_server_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    """Fetching from every host, on whichever port, and an address without a key; a host that is named is not."""
    for arguments, num_warnings in (
        (["--allowed-media-domains", "*:8080"], 1), (["--allowed-media-domains", "example.org,*"], 1),
        (["--allowed-media-domains", "*.example.org"], 0), (["--host", "0.0.0.0"], 1), ([], 0),
    ):  # fmt: skip
        caplog.clear()
        config, _ = server_arguments.configured(build_parser().parse_args(["serve", "demo", *arguments]))
        serve.warn(config)
        assert len(caplog.records) == num_warnings, arguments


def test_names_of_a_served_model(tmp_path: Path) -> None:
    """A directory's is its last part, by which path ever it is named; options go first."""
    (tmp_path / "tiny").mkdir()
    for path in (tmp_path / "tiny", f"{tmp_path}/tiny/", f"{tmp_path}/tiny/../tiny"):
        assert served_names(ServerOptions(), str(path)) == ("tiny",)
    assert served_names(ServerOptions(), "owner/name") == ("owner/name",)
    assert served_names(ServerOptions(served_model_name=["a", "b"]), str(tmp_path)) == ("a", "b")


def test_a_model_that_no_plugin_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before a process is started, with the words of `corellm run`."""
    (tmp_path / "config.json").write_text('{"architectures": ["MysteryForNothing"], "model_type": "mystery"}')
    monkeypatch.setattr("corellm.engine.process.link.Process", None)
    for words in (["serve", str(tmp_path), "--port", "0"], ["run", str(tmp_path), "x"]):
        assert main(words) == 1
        assert "serves MysteryForNothing" in capsys.readouterr().err
    for words in (["serve", str(tmp_path / "none"), "--port", "0"], ["run", str(tmp_path / "none"), "x"]):
        assert main(words) == 1
        assert "corellm: error: " in capsys.readouterr().err


def test_what_only_has_a_models_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name ends as those that are served without a plugin: it is refused before a process is started, too."""
    monkeypatch.setattr("corellm.engine.process.link.Process", None)
    for name, kind, fault in (
        ("MysteryForCausalLM", "mystery", "no installed plugin serves MysteryForCausalLM"),
        ("LlamaForCausalLM", "llama", "has no *.safetensors"),
    ):
        (tmp_path / "config.json").write_text(f'{{"architectures": ["{name}"], "model_type": "{kind}"}}')
        assert main(["serve", str(tmp_path), "--port", "0"]) == 1
        assert fault in capsys.readouterr().err
    assert main(["run", str(tmp_path), "x"]) == 1


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["serve", "demo", "--port", str(other.getsockname()[1])]) == 1
    assert "choose another --port" in capsys.readouterr().err
