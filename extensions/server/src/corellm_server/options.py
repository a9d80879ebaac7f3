"""Options of `corellm serve`: where it listens, who may ask, what it may read; and the whole configuration.

Frozen, documented and validated once, like `corellm.config`; imports neither the engine nor a web framework.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corellm.errors import ConfigError
from corellm.fetch_settings import FetchSettings
from corellm_server.checks import check_number, keys_in, make_tuples
from corellm_server.limits import RequestLimits


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Where the server listens, who may use it, and what it may read."""

    host: str = "127.0.0.1"
    """Address to listen on. Other machines reach the server only if this is changed, e.g. to 0.0.0.0."""
    port: int = 8000
    """Port to listen on; 0 for any free one."""
    api_key: Collection[str] = ()
    """Keys, of which a client sends one as `Authorization: Bearer KEY`; none for a server that all may use. Clients
    with different keys share no cache entries. Other users of the machine can see the command line: better in the
    configuration file, or in a file of their own."""
    api_key_file: str | None = None
    """File with further keys, one a line; lines that begin with # are comments."""
    served_model_name: Collection[str] = ()
    """Names by which clients ask for the model; none for the name it is loaded by, of a directory the last part of it.
    Clients that know the whole path may ask by it."""
    lora_modules: Collection[str] = ()
    """LoRA adapters that clients ask for as models, each `name=directory` or `name=owner/name` of the hub; with
    `--enable-lora`."""
    allow_runtime_lora_updating: str | None = None
    """Directory whose adapters clients may load and unload while the server runs (`/v1/load_lora_adapter`); none unless
    given. With `--enable-lora`. Whoever may use the server may do so, for all."""
    root_path: str = ""
    """Path under which a reverse proxy serves this server, e.g. /llm."""
    ssl_certfile: str | None = None
    """Certificate chain (PEM), to serve HTTPS."""
    ssl_keyfile: str | None = None
    """Private key of the certificate (PEM)."""
    cors_origins: Collection[str] = ()
    """Origins whose web pages may use the server, e.g. https://example.org; `*` for all."""
    allowed_local_media_path: str | None = None
    """Directory whose files requests may name (`file:` URLs and paths); none unless given."""
    enable_mm_embeds: bool = False
    """Let requests bring precomputed embeddings in place of items. Their shape and values are checked; whether an
    encoder made them cannot be."""
    enable_sleep_mode: bool = False
    """Let clients put the model to sleep (`POST /sleep`), which gives back memory, and wake it (`/wake_up`)."""
    allowed_weights_path: str | None = None
    """Directory below which clients may name directories of weights for the model (`POST /update_weights`); none unless
    given."""
    allow_request_templates: bool = False
    """Let requests bring chat templates of their own."""
    allowed_template_kwargs: Collection[str] = ("enable_thinking",)
    """Variables of the chat template that requests may set (`chat_template_kwargs`)."""
    allowed_mm_processor_kwargs: Collection[str] = ()
    """Arguments of the model's processor that requests may set (`mm_processor_kwargs`)."""
    max_window_size: int | None = None
    """Most tokens of a conversation's prompt, where the request does not say: the oldest turns are left out until it
    fits; None for no limit but the model's, past which a request is refused."""
    tool_call_parser: str | None = None
    """Form in which the model writes calls of tools, e.g. hermes, or `none`; by default what its adapter says or its
    chat template shows."""
    reasoning_parser: str | None = None
    """Form in which the model writes what it thinks before it answers, e.g. think, or `none`; the default is as for
    tools."""
    score_template: str | None = None
    """Where query and document stand in the prompt of a model that reads both together (`/score`, `/rerank`); None: one
    after the other, and for encoder-only models a pair as their tokenizer joins it."""
    responses_store: str | None = None
    """File of SQLite in which responses of `/v1/responses` are kept, so that they outlive the server; None for memory.
    It is made if there is none, readable by this user alone, and each server has its own."""
    responses_max_kept: int = 10_000
    """Most responses that are kept; 0 to keep none. The oldest of the key that has most of them give way."""
    responses_max_bytes: int = 256 << 20
    """Most bytes of kept responses, with images and other media in their input; the oldest of the key that has most of
    them give way. A response that is larger by itself is not kept."""
    responses_max_seconds: float = 86400.0
    """Seconds that a response is kept; going on with it begins them again, for all of its conversation."""
    max_queue: int = 256
    """Most requests in the server, running ones included; more are answered 503 at once. A request counts once all of
    it has arrived. Each of several models in a file may have its own, or has an equal part of the server's; where that
    has none either, a model has 256, and the server the sum of them."""
    max_uploads: int = 512
    """Most requests that are arriving at once; one that comes whole, as small ones do, is none of them. Beyond, the one
    that stalls for longest is answered 503."""
    max_uploads_per_client: int = 384
    """Most of them from one address. All clients of a proxy have one, unless it sends requests on whole, as most do."""
    max_connections: int = 1024
    """Most connections at once. Beyond, the connection that has had no request for longest is closed for a new one."""
    client_timeout: float = 30.0
    """Seconds that a client may take for the TLS handshake, for a request's headers, and without reading anything of
    a response that it was sent; then its connection is cut off."""
    keep_alive_timeout: int = 75
    """Seconds that a connection stays open between two requests; longer than clients and proxies keep theirs."""
    request_timeout: float = 3600.0
    """Seconds after which an unfinished request is aborted."""
    ready_timeout: float = 10.0
    """Seconds without a finished step after which `/ready` is 503."""
    hang_timeout: float = 300.0
    """Seconds without a finished step, while requests are there, after which the server ends with exit status 1, so
    that it is started again; longer than the longest step. 0 for never."""
    shutdown_timeout: float = 3.0
    """Seconds that requests in flight have to finish once the server is told to stop."""
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry receiver (OTLP over HTTP) that gets spans of requests, e.g.
    http://localhost:4318/v1/traces. Needs the extra `otel`."""
    log_format: Literal["text", "json"] = "text"
    """How the log is written: for people, or each line as a JSON object. A finished request is logged with its id, its
    client's address and the number of its key, route, status, tokens and time, never its content."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important messages that are logged."""

    def __post_init__(self) -> None:
        make_tuples(self)
        for place in ("{query}", "{document}"):
            if self.score_template is not None and str(self.score_template).count(place) != 1:
                raise ConfigError(f"score_template must have {place} once, got {self.score_template!r:.100}")
        names = {*self.served_model_name}
        for one in self.lora_modules:
            if not re.fullmatch(r"[^=]+=.+", one):
                raise ConfigError(f"lora_modules must be like name=directory, got {one!r:.200}")
            if (name := one.partition("=")[0]) in names:
                raise ConfigError(f"lora_modules: {name!r:.100} is the name of another model here; choose another one")
            names.add(name)
        check_number("port", self.port, 0, 65535, whole=True)
        if self.max_window_size is not None:
            check_number("max_window_size", self.max_window_size, 1, 1 << 40, whole=True)
        check_number("responses_max_kept", self.responses_max_kept, 0, 1 << 40, whole=True)
        check_number("responses_max_bytes", self.responses_max_bytes, 1, 1 << 40, whole=True)
        check_number("responses_max_seconds", self.responses_max_seconds, 1, 1e9)
        check_number("max_queue", self.max_queue, 1, 1_000_000, whole=True)
        check_number("max_uploads", self.max_uploads, 1, 1_000_000, whole=True)
        check_number("max_uploads_per_client", self.max_uploads_per_client, 1, 1_000_000, whole=True)
        check_number("max_connections", self.max_connections, 1, 1_000_000, whole=True)
        check_number("client_timeout", self.client_timeout, 0.001, 1e9)
        check_number("keep_alive_timeout", self.keep_alive_timeout, 1, 1e9, whole=True)
        check_number("request_timeout", self.request_timeout, 0.001, 1e9)
        check_number("ready_timeout", self.ready_timeout, 2, 1e9)  # an idle engine shows once a second that it lives
        if self.hang_timeout != 0:
            check_number("hang_timeout", self.hang_timeout, 2, 1e9)
        check_number("shutdown_timeout", self.shutdown_timeout, 0, 1e9)
        if self.api_key_file is not None:
            keys = (*self.api_key, *keys_in("api_key_file", self.api_key_file))
            object.__setattr__(self, "api_key", tuple(dict.fromkeys(keys)))
        for key in self.api_key:
            if not re.fullmatch(r"[\x21-\x7e]{1,512}", key):
                raise ConfigError("an API key must be 1 to 512 printable ASCII characters without spaces")
        if self.root_path and not re.fullmatch(r"(/[\w.~-]+)+", self.root_path):
            raise ConfigError(f"root_path must be like /llm, got {self.root_path!r:.100}")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("ssl_certfile and ssl_keyfile need each other; give both")
        for name in ("ssl_certfile", "ssl_keyfile"):
            file = getattr(self, name)
            if file is not None and not Path(file).is_file():
                raise ConfigError(f"{name}: there is no file {file!r:.200}")
        if self.otlp_traces_endpoint is not None and not re.match(r"https?://[^/]", self.otlp_traces_endpoint):
            raise ConfigError(
                "otlp_traces_endpoint must be like http://localhost:4318/v1/traces, got "
                f"{self.otlp_traces_endpoint!r:.200}"
            )
        for name in ("allowed_local_media_path", "allowed_weights_path", "allow_runtime_lora_updating"):
            root = getattr(self, name)
            if root is not None and not Path(root).is_dir():
                raise ConfigError(f"{name}: there is no directory {root!r:.200}")
        for name, choices in (("log_format", ("text", "json")), ("log_level", ("debug", "info", "warning", "error"))):
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r:.100}")


@dataclass(frozen=True, kw_only=True)
class DataParallelOptions:
    """Several engines on this machine, behind one address."""

    data_parallel_size: int = 1
    """Engines with the same model, each a process with its part of the processors, or a GPU of its own. Memory for KV
    blocks is divided, if no option sets it; sizes that options set are each engine's."""
    engine_hang_timeout: float = 300.0
    """Seconds without a finished step, while it has requests, after which one of several engines is started again;
    longer than the longest step. 0 for never."""

    def __post_init__(self) -> None:
        check_number("data_parallel_size", self.data_parallel_size, 1, 1024, whole=True)
        if self.engine_hang_timeout != 0:
            check_number("engine_hang_timeout", self.engine_hang_timeout, 2, 1e9)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The whole configuration of a server, beside its engine's."""

    options: ServerOptions = field(default_factory=ServerOptions)
    limits: RequestLimits = field(default_factory=RequestLimits)
    fetching: FetchSettings = field(default_factory=FetchSettings)
    offered: tuple[Any, ...] = ()
    """Options of engines that extensions offer, one instance for each offer."""
