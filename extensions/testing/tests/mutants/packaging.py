"""Mistakes in how an adapter is found, imported and loaded, and in its tiny checkpoint."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import BLIP2, FUYU, LLAVA, QWEN_VL

MUTANTS = (
    LLAVA.edited(
        "torch is imported with the module",
        "test_import_is_light",
        "the module",
        old="from corellm.hookspecs import ModelContext, hookimpl\n",
        new="import torch\n\nfrom corellm.hookspecs import ModelContext, hookimpl\n",
    ),
    FUYU.edited(
        "Pillow is imported with the module",
        "test_import_is_light",
        "the module",
        old="from corellm.hookspecs import ChatPrompt, ModelContext, hookimpl\n",
        new="from PIL import Image\n\nfrom corellm.hookspecs import ChatPrompt, ModelContext, hookimpl\n",
    ),
    LLAVA.edited(
        "written for a contract that is not there yet",
        "test_the_contract_version_is_checked",
        "contract",
        old="    contract = 1\n",
        new="    contract = 2\n",
    ),
    LLAVA.edited(
        "no contract version",
        "test_the_contract_version_is_checked",
        "contract",
        old="    contract = 1\n",
        new="",
    ),
    LLAVA.edited(
        "an optional hook without @hookimpl",
        "test_the_contract_version_is_checked",
        "get_placeholder_str",
        old="    @hookimpl\n    def get_placeholder_str(",
        new="    def get_placeholder_str(",
    ),
    LLAVA.edited(
        "a required hook without @hookimpl",
        "test_the_contract_version_is_checked",
        "get_dummy_mm_data",
        old="    @hookimpl\n    def get_dummy_mm_data(",
        new="    def get_dummy_mm_data(",
    ),
    LLAVA.edited(
        "a required hook is missing",
        "test_the_contract_version_is_checked",
        "get_prompt_updates",
        old="    @hookimpl\n    def get_prompt_updates(",
        new="    def updates(",
    ),
    LLAVA.edited(
        "a required attribute is missing",
        "test_the_contract_version_is_checked",
        "get_mm_fields_config",
        old="    mm_fields_config = ",
        new="    fields = ",
    ),
    FUYU.edited(
        "a misspelt attribute",
        "test_the_contract_version_is_checked",
        "refuse_embeddings",
        old="    refuse_embeddings = ",
        new="    refused_embeddings = ",
    ),
    LLAVA.edited(
        "a misspelt argument",
        "test_the_contract_version_is_checked",
        "get_dummy_mm_data",
        old="def get_dummy_mm_data(self, mm_counts: Mapping[str, int]) -> Mapping[str, Any]:",
        new="def get_dummy_mm_data(self, mm_count: Mapping[str, int]) -> Mapping[str, Any]:\n"
        "        mm_counts = mm_count",
    ),
    LLAVA.edited(
        "a misspelt hook",
        "test_the_contract_version_is_checked",
        "get_placeholder_str",
        old="def get_placeholder_str(",
        new="def get_placeholder_string(",
    ),
    QWEN_VL.edited(
        "a static hook is a plain method",
        "test_the_contract_version_is_checked",
        "register_config",
        old="    @staticmethod\n    @hookimpl\n    def register_config()",
        new="    @hookimpl\n    def register_config(self)",
    ),
    *(
        QWEN_VL.edited(
            f"{hook} returns nothing", "test_it_loads", hook, old=f"        return {factory}", new=f"        {factory}"
        )
        for hook, factory in {
            "register_config": "load_qwen_vl_config",
            "register_tokenizer": "load_tokenizer",
            "register_processor": "lambda _: QwenVLProcessor",
        }.items()
    ),
    QWEN_VL.edited(
        "an error for every prompt",
        "test_it_loads",
        "apply_hf_processor_tokens_only",
        old="self.context.hf_processor.collapse(token_ids)",
        new="self.context.hf_processor.collapsed(token_ids)",
    ),
    LLAVA.edited(
        "a forgotten return",
        "test_it_loads",
        "get_dummy_mm_data",
        old='        return {"image": dummy_images(',
        new='        {"image": dummy_images(',
    ),
    LLAVA.edited(
        "no dummy is returned",
        "test_it_loads",
        "get_dummy_mm_data",
        old='        return {"image": dummy_images(',
        new='        return {} if self else {"image": dummy_images(',
    ),
    LLAVA.edited(
        "the dummies have another modality's name",
        "test_it_loads",
        "get_dummy_mm_data",
        old='        return {"image": dummy_images(',
        new='        return {"picture": dummy_images(',
    ),
    BLIP2.edited(
        "the number of dummies is looked up by another name",
        "test_it_loads",
        "get_dummy_mm_data",
        old='mm_counts.get("image", 0)',
        new='mm_counts.get("images", 0)',
    ),
    LLAVA.edited(
        "the encoder looks for a tensor by another name",
        "test_it_loads",
        "get_multimodal_embeddings",
        old='mm_kwargs["pixel_values"], ',
        new='mm_kwargs["images"], ',
    ),
    LLAVA.edited(
        "the adapter takes one argument too many",
        "test_the_contract_version_is_checked",
        "the adapter",
        old="def __init__(self, context: ModelContext) -> None:",
        new="def __init__(self, context: ModelContext, device: str) -> None:",
    ),
    LLAVA.of("contract.py").edited(
        "the entry point names another class",
        "test_an_entry_point_names_the_adapter",
        "the entry point",
        old="    adapter = Llava\n",
        new='    adapter = type("Mine", (Llava,), {})\n',
    ),
    LLAVA.of("tiny.py").edited(
        "the tiny checkpoint is of another architecture",
        "test_it_loads",
        ("the entry point", "make_tiny_checkpoint"),
        old="    processor.save_pretrained(path)\n    return Path(path)\n",
        new="    processor.save_pretrained(path)\n"
        "    from corellm.tiny_checkpoints import set_architecture\n\n"
        '    set_architecture(path, "FuyuForCausalLM")\n'
        "    return Path(path)\n",
    ),
    LLAVA.of("tiny.py").edited(
        "the tiny checkpoint's weights are not seeded",
        "test_the_tiny_checkpoint_is_deterministic",
        "make_tiny_checkpoint",
        old="    randomize_weights(model, seed)\n",
        new="    import time\n\n    randomize_weights(model, time.time_ns())\n",
    ),
    LLAVA.of("tiny.py").edited(
        "the tiny checkpoint is the same for every seed",
        "test_the_tiny_checkpoint_is_deterministic",
        "make_tiny_checkpoint",
        old="    randomize_weights(model, seed)\n",
        new="    randomize_weights(model, 0)\n",
    ),
    LLAVA.of("tiny.py").edited(
        "the tiny checkpoint's outputs are all alike",
        "test_the_reference_tells_requests_apart",
        "make_tiny_checkpoint",
        old="    randomize_weights(model, seed)\n",
        new="    import torch\n\n"
        "    torch.manual_seed(seed)\n"
        "    for parameter in model.parameters():\n"
        "        torch.nn.init.normal_(parameter, std=0.002)\n",
    ),
    QWEN_VL.of("original/model.py").edited(
        "surplus weights are ignored",
        "test_every_weight_finds_its_place[surplus]",
        "load_model",
        old="(masked_bias|",
        new=r"(weight\..*|masked_bias|",
    ),
    QWEN_VL.of("original/model.py").edited(
        "only the first file of weights is read",
        "test_weights_lie_in_several_files",
        "load_model",
        old="    return load_published(\n",
        new=(
            "    import dataclasses, shutil\n\n"
            "    folder = load_config.model_path / 'first'\n"
            "    folder.mkdir(exist_ok=True)\n"
            "    shutil.copy(min(load_config.model_path.glob('*.safetensors')), folder / 'model.safetensors')\n"
            "    load_config = dataclasses.replace(load_config, model_path=folder)\n"
            "    return load_published(\n"
        ),
    ),
    QWEN_VL.of("original/model.py").edited(
        "the model is left in training mode",
        "test_the_model_is_loaded_for_inference",
        "load_model",
        old="names=renamed(_NAMES), advice=_ADVICE\n    )\n",
        new="names=renamed(_NAMES), advice=_ADVICE\n    ).train()\n",
    ),
    QWEN_VL.edited(
        "generation does not stop where a turn ends",
        "test_the_end_of_a_turn_ends_an_answer",
        "load_model",
        old="            model.generation_config.eos_token_id = stops\n",
        new="            pass\n",
    ),
)
