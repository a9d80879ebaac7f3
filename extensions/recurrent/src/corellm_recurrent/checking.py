"""Whether a module gives the same for a prompt in chunks as for the whole, and for sequences together as for one.

Found at load by running it on random hidden states. Where a module cannot go on with several tokens at once, it is run
token by token; where that is not enough, the model is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from corellm.errors import CheckpointError, ContractError, CorellmError, raised_at
from corellm_recurrent.mixer import Mixer
from corellm_recurrent.rows import Rows
from corellm_recurrent.states import RecurrentStates, StateLayout

logger = logging.getLogger(__name__)

_WHOLE = 13
_CHUNKS = (6, 1, 1, 5)
"""As a prompt and an output may come: tokens of each step."""
_TOLERANCE = {torch.float32: 1e-3}
_ROUGH = 0.1
"""Differences of outputs, relative to the largest row, that rounding may make; wrong states make about 1."""
_SEGMENT = 128
"""Fewest tokens of a segment: shorter ones take more time for calls, longer ones leave more to compute again."""
_WAY_OUT = "run this checkpoint with transformers' own generate"


@torch.inference_mode()
def make_states(
    modules: Mapping[str, tuple[nn.Module, int]],
    num_kept: int,
    rows: Rows,
    dtype: torch.dtype,
    device: torch.device,
    num_snapshots: int | None = None,
) -> RecurrentStates:
    """Check a decoder's modules that keep a state, and allocate the states of all sequences.

    Args:
        modules: with the width of their input, by name, from `noting_widths`.
        num_kept: states of each kind that a layer may keep, from the decoder's configuration.
        rows: of the states.
        dtype, device: of the model.
        num_snapshots: rows for snapshots, where modules can run prompts in segments; None if chunks do not heed them.

    Raises:
        CheckpointError: a module cannot be run in chunks; says why.
    """
    mixers, layouts, checked = [], [], {}
    for name, (module, width) in modules.items():
        try:
            if not width:
                raise ContractError("it runs several times in a step, or never")
            mixer = Mixer(name, module, num_kept)
            if type(module) not in checked:
                checked[type(module)] = _goes_by_token(mixer, _random_hidden(width, dtype, device))
            mixer.by_token = checked[type(module)]
            layouts.append(_layout(mixer, _random_hidden(width, dtype, device)))
        except (CheckpointError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            reason = said if isinstance(error, CorellmError) else f"{type(error).__name__}: {said} ({raised_at(error)})"
            raise _refusal(f"{type(module).__name__} ({name})", reason) from error
        mixers.append(mixer)
    segment = 0 if num_snapshots is None or any(checked.values()) else max(map(_at_once, mixers))
    states = RecurrentStates(mixers, layouts, rows, device, segment, num_snapshots or 0)
    num_bytes = sum(layout.num_bytes for of_mixer in layouts for layout in of_mixer)
    logger.info(
        "layers that keep a state: %d, %.2f MiB for each sequence, %.2f GiB for %d at once (max_num_seqs), with room "
        "to write beside what is read",
        len(mixers), num_bytes / 2**20, rows.count * num_bytes / 2**30, rows.max_num_seqs,
    )  # fmt: skip
    if states.num_snapshots:
        logger.info(
            "snapshots of states for the prefix cache: %d, at multiples of %d tokens, %.2f GiB",
            states.num_snapshots, segment, states.num_snapshots * num_bytes / 2**30,
        )  # fmt: skip
    if any(checked.values()):
        names = ", ".join(cls.__name__ for cls, by_token in checked.items() if by_token)
        logger.info("%s: only a prompt's first chunk is computed at once, later ones token by token", names)
    return states


def _at_once(mixer: Mixer) -> int:
    """Return how many tokens a module computes at once; it pads fewer to as many."""
    stated = getattr(mixer.module, "chunk_size", None)
    return max(stated, _SEGMENT) if isinstance(stated, int) else _SEGMENT


def _refusal(mixer: object, reason: str) -> CheckpointError:
    return CheckpointError(f"{mixer} keeps a state, and corellm cannot run it in chunks: {reason}; {_WAY_OUT}")


def _random_hidden(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Two sequences, `[2, _WHOLE, width]`."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, _WHOLE, width, generator=generator).to(device, dtype)


def _layout(mixer: Mixer, hidden: Tensor) -> list[StateLayout]:
    """Return the layout of a module's states.

    Raises:
        CheckpointError: it depends on the number of tokens or of sequences.
    """
    sizes = ((1, 2), (1, _WHOLE), (2, 3))
    found = [mixer.run(hidden[:batch, :length], None)[1] for batch, length in sizes]
    layouts = [[StateLayout(tuple(state.shape[1:]), state.dtype) for state in states] for states in found]
    batches = [{state.shape[0] for state in states} for states in found]
    if any(layout != layouts[0] for layout in layouts) or batches != [{batch} for batch, _ in sizes]:
        shapes = [[tuple(state.shape) for state in states] for states in found]
        tried = ", ".join(f"{of} for {b} x {n} tokens" for of, (b, n) in zip(shapes, sizes, strict=True))
        raise _refusal(mixer, f"its state is no tensor of fixed size for each sequence: {tried}")
    return layouts[0]


def _goes_by_token(mixer: Mixer, hidden: Tensor) -> bool:
    """Return whether chunks must go on token by token.

    Raises:
        CheckpointError: even then they differ from the whole.
    """
    whole = torch.cat([mixer.run(hidden[i : i + 1], None)[0] for i in range(2)])
    reasons = []
    for by_token in (False, True):
        mixer.by_token = by_token
        try:
            reason = _difference(mixer, hidden, whole)
        except Exception as error:  # a module that goes on with one token only may fail with several
            reason = f"it fails with {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if not reason:
            return by_token
        reasons.append(reason)
    raise _refusal(mixer, reasons[-1])


def _difference(mixer: Mixer, hidden: Tensor, whole: Tensor) -> str:
    """Return in which way a module's outputs differ from those of each whole sequence; nothing if they do not."""
    alone = [_in_chunks(mixer, hidden[i : i + 1], _CHUNKS) for i in range(2)]
    if not _same(torch.cat(alone), whole):
        return f"a prompt in chunks of {', '.join(map(str, _CHUNKS))} tokens differs from the whole"
    if not _same(_together(mixer, hidden), whole[:, -2:]):
        return "tokens of two sequences together differ from each alone"
    return ""


def _in_chunks(mixer: Mixer, hidden: Tensor, lengths: Sequence[int], states: Sequence[Tensor] | None = None) -> Tensor:
    outputs = []
    for chunk in torch.split(hidden, list(lengths), dim=1):
        output, states = mixer.run(chunk, states)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def _together(mixer: Mixer, hidden: Tensor) -> Tensor:
    """Return the outputs of the last two tokens of two sequences, whose states were computed one at a time."""
    begun = [mixer.run(hidden[i : i + 1, :-2], None)[1] for i in range(2)]
    return _in_chunks(mixer, hidden[:, -2:], (1, 1), [torch.cat(pair) for pair in zip(*begun, strict=True)])


def _same(output: Tensor, whole: Tensor) -> bool:
    limit = _TOLERANCE.get(whole.dtype, _ROUGH) * whole.float().norm(dim=-1).max()
    return bool(((output - whole).float().norm(dim=-1) <= limit).all())
