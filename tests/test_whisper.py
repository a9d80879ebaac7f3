"""The hooks of encoder-decoders serve audio: an adapter for Whisper, written here, has transformers' tokens.

Its encoder is the items' encoder, whose output is cached by item; the prompt's text is the decoder's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

from corellm import LLM, SamplingParams
from corellm.errors import PromptTooLongError
from corellm.hookspecs import DecoderPrompt, ModelContext, hookimpl
from corellm.multimodal import (
    MultiModalFeature,
    MultiModalFieldConfig,
    PromptIndexTargets,
    PromptInsertion,
    dummy_audios,
)
from corellm.plugin.adapters import AdapterEntry
from corellm.tiny_checkpoints import randomize_weights, train_tokenizer
from corellm_testing.together import generate_together

AUDIO, RATE, SECONDS, STATES = "<|audio|>", 16_000, 2, 100
TEXTS = ("<|start|>", "<|start|>yes", "<|start|>What shape is in the picture?", "<|start|>one two three")
LENGTHS = (30, 9, 21, 40)


class Whisper:
    """Audio to encoder states; the text prompt to the decoder's first tokens."""

    contract = 1
    supported_mm_limits: Mapping[str, int | None] = {"audio": 1}
    placeholders: Mapping[str, str] = {"audio": ""}
    mm_fields_config: Mapping[str, MultiModalFieldConfig | None] = {
        "input_features": MultiModalFieldConfig.batched("audio")
    }

    def __init__(self, context: ModelContext) -> None:
        self.context = context

    @hookimpl
    def register_processor(self) -> Any:
        """The feature extractor alone."""
        return lambda path: SimpleNamespace(
            feature_extractor=transformers.WhisperFeatureExtractor.from_pretrained(path), chat_template=None
        )

    @hookimpl
    def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> dict[str, Any]:
        """All audio is padded to one length."""
        return {"audio": dummy_audios(mm_counts.get("audio", 0), num_samples=RATE)}

    @hookimpl
    def call_hf_processor(self, mm_data: Mapping[str, Sequence[NDArray[np.float32]]]) -> Mapping[str, Any]:
        """Log-mel frames, `[1, bins, frames]`."""
        extract = self.context.hf_processor.feature_extractor
        features: Mapping[str, Any] = extract(list(mm_data["audio"]), sampling_rate=RATE, return_tensors="pt")
        return {"input_features": features["input_features"]}

    @hookimpl
    def get_prompt_updates(self) -> list[PromptInsertion]:
        """One token per state, before the text."""
        token = self.context.tokenizer.convert_tokens_to_ids(AUDIO)
        return [PromptInsertion("audio", PromptIndexTargets.start(), [token] * STATES)]

    @hookimpl
    def get_multimodal_embeddings(self, model: Any, mm_kwargs: Mapping[str, Any]) -> Tensor:
        """The encoder: `[audio items, states, hidden_size]`."""
        states: Tensor = model.get_encoder()(mm_kwargs["input_features"]).last_hidden_state
        return states

    @hookimpl
    def get_decoder_prompt(self, token_ids: Sequence[int], mm_features: Sequence[MultiModalFeature]) -> DecoderPrompt:
        """The text behind the audio."""
        (audio,) = mm_features
        return DecoderPrompt(token_ids[audio.placeholder.end :], num_states=audio.placeholder.num_embeds)

    @hookimpl
    def get_encoder_states(self, inputs_embeds: Tensor, is_multimodal: Tensor) -> Tensor:
        """The audio's embeddings are the states."""
        return inputs_embeds[is_multimodal]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper, not to be written to."""
    path = tmp_path_factory.mktemp("whisper")
    tokenizer = train_tokenizer([AUDIO, "<|start|>"], bos="<s>", eos="</s>", pad="<pad>")
    config = transformers.WhisperConfig(
        vocab_size=len(tokenizer), num_mel_bins=16, d_model=64, encoder_layers=2, decoder_layers=3,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
        max_source_positions=STATES, max_target_positions=96, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("<|start|>"),
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    randomize_weights(model, 0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    transformers.WhisperFeatureExtractor(feature_size=16, chunk_length=SECONDS).save_pretrained(path)
    return path


def make_audio(seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(RATE + 3_000 * seed) * np.linspace(0, 1, RATE + 3_000 * seed)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    """Greedy tokens by transformers' forward pass, without a cache."""
    model = transformers.WhisperForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    extract = transformers.WhisperFeatureExtractor.from_pretrained(checkpoint)
    outputs = []
    for i, (text, count) in enumerate(zip(TEXTS, LENGTHS, strict=True)):
        features = extract(make_audio(i), sampling_rate=RATE, return_tensors="pt")["input_features"]
        start = tokens = tokenizer(text)["input_ids"]
        with torch.inference_mode():
            states = model.get_encoder()(features)
            for _ in range(count):
                logits = model(encoder_outputs=states, decoder_input_ids=torch.tensor([tokens])).logits[0, -1]
                logits[tokenizer.eos_token_id] = -torch.inf
                tokens = [*tokens, int(logits.argmax())]
        outputs.append(tokens[len(start) :])
    assert len({tuple(tokens[:4]) for tokens in outputs}) == len(outputs)
    return outputs


@pytest.fixture(autouse=True)
def adapter() -> Iterator[None]:
    """Models are served by the adapter here."""
    with patch.object(AdapterEntry, "load", lambda _: Whisper):
        yield


def requests() -> tuple[list[dict[str, Any]], list[SamplingParams]]:
    prompts = [{"prompt": text, "multi_modal_data": {"audio": (make_audio(i), RATE)}} for i, text in enumerate(TEXTS)]
    return prompts, [SamplingParams(temperature=0, max_tokens=n, min_tokens=n) for n in LENGTHS]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 3, "block_size": 8, "attention_backend": "cpu"},
        {"enable_prefix_caching": False, "attention_backend": "reference"},
        {"num_kv_blocks": 30, "block_size": 8, "preemption_mode": "swap", "max_model_len": 64},
    ],
)
def test_tokens_are_transformers(checkpoint: Path, expected: list[list[int]], settings: dict[str, Any]) -> None:
    """The decoder continues the text, and attends to the audio: in chunks, and preempted."""
    with LLM(str(checkpoint), dtype="float32", **settings) as llm:
        outputs = generate_together(llm, *requests())
        assert [output.outputs[0].token_ids for output in outputs] == expected
        llm.engine.scheduler.blocks.check_integrity()
        assert llm.engine.max_model_len == settings.get("max_model_len", 96)
        assert bool(llm.engine.scheduler.get_stats().num_preemptions) == ("preemption_mode" in settings)


def test_the_text_counts_for_the_decoder(checkpoint: Path) -> None:
    """More text than the decoder has positions is refused, with both numbers."""
    with LLM(str(checkpoint), dtype="float32") as llm:
        prompt = {"prompt": "<|start|>" + "yes no " * 120, "multi_modal_data": {"audio": (make_audio(0), RATE)}}
        (output,) = llm.generate(prompt, use_tqdm=False, on_error="return")
    assert isinstance(output.error, PromptTooLongError)
    assert "max_model_len=96" in str(output.error)
