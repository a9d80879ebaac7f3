"""Options of replicas, how many the load asks for, and that nothing of Ray is there without its flags."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from corellm.cli import build_parser, main
from corellm.errors import ConfigError
from corellm_ray.offer import options_of
from corellm_ray.options import ReplicaOptions
from corellm_ray.scaling import FEWER_SECONDS, replicas_for, wanted_replicas
from corellm_server.commands import absent_flags
from corellm_server.offers import WantedEngine


@pytest.mark.parametrize(("given", "fewest", "most"), [("1", 1, 1), ("4", 4, 4), ("1:4", 1, 4), ("2:2", 2, 2)])
def test_numbers_of_replicas(given: str, fewest: int, most: int) -> None:
    options = ReplicaOptions(replicas=given)
    assert (options.fewest, options.most) == (fewest, most)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"replicas": "0"}, "replicas must be a number from 1 or a range like 1:4, got '0'"),
        ({"replicas": "4:1"}, "ends before it begins"),
        ({"replicas": "two"}, "got 'two'"),
        ({"replica_cpus": 0}, "replica_cpus must be above 0"),
        ({"replica_gpus": -1}, "replica_gpus must be from 0"),
        ({"replica_queue": 0}, "replica_queue must be from 1"),
        ({"replica_router": "best"}, "prefix, load or round-robin"),
        ({"replica_hang_timeout": 1}, "replica_hang_timeout must be 2"),
        ({"replica_drain_timeout": -1}, "replica_drain_timeout must be 0"),
        ({"object_store_memory": 1}, "80M or more"),
    ],
)  # fmt: skip
def test_wrong_options(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ReplicaOptions(**wrong)


def test_several_models_have_applications_of_their_own() -> None:
    """By their names, if no option says so; in one cluster."""

    def apps(**given: dict[str, Any]) -> list[str | None]:
        wanted = [WantedEngine(name, ReplicaOptions(replicas="1", **options), {}) for name, options in given.items()]
        return [options.replica_app for options in options_of(wanted)]

    assert apps(a={}) == [None]
    assert apps(a={}, **{"of/b": {}}) == ["corellm-a", "corellm-of-b"]
    assert apps(a={}, b={"replica_app": "own"}) == ["corellm-a", "own"]
    with pytest.raises(ConfigError, match="replica_app: 'x' is that of two models"):
        apps(a={"replica_app": "x"}, b={"replica_app": "x"})
    with pytest.raises(ConfigError, match="ray_address differs between models"):
        apps(a={"ray_address": "auto"}, b={})


def test_the_command_knows_them() -> None:
    args = build_parser().parse_args(["serve", "demo", "--replicas", "1:4", "--replica-cpus", "2"])
    assert (args.replicas, args.replica_cpus) == ("1:4", 2.0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("serve demo --replica-cpus 2", "replica_cpus needs replicas, which asks for replicas on Ray"),
        ("serve demo --replicas 2 --data-parallel-size 2", "data_parallel_size .* and replicas .* do not go together"),
        ("batch -i x -o x --model demo --ray-workers 2", "ray_workers needs ray, which asks for workers on Ray"),
        ("batch -i x -o x --model demo --ray --data-parallel-size 2", "data_parallel_size .* and ray .* do not go"),
    ],
)
def test_options_of_what_is_not_asked_for_are_refused(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so is more than one engine behind a command; before anything is loaded or read."""
    assert main(words.split()) != 0
    assert re.search(told, capsys.readouterr().err)


def test_without_this_distribution_the_command_says_what_to_install() -> None:
    """By the folder of a checkout; one replica is what every server has."""
    _, refusal = absent_flags.without_absent(["demo", "--replicas", "4"], {"--port"})
    assert "pip install ./extensions/ray" in refusal
    assert absent_flags.without_absent(["demo", "--replicas", "1"], {"--port"}) == (["demo"], "")


def test_ray_is_not_imported_without_its_flags() -> None:
    """The command line is read, with the options of replicas in it."""
    code = (
        "import sys; from corellm.cli import build_parser; build_parser().parse_args(['serve', 'demo', '--port', '1']);"
        "import corellm_ray.offer; sys.exit('ray' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("current", "num_requests", "usages", "wanted"),
    [
        (1, 0, [0.0], 1),
        (1, 17, [0.2], 2),
        (2, 64, [0.5, 0.5], 4),
        (2, 4, [0.95, 0.9], 3),  # few requests, which are long
        (2, 4, [0.1, 0.1], 1),
        (2, 4, [0.4, 0.4], 2),  # one alone would be too full
        (3, 0, [], 1),
    ],
)
def test_replicas_for_a_load(current: int, num_requests: float, usages: list[float], wanted: int) -> None:
    assert wanted_replicas(current, num_requests, 16, usages) == wanted


def test_fewer_replicas_only_after_a_while_and_more_at_once() -> None:
    """Within the bounds; a load that comes back begins the while again."""

    def decide(requests: float, at: float, state: dict[str, Any], target: int) -> tuple[int, dict[str, Any]]:
        context: Any = SimpleNamespace(
            aggregated_metrics={"kv_cache_usage": {"a": 0.1}}, current_num_replicas=target, target_num_replicas=target,
            total_num_requests=requests, capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=4,
            policy_state=state, current_time=at, config=SimpleNamespace(get_target_ongoing_requests=lambda: 10),
        )  # fmt: skip
        return replicas_for(context)

    assert decide(500, 0, {}, 1) == (4, {})
    assert decide(11, 0, {}, 1) == (1, {})  # ten requests, and the stream of what is new
    kept, state = decide(5, 10, {}, 4)
    assert kept == 4
    assert decide(5, 10 + FEWER_SECONDS - 1, state, 4)[0] == 4
    assert decide(40, 20, state, 4) == (4, {})
    assert decide(5, 10 + FEWER_SECONDS, state, 4) == (1, {})
