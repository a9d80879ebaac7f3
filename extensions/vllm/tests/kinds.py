"""The kinds of offline scripts that vLLM's examples show, each with a stand-in of ours, and what becomes of it.

A stand-in has the imports and calls of its kind, on a tiny model; `scripts/` beside this file has them. `python -m
extensions.vllm.tests.kinds` runs all, each in a process of its own, and prints a table.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corellm.errors import (
    AbsentMethodError,
    AbsentNameError,
    ConfigError,
    CorellmError,
    InvalidParameterError,
    PromptError,
)

SCRIPTS = Path(__file__).parent / "scripts"
_SECONDS = 600
"""Time for one script; on a machine that does nothing else it takes some seconds."""


@dataclass(frozen=True)
class Kind:
    """A kind of script."""

    like: str
    """Published scripts of this kind: names of files below vLLM's `examples/`."""
    error: type[CorellmError] | None = None
    """What it ends with; None if it runs."""
    says: str = ""
    """A word that the error must have."""


KINDS: dict[str, Kind] = {
    # text
    "basic": Kind("basic.py"),
    "default_sampling": Kind("basic_with_model_default_sampling.py"),
    "generate_command_line": Kind("generate.py, cli.py"),
    "chat": Kind("chat.py"),
    "chat_with_tools": Kind("chat_with_tools.py"),
    "manual_rendering": Kind("manual_prompt_rendering.py"),
    "batch_llm_inference": Kind("batch_llm_inference.py"),
    "parallel_sampling": Kind("llm_engine_example.py"),
    "logprobs": Kind("llm_engine_example.py"),
    "priority": Kind("scheduling by priority"),
    "reproducibility": Kind("reproducibility.py"),
    "throughput": Kind("run_one_batch_offline.py"),
    "long_prompts": Kind("qwen_1m.py"),
    "context_extension": Kind("context_extension.py"),
    "automatic_prefix_caching": Kind("automatic_prefix_caching.py"),
    "prefix_caching": Kind("prefix_caching.py"),
    "spec_decode": Kind("spec_decode.py"),
    "spec_decode_of_a_model": Kind("mlpspeculator.py, eagle.py", ConfigError, "heads with Llama's layers are read"),
    "quantization": Kind("aqlm_example.py"),
    "dummy_weights": Kind("skip_loading_weights_in_engine_init.py"),
    # engines
    "llm_engine": Kind("llm_engine_example.py"),
    "async_engine": Kind("async_engine.py"),
    "async_llm_streaming": Kind("async_llm_streaming.py"),
    "metrics": Kind("metrics.py"),
    "simple_profiling": Kind("simple_profiling.py"),
    "flop_counting": Kind("flop_counting.py"),
    "apply_model": Kind("inplace_weights_loading.py"),
    "sleep_mode": Kind("cuda_graph_sleep_mode.py, rlhf_colocate.py"),
    # items
    "vision_language": Kind("vision_language.py"),
    "vision_language_multi_image": Kind("vision_language_multi_image.py"),
    "vision_language_video": Kind("vision_language.py --modality video"),
    "audio_language": Kind("audio_language.py"),
    "encoder_decoder_multimodal": Kind("encoder_decoder_multimodal.py"),
    # models that pool
    "embed": Kind("embed.py"),
    "embed_matryoshka": Kind("embed_matryoshka_fy.py"),
    "vision_language_embedding": Kind("vision_language_embedding.py"),
    "multi_vector_retrieval": Kind("multi_vector_retrieval.py"),
    "classify": Kind("classify.py"),
    "ner": Kind("ner.py"),
    "score": Kind("score.py"),
    "reward": Kind("reward.py"),
    "structured_outputs": Kind("structured_outputs.py"),
    "beam_search": Kind("beam search"),
    "logits_processor": Kind("logits_processor.py"),
    "multilora": Kind("multilora_inference.py"),
    # refused
    "score_template": Kind("using_template_offline.py", InvalidParameterError, "template="),
    "reset_kv": Kind("llm_engine_reset_kv.py", InvalidParameterError, "abort_request"),
    "pause_resume": Kind("pause_resume.py", AbsentMethodError, "pause_generation"),
    "lora_of_a_model": Kind("audio_language.py --model-type phi4_mm", InvalidParameterError, "enable_lora=True"),
    "prompt_embeds": Kind("prompt_embed_inference.py", PromptError, "prompt_embeds"),
    "custom_logits_processor": Kind("logits_processor/custom.py", AbsentNameError, "logits_processors"),
    "data_parallel": Kind("data_parallel.py", ConfigError, "one device"),
    "torchrun": Kind("torchrun_example.py", ConfigError, "one device"),
    "load_sharded_state": Kind("load_sharded_state.py", ConfigError, "load_format"),
    "save_sharded_state": Kind("save_sharded_state.py", AbsentMethodError, "engine_core"),
    "disaggregated_prefill": Kind("disaggregated_prefill.py, cpu_offload_lmcache.py", AbsentNameError, "KV cache"),
    "mistral_tokenizer": Kind("mistral-small.py", ConfigError, "tokenizer_mode"),
    "rlhf": Kind("rlhf.py", AbsentMethodError, "update_weights"),
    "model_registration": Kind("custom_model_registration.py", AbsentNameError, "new-plugin"),
    "platforms": Kind("data_parallel.py on other devices", AbsentNameError, "torch"),
}
"""By the name of the stand-in."""


# --- checkpoints ------------------------------------------------------------------------------------------------------


def _encoder(architecture: str, **config: Any) -> Callable[[Path], Any]:
    def make(path: Path) -> None:
        from extensions.pooling.tests.text_encoders.checkpoints import make_tiny_encoder

        make_tiny_encoder(path, architecture, **config)

    return make


def _audio(path: Path) -> None:
    from corellm_qwen_audio.tiny import make_tiny_checkpoint

    make_tiny_checkpoint(path)


def _florence2(path: Path) -> None:
    from corellm_florence2.tiny import make_tiny_checkpoint

    make_tiny_checkpoint(path)


def _llama(path: Path) -> None:
    import transformers

    from corellm.tiny_checkpoints import randomize_weights, train_tokenizer

    tokenizer = train_tokenizer([], bos="<s>")
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=len(tokenizer), max_position_embeddings=64, bos_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip
    randomize_weights(model, 0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def _lora_of_demo(path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    numbers = np.random.default_rng(0)
    a, b = (numbers.standard_normal(size, dtype=np.float32) for size in ((8, 128), (128, 8)))
    layer = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    save_file({f"{layer}.lora_A.weight": a, f"{layer}.lora_B.weight": b}, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8, "lora_alpha": 16}', encoding="utf-8")


def _reward(path: Path) -> None:
    from corellm_llava.tiny import make_tiny_checkpoint
    from extensions.pooling.tests.checkpoints import WIDTH, random_tensor, rewritten

    with tempfile.TemporaryDirectory() as source:
        made = make_tiny_checkpoint(Path(source))
        rewritten(made, path, architecture="LlavaForRewardModel", heads={"v_head.weight": random_tensor(1, WIDTH)})


CHECKPOINTS: dict[str, Callable[[Path], Any]] = {
    "tiny/audio": _audio,
    "tiny/classifier": _encoder("BertForSequenceClassification", type_vocab_size=2, num_labels=3),
    "tiny/encoder": _encoder("BertModel", type_vocab_size=2),
    "tiny/florence2": _florence2,
    "tiny/llama": _llama,
    "tiny/lora-of-demo": _lora_of_demo,
    "tiny/reranker": _encoder("BertForSequenceClassification", type_vocab_size=2, num_labels=1),
    "tiny/reward": _reward,
    "tiny/token-classifier": _encoder("BertForTokenClassification", type_vocab_size=2, num_labels=3),
}
"""What makes the checkpoints that scripts name, below the folder in which they run."""


def prepare(script: Path, folder: Path) -> None:
    """Make the checkpoints that a script names, below the folder that it runs in."""
    for name in re.findall(r'"(tiny/[a-z0-9-]+)"', script.read_text(encoding="utf-8")):
        if not (folder / name).exists():
            (folder / name).mkdir(parents=True)
            CHECKPOINTS[name](folder / name)


# --- the table --------------------------------------------------------------------------------------------------------


def outcome(name: str, folder: Path) -> tuple[bool, str]:
    """Run a script in a process of its own; returns whether it ended as it should, and its row."""
    kind, script = KINDS[name], SCRIPTS / f"{name}.py"
    prepare(script, folder)
    try:
        ended = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return False, f"FAILED   did not end within {_SECONDS} seconds"
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    if kind.error is None:
        return ended.returncode == 0, "runs" if ended.returncode == 0 else f"FAILED   {last}"
    is_refused = ended.returncode != 0 and last.startswith(f"corellm.errors.{kind.error.__name__}: ")
    return is_refused and kind.says in last, f"refused  {last.removeprefix('corellm.errors.')}"


def main() -> None:
    """Run all of them, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a script; all by default")
    names = parser.parse_args().names or [*KINDS]
    if unknown := [name for name in names if name not in KINDS]:
        parser.error(f"no script {unknown[0]!r}; there are {', '.join(KINDS)}")
    wrong = []
    with tempfile.TemporaryDirectory(prefix="corellm-scripts-") as folder:
        for name in names:
            is_right, row = outcome(name, Path(folder))
            print(f"{name:<28} {row}", flush=True)
            wrong += [] if is_right else [name]
    print(f"{sum(KINDS[name].error is None for name in names)} of {len(names)} kinds run")
    if wrong:
        sys.exit(f"not as they should be: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
