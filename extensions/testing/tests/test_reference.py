"""The default oracle: what it takes from the model under test, and what not."""

from __future__ import annotations

from pathlib import Path

from extensions.testing.tests.mutants.harness import examine
from extensions.testing.tests.mutants.mutant import LLAVA

GREEDY = "test_greedy_equals_the_reference[16-prefix-caching]"


def test_ends_are_those_of_the_model_under_test(tmp_path: Path) -> None:
    """Where `load_model` adds ends, outputs are compared without them; another rule says which there may be.

    These are tokens that the tiny model generates all the time.
    """
    more = LLAVA.given(
        "ordinary tokens end texts, too",
        "test_only_ends_end_an_answer",
        "load_model",
        """
        @hookimpl(wrapper=True)
        def load_model(self):
            model = yield
            model.generation_config.eos_token_id = list(range(3, 60))
            return model
        """,
    )
    assert examine(more.contract, [GREEDY], tmp_path / "greedy", more).passed == [GREEDY]
    verdict = examine(more.contract, [more.rule], tmp_path / "ends", more)
    assert verdict.tells(more), str(verdict)
