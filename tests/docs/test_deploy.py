"""The deployment examples parse, refer to things that exist, and show every metric."""

from __future__ import annotations

import configparser
import json
import re
from types import SimpleNamespace
from typing import Any

import yaml

from corellm.engine.metrics import read_metrics
from corellm.server.metrics import ServerMetrics
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
         "prefix_cache_hits"), 0
    )  # fmt: skip
    engine: Any = SimpleNamespace(
        scheduler=SimpleNamespace(get_stats=lambda: SimpleNamespace(**stats)),
        input_processor=SimpleNamespace(mm_processor=SimpleNamespace(cache=SimpleNamespace(hits=0, misses=0))),
        num_prompt_tokens=0,
        num_generated_tokens=0,
    )
    metrics = ServerMetrics()
    metrics.text(read_metrics(engine))
    names = {family.name + SUFFIXES[family.type] for family in metrics.registry.collect()}
    assert set(re.findall(r"corellm:\w+", " ".join(queries))) == names
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_kubernetes_example_fits_together() -> None:
    """Selectors, volumes, ports and the secret are those that are defined; probes ask for `/health` and `/ready`."""
    secret, deployment, service = yaml.safe_load_all((FILES / "kubernetes.yaml").read_text(encoding="utf-8"))
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes.keys() == {mount["name"] for mount in container["volumeMounts"]}
    assert volumes["config"]["secret"]["secretName"] == secret["metadata"]["name"]
    options = yaml.safe_load(secret["stringData"]["server.yaml"])
    assert spec["terminationGracePeriodSeconds"] > options["shutdown_timeout"] + 5
    assert container["args"] == ["--config", "/etc/corellm/server.yaml"]
    (port,) = container["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/ready", "readiness": "/ready", "liveness": "/health",
    }  # fmt: skip
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert f"--uid {spec['securityContext']['runAsUser']} " in (FILES / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_has_every_plugin() -> None:
    """All that the repository has, and what is copied exists."""
    text = (FILES / "Dockerfile").read_text(encoding="utf-8")
    plugins = {f"./plugins/{path.parent.name}" for path in ROOT.glob("plugins/*/pyproject.toml")}
    assert set(re.findall(r"\./plugins/\w+", text)) == plugins
    commands = [line.split(" ", 1) for line in text.splitlines() if re.match(r"(ENTRYPOINT|CMD) \[", line)]
    assert {name: json.loads(words) for name, words in commands} == {
        "ENTRYPOINT": ["corellm", "serve"], "CMD": ["demo", "--host", "0.0.0.0"],
    }  # fmt: skip


def test_the_unit_parses() -> None:
    """It starts `corellm serve` with the file that it loads."""
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read(FILES / "corellm.service", encoding="utf-8")
    service = unit["Service"]
    loaded = service["LoadCredential"].partition(":")[0]
    assert service["ExecStart"].split()[1:] == ["serve", "--config", f"${{CREDENTIALS_DIRECTORY}}/{loaded}"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"
