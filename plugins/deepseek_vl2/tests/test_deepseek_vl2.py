"""What the contract's rules lack: published sizes and names, the published tokens of conversations, many images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corellm import LLM, SamplingParams
from corellm.errors import MediaError, ProcessorKwargsError, PromptError
from corellm_deepseek_vl2.config import DeepseekVLV2Config
from corellm_deepseek_vl2.contract import DeepseekVL2Reference
from corellm_deepseek_vl2.model import DeepseekVLV2, published_weights
from corellm_deepseek_vl2.processor import DeepseekVLV2Processor
from corellm_deepseek_vl2.reference import PlainProcessor
from corellm_deepseek_vl2.tiny import VARIANTS, make_tiny_checkpoint, published_shapes
from corellm_deepseek_vl2.tokenizer import load_tokenizer
from corellm_deepseek_vl2.vision import VisionTransformer
from corellm_testing.items import make_image

TILES = [
    *[(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (1, 4), (4, 1), (1, 5), (5, 1), (1, 6), (6, 1), (2, 3), (3, 2)],
    *[(1, 7), (7, 1), (1, 8), (8, 1), (2, 4), (4, 2), (1, 9), (9, 1), (3, 3)],
]
"""Across and down, in the order of the published `candidate_resolutions`."""
VISION = {"layers": 27, "mlp_ratio": 3.7362, "patch_size": 14, "width": 1152, "model_type": "vision"}
COMMON = {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "num_experts_per_tok": 6}
LATENT = {
    "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "max_position_embeddings": 4096,
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 129280, "hidden_size": 1280, "intermediate_size": 6848, "moe_intermediate_size": 896,
        "num_hidden_layers": 12, "num_attention_heads": 10, "num_key_value_heads": 10, "n_routed_experts": 64,
        "topk_method": "greedy", "use_mla": False, "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0, "v_head_dim": 0, "bos_token_id": 0, "eos_token_id": 1,
    },
    "small": {
        "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64,
        "topk_method": "greedy", **LATENT,
    },
    "the largest": {
        "vocab_size": 129280, "hidden_size": 2560, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 32, "n_routed_experts": 72,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True, "routed_scaling_factor": 2.0,
        **LATENT,
    },
}  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=8, min_tokens=8)


def published_config(decoder: str) -> dict[str, Any]:
    language = {**COMMON, **DECODERS[decoder]}
    return {
        "model_type": "deepseek_vl_v2", "tile_tag": "2D", "global_view_pos": "head", "vision_config": dict(VISION),
        "candidate_resolutions": [[384 * across, 384 * down] for across, down in TILES],
        "projector_config": {"model_type": "mlp_projector", "n_embed": language["hidden_size"]},
        "language_config": language,
    }  # fmt: skip


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(str(make_tiny_checkpoint(tmp_path_factory.mktemp("deepseek"))), dtype="float32") as model:
        yield model


@pytest.fixture(scope="module")
def published() -> DeepseekVLV2Processor:
    """With the published sizes, without a tokenizer."""

    class Tokenizer:
        convert_tokens_to_ids = {"<image>": 5}.get

    config = DeepseekVLV2Config(**published_config("tiny"))
    sizes = config.candidate_resolutions
    return DeepseekVLV2Processor(
        Tokenizer(), "<image>", 384, config.tokens_per_side, sizes, mean=[0.5] * 3, std=[0.5] * 3
    )


# --- published sizes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_published_weight_has_its_place(decoder: str) -> None:
    """Names and shapes of a whole checkpoint; only the pooling head of the tower has no use."""
    config = published_config(decoder)
    with torch.device("meta"):
        places = published_weights(DeepseekVLV2(DeepseekVLV2Config(**config)))
    shapes = published_shapes(config)
    unused = {name for name in shapes if name.startswith("vision.attn_pool.")}
    assert len(unused) == 13
    assert {name: tuple(place.shape) for name, place in places.items()} == {
        n: shapes[n] for n in shapes.keys() - unused
    }
    experts = (config["language_config"]["num_hidden_layers"] - 1) * config["language_config"]["n_routed_experts"]
    assert sum(".experts." in name for name in places) == 3 * experts


@pytest.mark.parametrize(
    ("size", "tiles", "tokens"),
    [
        ((384, 384), (1, 1), 421), ((10, 20), (1, 1), 421), ((385, 384), (2, 1), 617), ((768, 768), (2, 2), 1023),
        ((1152, 1152), (3, 3), 2017), ((2000, 1000), (4, 2), 1807), ((384, 3456), (1, 9), 2101),
        ((3456, 384), (9, 1), 1989),
    ],
)  # fmt: skip
def test_published_tiles(
    published: DeepseekVLV2Processor, size: tuple[int, int], tiles: tuple[int, int], tokens: int
) -> None:
    """Tiles and tokens of images of the published sizes."""
    assert published.grid(size) == tiles
    assert published.num_tokens(*tiles) == tokens
    assert published.grid(size, cropping=False) == (1, 1)


def test_too_long_images(published: DeepseekVLV2Processor) -> None:
    """An image that has no pixel left in one direction is refused, one with a pixel is not."""
    assert published.grid((767, 1))
    with pytest.raises(MediaError, match=r"768 x 1 pixels"):
        published.grid((768, 1))


def test_the_tower_is_siglips() -> None:
    """In float64, where the smallest part of a norm counts, the tower gives what transformers' SigLIP gives."""
    config = transformers.SiglipVisionConfig(
        hidden_size=48, intermediate_size=120, num_hidden_layers=2, num_attention_heads=4, image_size=72,
        patch_size=23, vision_use_head=False,
    )  # fmt: skip
    theirs = transformers.SiglipVisionModel(config).double().eval()
    settings = {"width": 48, "layers": 2, "heads": 4, "mlp_ratio": 2.51, "image_size": 72, "patch_size": 23}
    ours = VisionTransformer(settings).double()
    renamed = {"norm.": "post_layernorm.", "patch_embed.proj.": "embeddings.patch_embedding."}
    inner = {"norm": "layer_norm", "attn.proj": "self_attn.out_proj", "blocks": "encoder.layers"}
    weights = theirs.state_dict()
    prefix = next(name for name in weights if name.endswith("post_layernorm.weight")).removesuffix(
        "post_layernorm.weight"
    )
    state: dict[str, torch.Tensor] = {}
    for name, tensor in ours.state_dict().items():
        generator = torch.Generator().manual_seed(len(state))
        state[name] = 0.05 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if name == "pos_embed":
            weights[f"{prefix}embeddings.position_embedding.weight"] = state[name][0]
            continue
        if ".qkv." in name:
            where = name.replace("attn.qkv", "self_attn.{}_proj").replace("blocks", "encoder.layers")
            for part, rows in zip("qkv", state[name].chunk(3), strict=True):
                weights[prefix + where.format(part)] = rows
            continue
        target = name
        for old, new in inner.items() if name.startswith("blocks") else renamed.items():
            target = target.replace(old, new)
        assert prefix + target in weights
        weights[prefix + target] = state[name]
    ours.load_state_dict(state)
    theirs.load_state_dict(weights)
    pixels = torch.rand(3, 3, 72, 72, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.inference_mode():
        wanted = theirs(pixels).last_hidden_state
        torch.testing.assert_close(ours(pixels), wanted, rtol=0, atol=1e-10)


# --- many images ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_prompts_of_the_published_processor(llm: LLM, count: int) -> None:
    """It cuts images of prompts with at most two; of more, with `cropping=False`, prompts are the same."""
    path = llm.engine.context.model_path
    images = [make_image(40 + 50 * i, 130 - 20 * i, i) for i in range(count)]
    text = "Look: " + " and ".join(["<image>"] * count) + " What?"
    plain = PlainProcessor(path)
    views = [plain.views(image, cropping=count <= 2) for image in images]
    kwargs = {"cropping": False} if count > 2 else {}
    prompt = {"prompt": text, "multi_modal_data": {"image": images}, "mm_processor_kwargs": kwargs}
    got = llm.engine.input_processor.process(prompt if images else {"prompt": text})
    assert got.token_ids == plain.encode(text, [tiles for _, tiles in views])
    for feature, (pixels, tiles) in zip(got.features, views, strict=True):
        assert torch.equal(feature.data["pixel_values"].data, pixels)
        assert tuple(feature.data["images_spatial_crop"].data.tolist()) == tiles
    reference = DeepseekVL2Reference(path)
    want = reference.generate(text, {"image": images}, kwargs, 8)
    assert llm.generate(prompt if images else {"prompt": text}, GREEDY, use_tqdm=False)[0].outputs[0].token_ids == (
        want.token_ids
    )


def test_cropping_is_a_switch(llm: LLM) -> None:
    """Anything but true and false is refused."""
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": make_image(50, 60)}}
    with pytest.raises(ProcessorKwargsError, match=r"cropping .*got 1"):
        llm.engine.input_processor.process({**prompt, "mm_processor_kwargs": {"cropping": 1}})


@pytest.mark.parametrize(
    "bounds", [(72, 72), (100, 100), (144, 72), (72, 216), (30, 216), (150, 110), (140, 140), (500, 3)]
)
def test_the_dummy_is_the_largest_within_bounds(llm: LLM, bounds: tuple[int, int]) -> None:
    """No image of any sides within the operator's becomes more tokens than the dummy."""
    hooks, processor = llm.engine.input_processor.mm_processor.hooks, llm.engine.context.hf_processor
    options = {"image": dict(zip(("width", "height"), bounds, strict=True))}
    (dummy,) = hooks.get_dummy_mm_data(seq_len=1024, mm_counts={"image": 1}, mm_options=options)["image"]
    sizes = [(width, height) for width in range(1, bounds[0] + 1) for height in range(1, bounds[1] + 1)]
    most = max(processor.num_tokens(*processor.grid(size)) for size in sizes if processor.takes(size))
    assert processor.num_tokens(*processor.grid(dummy.size)) == most
    assert dummy.width <= bounds[0]
    assert dummy.height <= bounds[1]


# --- engine ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [None, "attention without a latent, as in Tiny"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_attention_backends(tmp_path: Path, backend: str, variant: str | None) -> None:
    """Keys and values of different sizes, and of one, by the compiled kernels and by plain torch."""
    path = make_tiny_checkpoint(tmp_path, **(VARIANTS[variant] if variant else {}))
    images, text = [make_image(60, 100, 1), make_image(100, 60, 2)], "One <image> and <image> two?"
    want = DeepseekVL2Reference(path).generate(text, {"image": images}, {}, 8).token_ids
    with LLM(str(path), dtype="float32", attention_backend=backend, max_num_batched_tokens=16) as model:
        output = model.generate({"prompt": text, "multi_modal_data": {"image": images}}, GREEDY, use_tqdm=False)[0]
    assert output.outputs[0].token_ids == want


def test_stated_architecture_and_bfloat16(tmp_path: Path) -> None:
    """A `config.json` with the architecture is served, too; the correction of experts' scores stays in float32."""
    path = make_tiny_checkpoint(tmp_path, **VARIANTS["experts chosen by sigmoid, as in the largest"])
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["DeepseekVLV2ForCausalLM"]}))
    with LLM(str(path), dtype="bfloat16") as model:
        weights = model.engine.runner.model.state_dict()
        assert {tensor.dtype for name, tensor in weights.items() if "correction" not in name} == {torch.bfloat16}
        assert {tensor.dtype for name, tensor in weights.items() if "correction" in name} == {torch.float32}
        assert len(model.generate("What?", GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 8


# --- tokens ---------------------------------------------------------------------------------------------------------


def _with_merges(path: Path) -> Path:
    """Make the tokenizer one that joins a colon with what follows, as the published one may."""
    file = path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"]["use_regex"] = False
    first = max(content["model"]["vocab"].values()) + 1
    for number, pair in enumerate(((":", "A"), (":", "Y"))):
        content["model"]["vocab"]["".join(pair)] = first + number
        content["model"]["merges"].insert(0, list(pair))
    file.write_text(json.dumps(content))
    return path


def test_published_tokens_of_a_conversation(tmp_path: Path) -> None:
    """Each message is tokenized by itself; an assistant's is what the model itself would have generated."""
    path = _with_merges(make_tiny_checkpoint(tmp_path))
    plain, image = PlainProcessor(path), make_image(60, 50, 1)
    assert plain.plain(":A") != [*plain.plain(":"), *plain.plain("A")]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": " What? "}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "<|ref|>A cat<|/ref|>?"},
        {"role": "assistant", "content": "Yes"},
    ]
    _, tiles = plain.views(image)
    want = [
        plain.bos, *plain.plain("Be brief."), *plain.encode("<|User|>: <image>\n What?\n\n<|Assistant|>:", [tiles])[1:],
        *plain.plain("A cat."), plain.eos, *plain.plain("<|User|>: <|ref|>A cat<|/ref|>?\n\n<|Assistant|>:"),
        *plain.plain("Yes"), plain.eos,
    ]  # fmt: skip
    with LLM(str(path), dtype="float32") as model:
        process = model.engine.input_processor.process_chat
        assert process(messages, add_generation_prompt=False).token_ids == want
        assert process(messages[:-1]).token_ids == want[: -1 - len(plain.plain("Yes"))]
        ahead = process(messages, add_generation_prompt=False, continue_final_message=True)
        assert ahead.token_ids == want[:-1]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([("user", "Hi"), ("system", "Be brief.")], "first message"),
        ([("user", "Hi"), ("tool", "4")], "'tool'"),
        ([("user", "Hi"), ("assistant", make_image(9, 9))], "not of role 'assistant'"),
    ],
)
def test_conversations_that_the_family_does_not_have(llm: LLM, messages: list[Any], words: str) -> None:
    """Refused, with what is taken."""
    given = [
        {"role": role, "content": said if isinstance(said, str) else [{"type": "image", "image": said}]}
        for role, said in messages
    ]
    with pytest.raises(PromptError, match=words):
        llm.engine.input_processor.process_chat(given)


def test_marks_of_places_stay_in_the_text(llm: LLM) -> None:
    """`<|det|>` is generated as text, the end of a sentence is not."""
    tokenizer = llm.get_tokenizer()
    params = SamplingParams(temperature=0, max_tokens=2, logit_bias={tokenizer.convert_tokens_to_ids("<|det|>"): 100})
    assert llm.generate("Where?", params, use_tqdm=False)[0].outputs[0].text == "<|det|><|det|>"
    params = SamplingParams(temperature=0, max_tokens=2, logit_bias={tokenizer.eos_token_id: 100})
    assert llm.generate("Where?", params, use_tqdm=False)[0].outputs[0].finish_reason == "stop"


def test_tokens_that_the_tokenizer_lacks(tmp_path: Path) -> None:
    """They are added in the published order, and every text begins with BOS once."""
    path = make_tiny_checkpoint(tmp_path, marks=())
    tokenizer, plain = load_tokenizer(path), PlainProcessor(path)
    added = ["<|User|>", "<|Assistant|>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>"]
    ids = tokenizer.convert_tokens_to_ids(added)
    assert None not in ids
    assert len(set(ids)) == len(added)
    assert tokenizer("<|User|>: Hi <image>?")["input_ids"] == [plain.bos, *plain.plain("<|User|>: Hi <image>?")]
