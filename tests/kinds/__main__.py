"""Try every kind of multimodal model that transformers maps, and write the page of them: `make families`."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path

import transformers
from tqdm import tqdm

from corellm.plugin.adapters import KNOWN_FAMILIES
from tests.kinds.outcome import ROOT, Outcome, outcome_of, passing

PAGE = ROOT / "docs" / "run" / "kinds.md"
_HEAD = """# Kinds of models

Every architecture of transformers' image-text-to-text, multimodal-LM and speech-to-text mappings, tried by `make
families` with a tiny random checkpoint, in the generic adapter,
[corellm-transformers](families.md#corellm-transformers).

- *passes*, with its modalities where the row names them: greedy outputs are those of transformers' `generate`, text
  alone and with several items, or with one where a prompt may have one; with every pair of its modalities in one
  conversation, in both orders, with what the chat template writes around items; and two different items of a modality
  have different outputs. The first in chunks of 16, 64 and any number of tokens, with and without prefix caching; where
  memory is so short that requests are preempted, by recompute and by swap, in blocks of 8, 16 and 32; with compiled
  kernels and with plain torch. Each setting was tried, not each with every other. Kinds of one architecture are tried
  with one checkpoint.
- A model whose layers attend to tokens that an indexer chooses passes for up to as many tokens as it chooses (2,048 as
  published): those are all of them, and longer sequences are refused.
- *not beside*: no prompt may have both, as the model would embed the one otherwise beside the other.
- *with* a library: with that library, which corellm does not install; transformers processes all videos by torchvision.
- *its own plugin*: a distribution of this project serves it, and is tested there.
- *refused*: at load, with this reason. Such a model needs a plugin of its own, or transformers' own `generate`.
- *needs*: transformers cannot make the model or its processor without that library, and nothing was tried with it.
- *no checkpoint*: the recipe of tiny checkpoints does not make one.
- *not tested*: the rules took too long, or one cannot be tried; the row says which.
- *fails*: a rule does not hold; the reason names it and what it found.

"""
_SPEECH = """
## Speech

Those of the speech-to-text mapping that the other two do not have.

"""
_OLDEST = Path(__file__).with_name("transformers_5_17.txt")
"""The kinds of the first two mappings in the oldest release that corellm runs on, a line each."""
_SERVED = ("its own plugin", "passes")
_ORDER = (*_SERVED, "refused", "needs", "no checkpoint", "not tested", "fails")


def kinds() -> dict[str, str]:
    """Return `{model_type: architecture}` of both mappings."""
    from transformers.models.auto import modeling_auto as auto

    both = {**auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, **auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}
    return dict(sorted(both.items()))


def speech_kinds() -> dict[str, str]:
    """Return `{model_type: architecture}` of the speech-to-text mapping, without those of the others."""
    from transformers.models.auto import modeling_auto as auto

    mapped = sorted(auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.items())
    return {kind: architecture for kind, architecture in mapped if kind not in kinds()}


def page(outcomes: dict[str, Outcome], architectures: dict[str, str]) -> str:
    """Return the page."""
    counts = Counter(outcome.what for outcome in outcomes.values())
    total = ", ".join(f"{counts[what]} {what}" for what in _ORDER if counts[what])
    speech = speech_kinds()
    main, spoken = (
        {kind: outcome for kind, outcome in outcomes.items() if (kind in speech) == is_speech}
        for is_speech in (False, True)
    )
    oldest = _OLDEST.read_text(encoding="utf-8").split()
    served = sum(outcomes[kind].what in _SERVED for kind in oldest if kind in outcomes)
    head = f"{_HEAD}{len(outcomes)} kinds: {total}.\n\n"
    head += f"Of the {len(oldest)} kinds of transformers 5.17, beside those of speech below, {served} are served.\n\n"
    return f"{head}{_table(main, architectures)}{_SPEECH}{_table(spoken, architectures)}"


def _table(outcomes: dict[str, Outcome], architectures: dict[str, str]) -> str:
    rows = [
        f"| `{kind}` | `{architectures[kind]}` | {outcome.what}{': ' if outcome.why else ''}{_plain(outcome.why)} |"
        for kind, outcome in outcomes.items()
    ]
    return "\n".join(["| model_type | architecture | |", "|---|---|---|", *rows, ""])


def outcomes_of(text: str) -> dict[str, Outcome]:
    """Return `{model_type: outcome}` of a page."""
    rows = re.findall(r"^\| `([^`]+)` \| `[^`]+` \| ([^:|]+?)(?:: (.*))? \|$", text, re.MULTILINE)
    return {kind: Outcome(what, why.replace("\\|", "|").replace("&lt;", "<")) for kind, what, why in rows}


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the kinds, several at a time."""
    parser = argparse.ArgumentParser(prog="python -m tests.kinds", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="model types to try; all of them if none")
    parser.add_argument("--seconds", type=int, default=120, help="most for making and loading a checkpoint")
    parser.add_argument("--shard", default="1/1", help="the part of the kinds to try, e.g. 2/4")
    parser.add_argument("--libraries", type=Path, help="a folder that `python -m tests.kinds.libraries` made")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time")
    parser.add_argument("--quick", action="store_true", help="try one setting of each kind")
    parser.add_argument("--write", action="store_true", help="write what came of them into the page")
    parser.add_argument("--results", type=Path, help="a file to write what came of them into, as JSON")
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # several kinds at a time, of tiny tensors
    known = {**kinds(), **speech_kinds()}
    part, _, count = given.shard.partition("/")
    if unknown := [kind for kind in given.kinds if kind not in known]:
        print(f"not of transformers {transformers.__version__}: {', '.join(unknown)}")
    wanted = [kind for kind in given.kinds or known if kind in known][int(part) - 1 :: int(count)]
    owned = {kind: KNOWN_FAMILIES[known[kind]] for kind in wanted if known[kind] in KNOWN_FAMILIES}
    outcomes = {kind: Outcome("its own plugin", plugin) for kind, plugin in owned.items()}
    others = [kind for kind in wanted if kind not in owned]
    libraries = given.libraries and given.libraries.resolve()
    if given.quick and libraries is None:
        passed = passing([known[kind] for kind in others], given.seconds, given.jobs)
        outcomes |= {kind: Outcome("passes") for kind in others if known[kind] in passed}
        others = [kind for kind in others if kind not in outcomes]
    with ThreadPoolExecutor(given.jobs) as pool, tqdm(total=len(others)) as bar:

        def attempt(kind: str) -> Outcome:
            outcome = outcome_of(known[kind], given.seconds, libraries, quick=given.quick)
            bar.update()
            bar.write(f"{kind}: {outcome.what} {outcome.why}")
            return outcome

        outcomes |= dict(zip(others, pool.map(attempt, others), strict=True))
    if given.results:
        given.results.write_text(json.dumps({kind: astuple(outcome) for kind, outcome in outcomes.items()}), "utf-8")
    stated = outcomes_of(PAGE.read_text(encoding="utf-8")) if PAGE.is_file() else {}
    if given.write:
        found = {**stated, **outcomes}
        PAGE.write_text(page({kind: found[kind] for kind in known if kind in found}, known), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
        return
    worse = [kind for kind in wanted if kind in stated and stated[kind].what == "passes" != outcomes[kind].what]
    if worse:
        raise SystemExit(f"{', '.join(worse)}: {PAGE.name} says that they pass")


if __name__ == "__main__":
    main()
