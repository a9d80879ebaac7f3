"""Every promise about faults and bad input has tests. A test of the server names its rows (`test_row_9_...`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROMISES = {
    1: "a body that is not JSON: 400",
    2: "a body over the limit: 413 before it is parsed",
    3: "wrong content type, method or route: 415, 405, 404",
    4: "a missing or wrong key: 401 on every route but those of probes",
    5: "an unknown model: 404",
    6: "a parameter out of range or of another type: 400 that names it",
    7: "a token id outside the logits: 400",
    8: "too long for the model or the cache: 400 with both numbers",
    9: "a broken content part: 400 that names it",
    10: "broken, truncated or foreign media: 400",
    11: "odd but valid media: as their files say",
    12: "a media bomb: 400, in little time and memory",
    13: "a decoder that hangs or crashes: 400, and others are decoded",
    14: "a forbidden URL, redirect or file: 400, and nothing is connected to or opened",
    15: "a host that is slow, huge or gone: 400",
    16: "more parts than allowed: 400 before the first is decoded or fetched",
    17: "text of special tokens: text",
    18: "malformed embeddings: 400",
    19: "a template, processor or code of a request: 400",
    20: "a hostile template of a model: 400",
    21: "fields that hold an output to a schema: 400, as they are not there yet",
    22: "a bad checkpoint: exit status 1 with file and reason",
    23: "an exception in a stage of a request: 500 for that request",
    24: "an exception in the forward pass: 500 for its batch; three in a row: exit status 1",
    25: "a killed engine: clients are told, exit status 1",
    26: "a hung engine: not ready, and clients are told at their deadline",
    27: "a client that left: its request is aborted",
    28: "a full server: 503 with Retry-After",
    29: "SIGTERM and SIGKILL: all processes end",
    30: "equal ids of clients: both are served",
    31: "the same image in another size or mode, or of another tenant: no shared cache entry",
    32: "a tiny cache under random load: all finish",
    33: "a batch file with bad lines: a result or error for each, in order; finished ones survive a kill",
    34: "mixed and hostile load for long: no failure, no leak, the same outputs",
    35: "a request's tokens and log-probabilities: the same bits alone, in any batch, with drafts",
    36: "bodies that stall or have a million values: no place in the queue, no hold of the event loop",
    37: "a server's own reply, sent back through any client library: accepted",
    38: "a hung engine: ended, exit status 1",
}
ELSEWHERE = {
    10: [("tests/media/test_image.py", "test_truncated_files_are_refused_wherever_they_end"),
         ("extensions/media/tests/test_audio.py", "test_any_damage_is_an_error_or_finite_audio"),
         ("extensions/media/tests/test_video_files.py", "test_cut_anywhere_it_is_refused")],
    11: [("tests/media/test_image.py", "test_every_mode_gives_the_colours_a_viewer_shows"),
         ("extensions/media/tests/test_audio.py", "test_every_format_is_heard_as_librosa_hears_it"),
         ("extensions/media/tests/test_video_files.py", "test_few_frames_are_the_same_as_all")],
    13: [("tests/media/test_pool.py", "test_a_fault_costs_its_own_request_alone")],
    14: [("extensions/server/tests/fetching/test_fetcher.py", "test_fetches_from_allowed_hosts_only"),
         ("extensions/server/tests/fetching/test_fetcher.py", "test_a_name_is_resolved_once"),
         ("extensions/server/tests/fetching/test_fetcher.py", "test_redirects_are_checked_again"),
         ("extensions/server/tests/fetching/test_url.py", "test_no_form_of_a_private_address_is_connected_to"),
         ("extensions/server/tests/test_media_sources.py", "test_files_elsewhere"),
         ("tests/media/test_image.py", "test_pipes_and_devices_are_refused_without_waiting")],
    20: [("tests/templates/test_renderer.py", "test_hostile_templates")],
    22: [("tests/loading/test_checkpoint.py", "test_broken_files_are_named")],
    31: [("tests/multimodal/test_hashing.py", "test_requests_share_an_entry_exactly_when_all_is_equal")],
    32: [("tests/scheduling/test_simulation.py", "test_random_load_on_tiny_caches")],
    35: [("tests/same_results/test_same_results.py", "test_a_requests_results_are_its_own"),
         ("tests/same_results/test_over_http.py", "test_over_http")],
}  # fmt: skip
"""Tests that are named for what they are about."""


def names_in(file: Path) -> set[str]:
    """The names of the tests of a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.parse(file.read_text()).body if isinstance(node, functions)}
    return {name for name in names if name.startswith("test_")}


def named_rows(name: str) -> set[int]:
    """The rows that a test's name has: `test_row_9_...`, `test_rows_6_7_and_19_...`."""
    found = re.match(r"test_rows?_((?:\d+_|and_)+)", name)
    return set(map(int, re.findall(r"\d+", found[1]))) if found else set()


def test_every_promise_has_tests() -> None:
    """By their names, or in the table; no test names a row that is not there."""
    covered = {row for row, tests in ELSEWHERE.items() for file, name in tests if name in names_in(ROOT / file)}
    assert covered == set(ELSEWHERE)
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("extensions/*/tests/**/test_*.py")]
    named = {row for file in files for name in names_in(file) for row in named_rows(name)}
    assert named | covered == set(PROMISES)


def test_tests_elsewhere_exist() -> None:
    """Each one of the table."""
    listed = [entry for tests in ELSEWHERE.values() for entry in tests]
    assert [(file, name) for file, name in listed if name not in names_in(ROOT / file)] == []
