"""Mistakes that show in outputs only: features, positions, logits."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import (
    AUDIO,
    BLIP2,
    FUYU,
    GEMMA3,
    LLAVA,
    QWEN2,
    QWEN2_5,
    QWEN3,
    QWEN_VL,
    Mutant,
)

_GREEDY = "test_greedy_equals_the_reference[8192-no-prefix-caching]"
_TOKENS = "test_every_token_has_its_embedding"
_DTYPE = "test_weights_are_of_the_asked_dtype[bfloat16]"
_SCALE = """
@hookimpl
def get_input_embeddings(self, model, input_ids):
    embeddings = model.get_input_embeddings()(input_ids)
    return embeddings * embeddings.shape[-1] ** 0.5
"""


def _loading(wrong: str, mistake: str) -> Mutant:
    """LLaVA that loads its model itself, with a mistake."""
    return LLAVA.given(
        wrong,
        _DTYPE,
        "load_model",
        f"""
        @hookimpl
        def load_model(self, load_config):
            import torch
            import transformers

            dtype = load_config.dtype
            {mistake}
            return transformers.LlavaForConditionalGeneration.from_pretrained(
                load_config.model_path,
                dtype=dtype,
                attn_implementation={{"text_config": load_config.attn_implementation}},
            ).eval()
        """,
    )


MUTANTS = (
    # --- features ---------------------------------------------------------------------------------------------------
    LLAVA.edited(
        "every patch is the mean of all",
        _GREEDY,
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        return [f.mean(0).expand_as(f) for f in features]\n",
    ),
    LLAVA.edited(
        "features of another layer",
        _GREEDY,
        "get_multimodal_embeddings",
        old='model.get_image_features(mm_kwargs["pixel_values"], interpolate_pos_encoding=True)',
        new='model.get_image_features(mm_kwargs["pixel_values"], vision_feature_layer=1)',
    ),
    FUYU.edited(
        "patches go to the encoder column by column",
        _GREEDY,
        "get_multimodal_embeddings",
        old="patches.flatten(0, 1)",
        new="patches.transpose(0, 1).flatten(0, 1)",
    ),
    BLIP2.edited(
        "queries are averaged",
        _GREEDY,
        "get_multimodal_embeddings",
        old="        return embeddings\n",
        new="        return embeddings.mean(1, keepdim=True).expand_as(embeddings)\n",
    ),
    AUDIO.edited(
        "the encoder attends to the padding",
        _GREEDY,
        "get_multimodal_embeddings",
        old="attention_mask=mask)",
        new="attention_mask=None)",
    ),
    QWEN_VL.of("original/vision.py").edited(
        "the resampler's keys have no positions",
        "test_different_items_share_no_blocks",
        "get_multimodal_embeddings",
        old="        key = value + stretch(self.pos_embed, patches.shape[1])\n",
        new="        key = value\n",
    ),
    QWEN3.edited(
        "deepstack's levels come in reverse order",
        _GREEDY,
        "merge_multimodal_embeddings",
        old='"deepstack_visual_embeds": deepstack}',
        new='"deepstack_visual_embeds": deepstack[::-1]}',
    ),
    # --- positions --------------------------------------------------------------------------------------------------
    QWEN2.edited(
        "positions of text alone",
        _GREEDY,
        "get_rope_positions",
        old="        return positions[:, 0], offset",
        new="        return torch.arange(len(token_ids)), 0",
    ),
    QWEN2.edited(
        "grids in reverse order",
        _GREEDY,
        "get_rope_positions",
        old="for feature in mm_features if name in feature.data]",
        new="for feature in mm_features[::-1] if name in feature.data]",
    ),
    QWEN2_5.edited(
        "time is not in seconds",
        _GREEDY,
        "get_rope_positions",
        old='("image_grid_thw", "video_grid_thw", "second_per_grid_ts")',
        new='("image_grid_thw", "video_grid_thw")',
    ),
    # --- the decoder ------------------------------------------------------------------------------------------------
    LLAVA.given(
        "logits are scaled",
        "test_whole_prompts",
        "compute_logits",
        """
        @hookimpl
        def compute_logits(self, model, hidden_states):
            return 2 * model.get_output_embeddings()(hidden_states)
        """,
    ),
    LLAVA.given(
        "logits but the best are masked",
        _GREEDY,
        "compute_logits",
        """
        @hookimpl
        def compute_logits(self, model, hidden_states):
            logits = model.get_output_embeddings()(hidden_states)
            return logits.masked_fill(logits < logits.amax(-1, keepdim=True), -1e4)
        """,
    ),
    LLAVA.given(
        "embeddings of text are normalised",
        _GREEDY,
        "get_input_embeddings",
        """
        @hookimpl
        def get_input_embeddings(self, model, input_ids):
            embeddings = model.get_input_embeddings()(input_ids)
            return embeddings / embeddings.norm(dim=-1, keepdim=True)
        """,
    ),
    BLIP2.edited(
        "the decoder comes with its output layer",
        "test_it_loads",
        "get_language_model",
        old="model.language_model.get_decoder()",
        new="model.language_model",
    ),
    LLAVA.given(
        "the decoder's attention is its own",
        "test_it_loads",
        "load_model",
        """
        @hookimpl
        def load_model(self, load_config):
            import transformers

            return transformers.LlavaForConditionalGeneration.from_pretrained(
                load_config.model_path, dtype=load_config.dtype
            ).eval()
        """,
    ),
    _loading("weights are loaded in float32, whatever the dtype", "dtype = torch.float32"),
    _loading("the dtype becomes the default of the process", "torch.set_default_dtype(dtype)"),
    _loading("a file is left in the checkpoint", '(load_config.model_path / "offload.json").write_text("{}")'),
    LLAVA.given(
        "the tower is loaded in float32, whatever the dtype",
        _DTYPE,
        "load_model",
        """
        @hookimpl(wrapper=True)
        def load_model(self):
            model = yield
            model.model.vision_tower.float()
            return model
        """,
    ),
    LLAVA.given(
        "the model is loaded in bfloat16, whatever the dtype",
        "test_it_loads",
        "load_model",
        """
        @hookimpl(wrapper=True)
        def load_model(self):
            import torch

            model = yield
            return model.to(torch.bfloat16)
        """,
    ),
    # --- what is remembered -----------------------------------------------------------------------------------------
    LLAVA.edited(
        "an image is embedded once, and zeros after that",
        "test_preemption",
        "get_multimodal_embeddings",
        old="        return features\n",
        new="        seen = self.__dict__.setdefault('seen', set())\n"
        "        known = [float(pixels.sum()) for pixels in mm_kwargs['pixel_values']]\n"
        "        kept = [0 * f if k in seen else f for f, k in zip(features, known, strict=True)]\n"
        "        seen.update(known)\n"
        "        return kept\n",
    ),
    LLAVA.given(
        "embeddings of text are centred in each step",
        "test_preemption",
        "get_input_embeddings",
        """
        @hookimpl
        def get_input_embeddings(self, model, input_ids):
            embeddings = model.get_input_embeddings()(input_ids)
            return embeddings - embeddings.mean(0)
        """,
    ),
    LLAVA.given(
        "many tokens are embedded otherwise than few",
        "test_whole_prompts",
        "get_input_embeddings",
        """
        @hookimpl
        def get_input_embeddings(self, model, input_ids):
            embeddings = model.get_input_embeddings()(input_ids)
            return 2 * embeddings if len(input_ids) > 64 else embeddings
        """,
    ),
    LLAVA.given(
        "tokens are masked that the model may generate",
        "test_greedy_equals_the_reference[16-prefix-caching]",
        "compute_logits",
        """
        @hookimpl(wrapper=True)
        def compute_logits(self):
            logits = yield
            logits[:, 30:200] = float("-inf")
            return logits
        """,
    ),
    LLAVA.of("contract.py").edited(
        "the oracle's texts end with tokens that end no others",
        "test_greedy_equals_the_reference[16-prefix-caching]",
        "the contract class",
        old="    adapter = Llava\n",
        new="""    adapter = Llava

    class reference(__import__("corellm_testing").Reference):
        @__import__("functools").cached_property
        def model(self):
            model = super().model
            model.generation_config.eos_token_id = list(range(100))
            return model
""",
    ),
    # --- embeddings of text -------------------------------------------------------------------------------------------
    LLAVA.given("embeddings of text are scaled", _TOKENS, "get_input_embeddings", _SCALE),
    GEMMA3.given("embeddings of text are scaled once more", _TOKENS, "get_input_embeddings", _SCALE),
    BLIP2.given(
        "embeddings of text are scaled",
        "test_text_alone_is_continued_as_by_the_reference",
        "get_input_embeddings",
        _SCALE,
    ),
    LLAVA.given(
        "unknown tokens are embedded as the mean of all",
        _TOKENS,
        "get_input_embeddings",
        """
        @hookimpl
        def get_input_embeddings(self, model, input_ids):
            table = model.get_input_embeddings()
            unknown = (input_ids == self.context.tokenizer.unk_token_id)[:, None]
            return table(input_ids).where(~unknown, table.weight.mean(0))
        """,
    ),
    LLAVA.given(
        "the row of padding is zeroed in the loaded model",
        _TOKENS,
        "load_model",
        """
        @hookimpl(wrapper=True)
        def load_model(self):
            model = yield
            model.get_input_embeddings().weight.data[self.context.tokenizer.pad_token_id] = 0
            return model
        """,
    ),
    LLAVA.given(
        "the tower is put to training mode",
        "test_the_model_is_loaded_for_inference",
        "get_language_model",
        """
        @hookimpl
        def get_language_model(self, model):
            model.model.vision_tower.train()
            return model.get_decoder()
        """,
    ),
)
