"""Rules keep quiet about an adapter that is right in another way than those shipped."""

from __future__ import annotations

from pathlib import Path

from extensions.testing.tests.mutants.harness import examine
from extensions.testing.tests.mutants.mutant import LLAVA


def test_embeddings_may_be_scaled(tmp_path: Path) -> None:
    """By one number for all tokens, where the table is not: the decoder is given what the reference's is given."""
    scaled = LLAVA.given(
        "embeddings are scaled outside the table",
        "test_every_token_has_its_embedding",
        "get_input_embeddings",
        """
        @hookimpl(wrapper=True)
        def load_model(self):
            import torch

            model = yield
            table = model.get_input_embeddings()
            table.weight = torch.nn.Parameter(table.weight / 8)
            return model

        @hookimpl
        def get_input_embeddings(self, model, input_ids):
            return model.get_input_embeddings()(input_ids) * 8
        """,
    )
    verdict = examine(scaled.contract, [scaled.rule], tmp_path, scaled)
    assert verdict.passed == [scaled.rule], str(verdict)
