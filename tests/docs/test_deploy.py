"""The deployment examples parse, refer to things that exist, and show every metric."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import corellm
from corellm.cli import build_parser
from corellm.engine.metrics import DESCRIPTIONS, read_metrics
from corellm_ray.options import ReplicaOptions
from corellm_server.commands.arguments import configured
from corellm_server.commands.models import ModelConfig, configured_models
from corellm_server.gate import OPEN_ROUTES
from corellm_server.metrics import ServerMetrics
from corellm_server.options import ServerOptions
from tests.docs.test_pages import ROOT

FILES = ROOT / "docs" / "operate" / "deploy"
SUFFIXES = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
"""What is added to a metric's name where the dashboard reads it."""


def test_the_dashboard_shows_every_metric() -> None:
    """Under the names that Prometheus has: counters end with `_total`, histograms are read from their buckets."""
    dashboard = json.loads((FILES / "grafana.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    stats = dict.fromkeys(
        ("num_running", "num_waiting", "num_swapped", "kv_cache_usage", "num_preemptions", "prefix_cache_queries",
         "prefix_cache_hits", "encoder_cache_usage", "encoder_cache_queries", "encoder_cache_hits", "num_drafts",
         "num_draft_tokens"), 0
    )  # fmt: skip
    stats["accepted_per_position"] = (2, 1)
    engine: Any = SimpleNamespace(
        scheduler=SimpleNamespace(get_stats=lambda: SimpleNamespace(**stats)),
        input_processor=SimpleNamespace(mm_processor=SimpleNamespace(cache=SimpleNamespace(hits=0, misses=0, usage=0))),
        runner=SimpleNamespace(parts=()),
        num_prompt_tokens=0,
        num_generated_tokens=0,
        is_sleeping=False,
    )
    metrics, of_engine = ServerMetrics(), read_metrics(engine)
    metrics.text([({}, of_engine)])
    assert {metric.name for metric in of_engine} == DESCRIPTIONS.keys()
    names = {family.name + SUFFIXES[family.type] for family in metrics.registry.collect()}
    assert set(re.findall(r"corellm:\w+", " ".join(queries))) == names
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def options_of(*words: str) -> tuple[ServerOptions, dict[str, object]]:
    """What `corellm serve` makes of a command line: the server's options and the engine's."""
    config, engine = configured(build_parser().parse_args(["serve", *words]))
    return config.options, engine


def models_of(*words: str) -> Mapping[str, ModelConfig]:
    """What it makes of a command line, or of a file, that may have several models: each by its name."""
    return configured_models(build_parser().parse_args(["serve", *words]))


def options_of_file(text: str, folder: Path) -> tuple[ServerOptions, dict[str, object]]:
    """What it makes of a configuration file."""
    file = folder / "server.yaml"
    file.write_text(text, encoding="utf-8")
    return options_of("--config", str(file))


def test_every_command_line_is_one(tmp_path: Path) -> None:
    """All `corellm serve` of these pages, in code or text, have options that exist, and so have the files they name."""
    pages = {path: path.read_text(encoding="utf-8") for path in FILES.parent.glob("*.md")}
    for path in ("server.yaml", "models.yaml", "keys.txt", "cert.pem", "key.pem"):
        (tmp_path / path).write_text("model: demo\n")
    found = []
    for text in pages.values():
        for name, titled in re.findall(r'```yaml title="([\w.]+)"\n(.*?)```', text, re.DOTALL):
            (tmp_path / name).write_text(titled)
        for line in re.findall(r"(?:^|`)corellm serve ([^`\n]+)", text.replace("\\\n", " "), re.MULTILINE):
            words = [str(tmp_path / word) if (tmp_path / word).is_file() else word for word in shlex.split(line)]
            found.append(models_of(*words, *([] if "--config" in words or words[0][0] != "-" else ["demo"])))
    assert len(found) > 3
    examples = [code for text in pages.values() for code in re.findall(r"```yaml\n(model:.*?)```", text, re.DOTALL)]
    assert examples
    for example in examples:
        assert options_of_file(example, tmp_path)[1]["model"]


def test_the_kubernetes_example_fits_together(tmp_path: Path) -> None:
    """Selectors, volumes, ports and the secret are those that are defined; probes ask for `/health` and `/ready`."""
    secret, deployment, service = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text(encoding="utf-8"))
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes.keys() == {mount["name"] for mount in container["volumeMounts"]}
    assert volumes["config"]["secret"]["secretName"] == secret["metadata"]["name"]
    options, engine = options_of_file(secret["stringData"]["server.yaml"], tmp_path)
    assert engine == {"model": "demo"}
    assert options.api_key
    assert options.hang_timeout > 0
    assert container["image"] == f"corellm:{corellm.__version__}"
    assert f"-t {container['image']} ." in (FILES / "Dockerfile").read_text(encoding="utf-8")
    assert spec["terminationGracePeriodSeconds"] > options.shutdown_timeout + 5
    assert container["args"] == ["--config", "/etc/corellm/server.yaml"]
    (port,) = container["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/ready", "readiness": "/ready", "liveness": "/health",
    }  # fmt: skip
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert {probe["path"] for probe in probes.values()} <= OPEN_ROUTES
    assert port["containerPort"] == options.port
    assert f"--uid {spec['securityContext']['runAsUser']} " in (FILES / "Dockerfile").read_text(encoding="utf-8")


def test_the_kuberay_example_fits_together(tmp_path: Path) -> None:
    """The server joins the head beside it; a worker has room for a replica; the most pods are the most replicas."""
    secret, cluster, service = yaml.safe_load_all((FILES / "kuberay.yaml").read_text(encoding="utf-8"))
    head, (workers,) = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    (server,), (worker,) = (group["template"]["spec"]["containers"] for group in (head, workers))
    file = tmp_path / "server.yaml"
    file.write_text(secret["stringData"]["server.yaml"], encoding="utf-8")
    args = build_parser().parse_args(["serve", "--config", str(file)])
    config, engine = configured(args, [ReplicaOptions])
    (replicas,) = config.offered
    assert engine == {"model": "demo"}
    assert config.options.api_key
    assert cluster["spec"]["rayVersion"] == version("ray")
    assert server["image"] == worker["image"] == f"corellm:{corellm.__version__}"
    assert cluster["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    assert all("$KUBERAY_GEN_RAY_START_CMD" in container["args"][0] for container in (server, worker))
    assert "exec corellm serve --config /etc/corellm/server.yaml" in server["args"][0]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert replicas.ray_address == f"127.0.0.1:{ports['gcs-server']}"
    assert service["spec"]["ports"][0]["targetPort"] == "http"
    assert ports["http"] == config.options.port
    assert service["spec"]["selector"].items() <= {
        **head["template"]["metadata"]["labels"], "ray.io/node-type": "head",
    }.items()  # fmt: skip
    assert {probe["httpGet"]["path"] for probe in (server["readinessProbe"], server["livenessProbe"])} <= OPEN_ROUTES
    assert int(head["rayStartParams"]["num-cpus"]) == 0
    assert int(worker["resources"]["limits"]["cpu"]) == replicas.replica_cpus
    assert (workers["minReplicas"], workers["maxReplicas"]) == (replicas.fewest, replicas.most)
    (mount,), (volume,) = server["volumeMounts"], head["template"]["spec"]["volumes"]
    assert mount["name"] == volume["name"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    assert head["template"]["spec"]["terminationGracePeriodSeconds"] > config.options.shutdown_timeout
    assert workers["template"]["spec"]["terminationGracePeriodSeconds"] > replicas.replica_drain_timeout


def test_the_image_has_every_plugin() -> None:
    """All that the repository has, and every extension but the one for authors of plugins; what is copied exists."""
    text = (FILES / "Dockerfile").read_text(encoding="utf-8")
    plugins = {f"./plugins/{path.parent.name}" for path in ROOT.glob("plugins/*/pyproject.toml")}
    assert set(re.findall(r"\./plugins/\w+", text)) == plugins
    extensions = {f"./extensions/{path.parent.name}" for path in ROOT.glob("extensions/*/pyproject.toml")}
    assert set(re.findall(r"\./extensions/\w+", text)) == extensions - {"./extensions/testing"}
    commands = [line.split(" ", 1) for line in text.splitlines() if re.match(r"(ENTRYPOINT|CMD) \[", line)]
    assert {name: json.loads(words) for name, words in commands} == {
        "ENTRYPOINT": ["corellm", "serve"], "CMD": ["demo", "--host", "0.0.0.0"],
    }  # fmt: skip
    page = (FILES.parent / "deploy.md").read_text(encoding="utf-8")
    ((options, words),) = re.findall(rf"^docker run (.*) corellm:{re.escape(corellm.__version__)} (.*)$", page, re.M)
    (port,), (volume,) = re.findall(r"EXPOSE (\d+)", text), re.findall(r"VOLUME (\S+)", text)
    for line in ("demo --host 0.0.0.0", words):
        assert options_of(*shlex.split(line))[0].port == int(port)
    assert {f"{port}:{port}", f"models:{volume}"} <= set(options.split())
    assert "/health" in OPEN_ROUTES
    assert re.search(r"HEALTHCHECK(.|\\\n)*127.0.0.1:8000/health", text)


def test_the_unit_parses() -> None:
    """It starts `corellm serve` with the file that it loads."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read(FILES / "corellm.service", encoding="utf-8")
    service = unit["Service"]
    loaded = service["LoadCredential"].partition(":")[0]
    assert service["ExecStart"].split()[1:] == ["serve", "--config", f"${{CREDENTIALS_DIRECTORY}}/{loaded}"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert int(service["LimitNOFILE"]) > ServerOptions().max_connections
    assert int(service["TimeoutStopSec"]) > ServerOptions().shutdown_timeout + 5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Its own checker knows all settings and values; the command is one that exists here."""
    text = (FILES / "corellm.service").read_text(encoding="utf-8")
    file = tmp_path / "corellm.service"
    file.write_text(text.replace("/opt/corellm/bin/corellm", "/bin/true"), encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True)
    assert "corellm.service" not in checked.stderr
