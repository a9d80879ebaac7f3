"""What the probe of encoder-decoders accepts, and what it refuses with which reason; transformers' own decoders."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from corellm.attention.paged import ATTENTION_NAME, register_attention
from corellm.errors import CheckpointError
from corellm.loading.decoder_probe import probe_decoder
from corellm.modelling.defaults import own_configuration, text_decoder
from corellm.worker.kv_cache import LayerLayout
from corellm_encoder_decoder.probe import CrossAttentionProbe, ItemStatesProbe

SIZES = {
    "vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 3, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 4, "pad_token_id": 0,
}  # fmt: skip


def make_decoder(name: str = "Bart", **more: Any) -> Any:
    """A decoder of transformers on paged attention."""
    register_attention()
    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(config).eval()
    decoder = text_decoder(model, config)
    own_configuration(decoder)
    decoder.config._attn_implementation = ATTENTION_NAME
    assert model.encoder.config._attn_implementation != ATTENTION_NAME
    return decoder


def probe(decoder: nn.Module) -> tuple[dict[int, LayerLayout], Tensor]:
    return probe_decoder(
        decoder,
        32,
        torch.float32,
        torch.device("cpu"),
        max_len=20,
        softcaps=True,
        sinks=True,
        biases=True,
        probe_class=CrossAttentionProbe,
    )


@pytest.mark.parametrize("name", ["Bart", "MBart", "Pegasus", "Whisper"])
def test_decoders_of_transformers(name: str) -> None:
    """Each layer is found, with its shape; the encoder has another number of layers and heads."""
    layers, hidden = probe(make_decoder(name))
    assert layers == {index: LayerLayout(4, 8, 8) for index in range(3)}
    assert hidden.shape == (1, 32)


def test_position_bias_is_refused() -> None:
    """T5 adds a bias of relative positions to scores."""
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    decoder = transformers.T5Model(config).eval().get_decoder()
    decoder.config._attn_implementation = ATTENTION_NAME
    with pytest.raises(CheckpointError, match="transformers' own generate"):
        probe(decoder)


def _no_positions(decoder: Any) -> None:
    embed = decoder.embed_positions.forward
    decoder.embed_positions.forward = lambda ids, length=0, position_ids=None: embed(
        ids, position_ids=torch.arange(position_ids.shape[-1])
    )


def _without_states(decoder: Any) -> None:
    layer = decoder.layers[1]
    forward = layer.forward
    layer.forward = lambda hidden, mask, states, **more: forward(hidden, mask, None, **more)


def _causal(decoder: Any) -> None:
    decoder.layers[2].encoder_attn.is_causal = True


def _other_heads(decoder: Any) -> None:
    other = make_decoder().layers[0].encoder_attn
    other.head_dim, other.num_heads, other.config = 16, 2, decoder.config
    decoder.layers[0].encoder_attn = other


def _twice(decoder: Any) -> None:
    decoder.layers[1].encoder_attn.layer_idx = 0


def _uncached(decoder: Any) -> None:
    attention = decoder.layers[0].encoder_attn
    forward = attention.forward
    attention.forward = lambda *args, cache=None, past_key_values=None, **more: forward(*args, **more)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_no_positions, "positions"),
        (_without_states, "has layers .*encoder's states"),
        (_causal, "each token .*all of"),
        (_other_heads, "another shape"),
        (_twice, "layer_idx"),
        (_uncached, r"cross attention|more than once"),
    ],
)
def test_what_is_refused(change: Callable[[Any], None], reason: str) -> None:
    """Each with its reason, and before that the decoder is accepted."""
    decoder = make_decoder()
    probe(deepcopy(decoder))
    change(decoder)
    with pytest.raises(CheckpointError, match=reason):
        probe(decoder)


# --- decoders that attend to states of items, beside their own tokens -------------------------------------------------


def make_mixed_decoder() -> Any:
    """Mllama's text model on paged attention: layers 1 and 2 of 5 attend to states."""
    from corellm_mllama.decoder import Decoder

    register_attention()
    torch.manual_seed(0)
    config = transformers.MllamaTextConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, cross_attention_layers=[1, 2], pad_token_id=0,
    )  # fmt: skip
    text_model = transformers.models.mllama.modeling_mllama.MllamaTextModel(config).eval()
    text_model.config._attn_implementation = ATTENTION_NAME
    return Decoder(text_model)


def probe_mixed(decoder: nn.Module) -> dict[int, LayerLayout]:
    return probe_decoder(
        decoder,
        32,
        torch.float32,
        torch.device("cpu"),
        max_len=20,
        softcaps=True,
        sinks=True,
        biases=True,
        probe_class=ItemStatesProbe,
    )[0]


def test_layers_of_states_lie_in_the_memory_of_others() -> None:
    """One layer of text each, and of one shape: no block has both."""
    own = LayerLayout(2, 8, 8)
    layers = probe_mixed(make_mixed_decoder())
    assert layers == {0: own, 1: replace(own, shares=0), 2: replace(own, shares=3), 3: own, 4: own}
    assert list(layers) == [0, 1, 2, 3, 4]


def test_a_layer_of_states_without_a_lender_has_memory_of_its_own() -> None:
    """As one whose keys and values have another shape than those of text."""
    decoder = make_mixed_decoder()
    attention = decoder.text_model.layers[1].cross_attn
    attention.num_key_value_heads, attention.num_key_value_groups = 4, 1
    attention.k_proj, attention.v_proj = (nn.Linear(32, 32, bias=False) for _ in range(2))
    layers = probe_mixed(decoder)
    assert (layers[1], layers[2].shares) == (LayerLayout(4, 8, 8), 0)


def test_a_decoder_that_attends_to_no_states_is_refused() -> None:
    """Also one whose states go past the cache."""
    decoder = make_mixed_decoder()
    forward = decoder.forward
    decoder.forward = lambda encoder_hidden_states, sees_states, cache, **more: forward(**more)
    with pytest.raises(CheckpointError, match="items' states through the engine's cache"):
        probe_mixed(decoder)
