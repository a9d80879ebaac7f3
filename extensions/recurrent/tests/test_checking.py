"""Modules that keep a state are looked at when a model is loaded: what they cannot do is found, or refused."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError, ContractError
from corellm.loading.kept_states import find_keeping
from corellm.scheduling.batch import SequenceChunk
from corellm.worker.input_batch import FlatBatch
from corellm_recurrent.checking import make_states
from corellm_recurrent.rows import DUMMY, Rows
from corellm_recurrent.states import RecurrentStates
from corellm_recurrent.widths import noting_widths

WIDTH = 4
NO_BATCH = cast(FlatBatch, None)
"""Chunks say all: nothing of a batch is read here."""


class Sums(nn.Module):
    """The sum of a sequence's tokens so far, kept as a recurrent state `[batch, width]`."""

    def __init__(self, layer_idx: int = 0) -> None:
        super().__init__()
        self.layer_idx = layer_idx

    def forward(self, hidden_states: Tensor, cache_params: Any = None, **_: Any) -> Tensor:
        """Return `[batch, num_tokens, width]`."""
        before = self.before(cache_params, hidden_states)
        sums = hidden_states.cumsum(dim=1) + before[:, None]
        cache_params.update_recurrent_state(self.after(sums), self.layer_idx)
        return sums

    def before(self, cache: Any, hidden: Tensor) -> Tensor:
        """The state before the tokens."""
        kept: Tensor | None = cache.layers[self.layer_idx].recurrent_states[0]
        return torch.zeros_like(hidden[:, 0]) if kept is None else kept

    def after(self, sums: Tensor) -> Tensor:
        """The state after them."""
        return sums[:, -1]


class SumsOfOne(Sums):
    """Goes on with one token only: with several it begins anew."""

    def before(self, cache: Any, hidden: Tensor) -> Tensor:
        """The state before the tokens."""
        before = super().before(cache, hidden)
        return before if hidden.shape[1] == 1 else torch.zeros_like(before)


class Forgetful(Sums):
    """Never goes on."""

    def before(self, cache: Any, hidden: Tensor) -> Tensor:
        """The state before the tokens."""
        return torch.zeros_like(super().before(cache, hidden))


class Growing(Sums):
    """Keeps all tokens."""

    def after(self, sums: Tensor) -> Tensor:
        """The state after them."""
        return sums

    def before(self, cache: Any, hidden: Tensor) -> Tensor:
        """The state before the tokens."""
        before = super().before(cache, hidden)
        return before if before.ndim == 2 else before[:, -1]


class Shared(Sums):
    """Adds the mean over the sequences of a call."""

    def before(self, cache: Any, hidden: Tensor) -> Tensor:
        """The state before the tokens."""
        before = super().before(cache, hidden)
        return before.mean(dim=0, keepdim=True).expand_as(before)


class Without(Sums):
    """Takes no cache."""

    def forward(self, hidden_states: Tensor, **more: Any) -> Tensor:  # type: ignore[override]
        """Return `[batch, num_tokens, width]`."""
        return super().forward(hidden_states, **more)

    def unused(self, cache: Any) -> None:
        """Only names what keeps a state."""
        cache.update_recurrent_state(None, 0)


class Decoder(nn.Module):
    """A linear layer and a module that keeps a state."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.first, self.mixer = nn.Linear(WIDTH, WIDTH), mixer


def _make(mixer: nn.Module, max_num_seqs: int = 2, most_drafts: int = 0) -> RecurrentStates:
    found = find_keeping(Decoder(mixer))
    assert found == {"mixer": mixer}
    with_widths = {name: (module, WIDTH) for name, module in found.items()}
    return make_states(with_widths, 1, Rows(max_num_seqs, most_drafts), torch.float32, torch.device("cpu"))


def test_only_modules_that_hand_a_state_to_the_cache_are_found() -> None:
    """Also those that inherit what does; not those around them."""
    assert list(find_keeping(Decoder(nn.Sequential(SumsOfOne(), nn.ReLU())))) == ["mixer.0"]
    assert not find_keeping(Decoder(nn.ReLU()))


def test_a_module_that_goes_on_with_one_token_is_run_token_by_token(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so; one that goes on with several is not."""
    with caplog.at_level(logging.INFO):
        _make(Sums())
        assert "token by token" not in caplog.text
        _make(SumsOfOne())
    assert "SumsOfOne: " in caplog.text


@pytest.mark.parametrize(
    ("mixer", "reason"),
    [
        (Forgetful(), "6, 1, 1, 5 tokens"),
        (
            Growing(),
            r"fixed size .*\(1, 2, 4\)\] .*\[\(1, 13, 4\)\] .*",
        ),
        (Shared(), "two sequences"),
        (Without(), "takes no cache"),
    ],
)
def test_what_cannot_be_run_in_chunks_is_refused(mixer: nn.Module, reason: str) -> None:
    """With the module and the reason."""
    with pytest.raises(CheckpointError, match=rf"^{type(mixer).__name__} \(mixer\) .*{reason}"):
        _make(mixer)


def test_a_module_that_runs_twice_in_a_step_is_refused() -> None:
    """Its second run would begin from the state of the first."""
    mixer = Sums()
    cache = type("Cache", (), {"layers": [type("Layer", (), {"recurrent_states": [None]})()]})()
    cache.update_recurrent_state = lambda *_: None
    with noting_widths({"mixer": mixer}) as widths:
        mixer(hidden_states=torch.zeros(1, 2, WIDTH), cache_params=cache)
        assert widths == {"mixer": WIDTH}
        mixer(torch.zeros(1, 2, WIDTH), cache)
    assert widths == {"mixer": 0}
    with pytest.raises(CheckpointError, match="several times"):
        make_states({"mixer": (mixer, 0)}, 1, Rows(2), torch.float32, torch.device("cpu"))


def _chunk(request_id: str, start: int, num_tokens: int) -> SequenceChunk:
    return SequenceChunk(request_id, start, num_tokens, [0] * num_tokens, [], samples=True)


@pytest.mark.parametrize("kind", [Sums, SumsOfOne])
@torch.inference_mode()
def test_a_flat_batch_is_split_by_sequences(kind: type[Sums]) -> None:
    """Decodes together, prompts that begin or go on alone; states are those of the committed steps."""
    mixer = kind()
    states, hidden = _make(mixer, max_num_seqs=4), torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(1))

    def run(*chunks: SequenceChunk, tokens: Tensor, commit: bool = True) -> Tensor:
        states.lay_out(NO_BATCH, chunks, ())
        with states.running(NO_BATCH, chunks):
            output: Tensor = mixer(hidden_states=tokens[None], cache_params=None, paged="ignored")[0]
        if commit:
            states.commit()
        return output

    a, b = hidden[:4], hidden[4:]
    begun = run(_chunk("a", 0, 2), _chunk("b", 0, 1), tokens=torch.cat([a[:2], b[:1]]))
    torch.testing.assert_close(begun, torch.cat([a[:2].cumsum(0), b[:1]]))
    both = torch.cat([a[2:3], b[1:2], b[2:2], hidden[8:]])
    for commit in (False, False, True):  # twice in vain
        output = run(_chunk("a", 2, 1), _chunk("b", 1, 1), _chunk(DUMMY, 0, 1), tokens=both, commit=commit)
        torch.testing.assert_close(output, torch.cat([a[:3].sum(0)[None], b[:2].sum(0)[None], hidden[8:]]))
    states.release(["a", "b"], swapped=["a"])
    assert states.num_parked == 1
    run(_chunk("b", 0, 4), tokens=hidden[:4])  # another of the same name takes rows
    output = run(_chunk("a", 3, 1), _chunk("b", 4, 3), tokens=torch.cat([a[3:], hidden[4:7]]))
    torch.testing.assert_close(output, torch.cat([a.sum(0)[None], hidden[:7].cumsum(0)[4:]]))
    assert states.num_parked == 0
    states.rows.check_integrity()


@torch.inference_mode()
def test_drafts_see_the_state_of_those_before_them() -> None:
    """Each token of a sequence runs after the one before it; the next step, or host memory, takes the state of any."""
    mixer = Sums()
    states, hidden = _make(mixer, most_drafts=2), torch.randn(12, WIDTH, generator=torch.Generator().manual_seed(2))
    a, b = hidden[:7], hidden[7:]

    def run(*chunks: SequenceChunk, tokens: list[Tensor]) -> Tensor:
        states.lay_out(NO_BATCH, chunks, ())
        with states.running(NO_BATCH, chunks):
            output: Tensor = mixer(hidden_states=torch.cat(tokens)[None], cache_params=None)[0]
        states.commit()
        return output

    run(_chunk("a", 0, 2), _chunk("b", 0, 1), tokens=[a[:2], b[:1]])
    rows = [_chunk("a", 2, 1), _chunk("a", 3, 1), _chunk("a", 4, 1), _chunk("b", 1, 1), _chunk("b", 2, 1)]
    found = run(*rows, tokens=[a[2:5], b[1:3]])
    torch.testing.assert_close(found, torch.cat([a.cumsum(0)[2:5], b.cumsum(0)[1:3]]))
    states.release(["b"], swapped=["b"])
    found = run(_chunk("a", 3, 1), _chunk("b", 2, 1), _chunk("b", 3, 1), tokens=[a[5:6], b[3:]])
    torch.testing.assert_close(
        found, torch.stack([a[:3].sum(0) + a[5], b[:2].sum(0) + b[3], b[:2].sum(0) + b[3:].sum(0)])
    )
    states.rows.check_integrity()


def test_a_call_outside_of_a_step_or_of_other_tokens_is_an_error() -> None:
    """A module must never run without its sequences' states, nor on tensors of tokens beside hidden states."""
    mixer = Sums()
    states = _make(mixer)
    with pytest.raises(ContractError, match=r"Sums \(mixer\) .* \[1, 2, 4\]"):
        mixer(torch.zeros(1, 2, WIDTH))
    states.lay_out(NO_BATCH, [_chunk("a", 0, 3)], ())
    with states.running(NO_BATCH, []), pytest.raises(ContractError, match="3 tokens"):
        mixer(torch.zeros(1, 2, WIDTH))
