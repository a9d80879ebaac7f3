"""Modules that keep a state are an extension's to run: without it a typed error says what to install."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from corellm.errors import MissingExtraError
from corellm.loading.kept_states import find_keeping, kept_states


class Keeping(nn.Module):
    """Hands its state to transformers' Cache."""

    layer_idx = 3

    def forward(self, hidden: Tensor, cache_params: Any) -> Tensor:
        """Return the hidden states."""
        cache_params.update_conv_state(hidden, self.layer_idx)
        return hidden


def test_what_runs_them_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder without such modules asks for nothing."""
    keeping = find_keeping(nn.Sequential(nn.Linear(2, 2), Keeping()))
    assert list(keeping) == ["1"]
    found = kept_states(keeping)
    assert found is not None
    assert found.layers == {3}
    monkeypatch.setattr("corellm.loading.kept_states.call_extensions", lambda *_, **__: iter(()))
    with pytest.raises(
        MissingExtraError, match=r"Keeping \(1\) .* corellm-recurrent; .*pip install ./extensions/recurr"
    ):
        kept_states(keeping)
    assert kept_states(find_keeping(nn.Linear(2, 2))) is None
