"""Models whose items' tokens see each other need an adapter that names such spans; transformers shows which do."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from corellm import LLM
from corellm.attention.paged import register_attention
from corellm.attention.reference import ReferenceAttention
from corellm.errors import CheckpointError
from corellm.hookspecs import LoadConfig
from corellm.loading.decoder_probe import DecoderProbe, probe_decoder
from corellm.loading.two_way import _cuts_spans, causal_layers, probe_spans
from corellm.modelling import visible_tokens
from corellm.modelling.defaults import load_transformers_model
from corellm.tiny_checkpoints import randomize_weights, train_tokenizer

WIDTH = 64
IMAGE = [0, 0, 1, 1, 1, 0]
"""Types of tokens: an image of three in text."""
PREFIX = [0, 0, 0, 0, 0, 0]
"""As PaliGemma has it for an image and the text after it."""
TEXT: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 400, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}


def _gemma3() -> Any:
    text = transformers.Gemma3TextConfig(
        **TEXT, sliding_window=4, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=16
    )
    return transformers.Gemma3Config(
        text_config=text, vision_config=transformers.SiglipVisionConfig(**VISION, vision_use_head=False),
        mm_tokens_per_image=4, image_token_index=9, boi_token_index=7, eoi_token_index=8,
    )  # fmt: skip


def _gemma4() -> Any:
    text = transformers.Gemma4TextConfig(
        **TEXT, sliding_window=4, layer_types=["sliding_attention", "full_attention"], global_head_dim=16,
        use_bidirectional_attention="vision", hidden_size_per_layer_input=0, num_kv_shared_layers=0,
    )  # fmt: skip
    return transformers.Gemma4Config(
        text_config=text,
        vision_config=None,
        audio_config=None,
        image_token_id=9,
        video_token_id=10,
        audio_token_id=11,
        boi_token_id=7,
        eoi_token_id=8,
    )


def _paligemma() -> Any:
    return transformers.PaliGemmaConfig(
        text_config=transformers.GemmaConfig(**TEXT),
        vision_config=transformers.SiglipVisionConfig(**VISION, projection_dim=WIDTH, vision_use_head=False),
        image_token_index=9, projection_dim=WIDTH,
    )  # fmt: skip


def _qwen2_vl() -> Any:
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    return transformers.Qwen2VLConfig(
        text_config={**text, "rope_parameters": ROPE},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": WIDTH, "num_heads": 2},
        image_token_id=9, video_token_id=10, vision_start_token_id=7, vision_end_token_id=8,
    )  # fmt: skip


MODELS: dict[str, tuple[Any, str, list[int]]] = {
    "Gemma3ForConditionalGeneration": (_gemma3, "token_type_ids", IMAGE),
    "Gemma4ForConditionalGeneration": (_gemma4, "mm_token_type_ids", IMAGE),
    "PaliGemmaForConditionalGeneration": (_paligemma, "token_type_ids", PREFIX),
    "Qwen2VLForConditionalGeneration": (_qwen2_vl, "mm_token_type_ids", IMAGE),
}
"""How to make a configuration, and how the model is told which tokens are an image's."""
BOTH_WAYS = ["Gemma3ForConditionalGeneration", "Gemma4ForConditionalGeneration", "PaliGemmaForConditionalGeneration"]


def probe(model: nn.Module, *, names_spans: bool = False) -> frozenset[int]:
    """Run the probe on a model; return the layers that stay causal."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    ahead, _ = probe_spans(model, decoder, WIDTH, torch.float32, torch.device("cpu"))
    return causal_layers(model, range(2), ahead, names_spans=names_spans, backend=ReferenceAttention())


def load(architecture: str, path: Path) -> Any:
    """A random model with its text decoder on the engine's attention, as at load."""
    register_attention()
    cls = getattr(transformers, architecture)
    make_config, *_ = MODELS[architecture]
    config = LoadConfig(path, torch.float32, torch.device("cpu"), "corellm_paged", load_format="dummy")
    return load_transformers_model(cls, make_config(), config)


@pytest.mark.parametrize("architecture", MODELS)
def test_which_models_see_later_tokens_of_an_image(architecture: str) -> None:
    """In transformers, a later token of the image changes the output of an earlier one, or it does not."""
    make_config, name, types = MODELS[architecture]
    model = getattr(transformers, architecture)(make_config()).eval()
    randomize_weights(model, 0)
    embeds = torch.randn(1, len(types), WIDTH, generator=torch.Generator().manual_seed(0))
    changed = embeds.clone()
    changed[:, 4] += 1

    def run(given: Tensor) -> Tensor:
        with torch.inference_mode():
            output: Tensor = model(inputs_embeds=given, use_cache=False, **{name: torch.tensor([types])}).logits
            return output

    differs = (run(embeds) - run(changed)).abs().amax(-1)[0] > 1e-6
    assert bool(differs[4])
    assert bool(differs[:4].any()) == (architecture in BOTH_WAYS)


@pytest.mark.parametrize("architecture", BOTH_WAYS)
def test_a_model_that_attends_both_ways_within_an_item_is_refused(architecture: str, tmp_path: Path) -> None:
    """By its name, with the reason and the way out; its attention is the engine's again."""
    model = load(architecture, tmp_path)
    with pytest.raises(
        CheckpointError,
        match=rf"^{architecture} .*get_bidirectional_spans.*transformers' own generate$",
    ):
        probe(model)
    assert model.get_decoder().config._attn_implementation == "corellm_paged"


@pytest.mark.parametrize(
    ("architecture", "causal"),
    [("Gemma3ForConditionalGeneration", set()), ("Gemma4ForConditionalGeneration", {1})],
)
def test_layers_whose_stated_mask_is_causal_stay_so(architecture: str, causal: set[int], tmp_path: Path) -> None:
    """An adapter that names spans is taken; Gemma 4's layers without a window see no later token."""
    assert probe(load(architecture, tmp_path), names_spans=True) == causal


@pytest.mark.parametrize(
    ("architecture", "cut"),
    [("Gemma3ForConditionalGeneration", True), ("Gemma4ForConditionalGeneration", True), ("PaliGemma 2", False)],
)
def test_whether_a_window_cuts_an_item(architecture: str, cut: bool) -> None:
    """Transformers' masks of an item longer than the window say the same, and the window is the model's own again."""
    name = architecture.replace(" 2", "ForConditionalGeneration")
    make_config, argument, types = MODELS[name]
    config = make_config()
    if name != architecture:
        config.text_config = transformers.Gemma2Config(
            **TEXT, sliding_window=4, layer_types=["sliding_attention", "full_attention"]
        )
    model = getattr(transformers, name)(config).eval()
    _, found = probe_spans(model, model.get_decoder(), WIDTH, torch.float32, torch.device("cpu"))
    long = torch.tensor([types[1:-1] + [types[2]] * 9 + types[-1:]])
    given = {"inputs_embeds": torch.zeros(1, long.shape[1], WIDTH), argument: long}
    (first, last), window = long[0].eq(types[2]).nonzero().flatten()[[0, -1]].tolist(), 4
    assert last - first > window
    seen = visible_tokens(model, model.get_decoder(), given)[0]
    assert bool(seen[first, last])
    assert found == cut == (not bool(seen[last, first]))
    assert model.get_decoder().config.sliding_window == window


def test_a_window_that_cuts_items_in_some_layers_only_is_refused() -> None:
    """Both are computed, but not in one model."""
    causal = torch.ones(6, 6).tril().bool()
    cut = causal & torch.ones(6, 6).triu().bool()
    uncut = cut.clone()
    uncut[1:4, 1:4] = True
    assert _cuts_spans(nn.Module(), [cut, cut])
    assert not _cuts_spans(nn.Module(), [uncut, causal])
    with pytest.raises(CheckpointError, match="layers with a window"):
        _cuts_spans(nn.Module(), [uncut, cut])


def test_an_item_is_not_taken_as_causal_where_its_window_cannot_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of a model is not forgotten because it fails another time."""
    model = load("Gemma3ForConditionalGeneration", tmp_path)

    def failing(*arguments: Any, window: int | None = None) -> dict[int, Tensor]:
        if window is not None:
            raise ValueError("no such window")
        return visible_tokens(*arguments)

    monkeypatch.setattr("corellm.loading.two_way.visible_tokens", failing)
    with pytest.raises(CheckpointError, match=r"window .*\(ValueError: no such w"):
        probe(model)


def test_a_backend_that_sees_no_later_tokens_is_refused(tmp_path: Path) -> None:
    """Never run wrong; the way out is named."""

    class Causal(ReferenceAttention):
        name, two_way = "causal", False

    model = load("Gemma3ForConditionalGeneration", tmp_path)
    with pytest.raises(CheckpointError, match=r"'causal' .*\(attention_backend='refer"):
        causal_layers(model, range(2), {0, 1}, names_spans=True, backend=Causal())


def test_a_causal_model_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is run with an image's tokens, and states the causal mask."""
    ran = []
    model = load("Qwen2VLForConditionalGeneration", tmp_path)
    model.model.register_forward_hook(lambda *_: ran.append(1))
    with caplog.at_level("DEBUG", logger="corellm.loading.decoder_probe"):
        probe(model)
    assert ran
    assert not caplog.messages


def test_layers_that_forget_generated_tokens_are_refused(tmp_path: Path) -> None:
    """Their masks are causal until more is generated than a probe sees."""
    register_attention()
    config = LoadConfig(tmp_path, torch.float32, torch.device("cpu"), "corellm_paged", load_format="dummy")
    model: Any = load_transformers_model(transformers.LlamaForCausalLM, transformers.LlamaConfig(**TEXT), config)
    decoder = model.get_decoder()

    def probed() -> None:
        cpu = torch.device("cpu")
        probe_decoder(decoder, WIDTH, torch.float32, cpu, max_len=64, softcaps=True, sinks=True, biases=True)

    probed()
    decoder.config.layer_types = ["full_attention", "reference_sliding_attention"]
    with pytest.raises(CheckpointError, match="of generated tokens only the last"):
        probed()


def test_what_attention_is_asked_for_beside_is_named_with_what_it_is_of() -> None:
    """Numbers of tokens and of pairs, as Inkling 2 has them for each of its heads; others by their name alone."""
    probe = DecoderProbe("Decoder", 8, softcaps=True, sinks=True, biases=True, device=torch.device("cpu"))
    more = {"sinks": torch.zeros(1, 3, 2, 1), "position_bias": torch.zeros(1, 3, 2, 2), "slopes": torch.zeros(3)}
    said = "^Decoder passes position_bias of each pair of tokens, sinks of each token, slopes to attention, which"
    with pytest.raises(CheckpointError, match=said):
        probe.check(nn.Module(), None, None, None, None, more)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 4), (4, 3)])
def test_heads_that_are_no_multiple_of_key_value_heads_are_refused(heads: int, kv_heads: int, tmp_path: Path) -> None:
    """Kernels divide the one by the other."""
    register_attention()
    given = TEXT | {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    config = LoadConfig(tmp_path, torch.float32, torch.device("cpu"), "corellm_paged", load_format="dummy")
    model: Any = load_transformers_model(transformers.LlamaForCausalLM, transformers.LlamaConfig(**given), config)
    with pytest.raises(CheckpointError, match=f"{heads} attention heads for {kv_heads} key/value heads"):
        probe_decoder(
            model.get_decoder(),
            WIDTH,
            torch.float32,
            torch.device("cpu"),
            max_len=64,
            softcaps=True,
            sinks=True,
            biases=True,
        )


def test_a_model_that_cannot_be_run_so_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """One that fails; one that takes no types of tokens is not run."""

    class Plain(nn.Module):
        def forward(self, inputs_embeds: Tensor) -> None:
            raise AssertionError("it was run")

    class Failing(nn.Module):
        def forward(self, inputs_embeds: Tensor, token_type_ids: Tensor, **more: Any) -> None:
            raise ValueError("pixel_values are missing")

    with caplog.at_level("DEBUG", logger="corellm.loading.decoder_probe"):
        probe(Plain())
        probe(Failing())
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("Failing ")
    assert "(ValueError: pixel_values" in message


ADAPTER = """
    from corellm.hookspecs import hookimpl
    class Adapter:
        contract = 1
        supported_mm_limits = {"image": None}
        placeholders = {"image": "<image>"}
        mm_fields_config = {}
        def __init__(self, context): self.context = context
        @hookimpl
        def get_dummy_mm_data(self): return {}
        @hookimpl
        def get_prompt_updates(self): return []
        @hookimpl
        def get_multimodal_embeddings(self): return []
"""


def test_a_plugin_for_such_a_model_is_refused_at_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any item is processed."""
    (tmp_path / "toy_gemma3.py").write_text(textwrap.dedent(ADAPTER))
    info = tmp_path / "toy_gemma3-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-gemma3\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[corellm.models]\nGemma3ForConditionalGeneration = toy_gemma3:Adapter\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    checkpoint = tmp_path / "checkpoint"
    config = _gemma3()
    config.architectures = ["Gemma3ForConditionalGeneration"]
    config.save_pretrained(checkpoint)
    train_tokenizer(["<image>"]).save_pretrained(checkpoint)
    with pytest.raises(CheckpointError, match=r"^Gemma3ForConditionalGeneration .*get_bidirectional_spans"):
        LLM(str(checkpoint), dtype="float32", load_format="dummy", adapter="toy-gemma3").close()
