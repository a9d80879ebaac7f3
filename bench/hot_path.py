"""How much a reader passes from `LLMEngine.step` to attention by torch on the CPU: lines of each function, and sums.

A step is followed until attention of its first layer has returned. `PATH` names, in the order of calls, the functions
that decide or compute something about the step; docstrings count. `ASIDE` names what a reader takes at its word: the
books behind a method's name, checks that raise typed errors, defaults of hooks. `tests/bench/test_hot_path.py` traces
steps and fails if one runs a function of the core that is in neither.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "core" / "corellm"
ALL, PROMPT, IMAGE, DECODE = "prompt decode image", "prompt image", "image", "decode"

PATH: list[tuple[str, str, str]] = [
    (ALL, "engine/llm_engine.py", "LLMEngine.step"),
    (ALL, "scheduling/scheduler.py", "Scheduler.schedule Scheduler._schedule_together Scheduler._schedule_decodes"),
    (DECODE, "scheduling/scheduler.py", "Scheduler._make_room"),
    (DECODE, "scheduling/step_plan.py", "StepPlan.add_decode"),
    (ALL, "scheduling/scheduler.py", "Scheduler._continue_prefills Scheduler._admit_waiting"),
    (PROMPT, "scheduling/scheduler.py", "Scheduler._has_capacity Scheduler._reserve"),
    (PROMPT, "scheduling/scheduler.py", "Scheduler._admit Scheduler._plan_chunk"),
    (PROMPT, "scheduling/request_part.py", "RequestPart.chunk"),
    (IMAGE, "scheduling/encoder_plan.py", "EncoderPlanner.plan"),
    (IMAGE, "scheduling/batch.py", "item_slices"),
    (PROMPT, "scheduling/scheduler.py", "Scheduler._start Scheduler._add_chunk"),
    (IMAGE, "scheduling/encoder_plan.py", "EncoderPlanner.commit"),
    (PROMPT, "scheduling/step_plan.py", "StepPlan.start StepPlan.add_prefill"),
    (ALL, "scheduling/step_plan.py", "StepPlan.seal"),
    (ALL, "worker/model_runner.py", "ModelRunner.launch"),
    (PROMPT, "worker/model_runner.py", "ModelRunner._admit ModelRunner.new_state"),
    (IMAGE, "worker/encoder_runner.py", "EncoderRunner.launch EncoderRunner._run_batch EncoderRunner._embed"),
    (IMAGE, "worker/encoder_runner.py", "EncoderRunner._joined"),
    (IMAGE, "worker/encoder_runner.py", "EncoderRunner._encode EncoderRunner.output"),
    (ALL, "worker/model_runner.py", "ModelRunner._is_encoded ModelRunner._compute ModelRunner.run"),
    (ALL, "worker/model_runner.py", "ModelRunner.lay_out ModelRunner._paged"),
    (ALL, "worker/input_batch.py", "lay_out _positions"),
    (ALL, "worker/model_runner.py", "ModelRunner.forward ModelRunner.embed"),
    (IMAGE, "worker/item_embeddings.py", "select_embeddings"),
    (ALL, "worker/model_runner.py", "ModelRunner._decode"),
    (ALL, "attention/paged.py", "paged_attention PagedAttention.attend"),
    (ALL, "attention/cpu.py", "CpuAttention.forward"),
    (DECODE, "attention/cpu.py", "CpuAttention._decode_groups _plan_decodes _DecodeGroup.__init__ _DecodeGroup.attend"),
    (DECODE, "attention/reference.py", "attend"),
    (PROMPT, "attention/cpu.py", "_attend_prefill"),
]
"""In which steps, the file, and its functions."""

ASIDE: dict[str, str] = {
    "engine/atomic.py": "atomic.run",
    "engine/llm_engine.py": "LLMEngine.runner",
    "system/fork_safety.py": "check_process",
    "system/devices.py": "for_inference.run on_device",
    "scheduling/request.py": "Request.is_decoding Request.token_ids",
    "scheduling/request_part.py": (
        "RequestPart.hash_keys RequestPart.is_ready RequestPart.items_needed RequestPart.counts RequestPart.count "
        "RequestPart.for_worker"
    ),
    "multimodal/inputs.py": "PlaceholderRange.end PlaceholderRange.embeds_before",
    "scheduling/request_queue.py": "RequestQueue.__len__ RequestQueue.peek RequestQueue.pop RequestQueue._is_live",
    "scheduling/block_manager.py": (
        "BlockManager.num_free_blocks BlockManager.get_computed_blocks BlockManager.hash_prompt "
        "BlockManager.max_cached_blocks "
        "BlockManager._cached_prefix BlockManager.allocate BlockManager._has_room BlockManager._extend "
        "BlockManager.reach BlockManager.are_coming BlockManager.shares_any_block BlockManager.take_messages"
    ),
    "scheduling/block_pool.py": "BlockPool.num_free BlockPool.find BlockPool.take",
    "scheduling/block_hash.py": "extend_block_hashes hash_block _extra_keys item_keys",
    "scheduling/encoder_cache.py": (
        "EncoderCache.is_referenced EncoderCache.__contains__ EncoderCache.acquire "
        "EncoderCache.allocate EncoderCache.can_allocate EncoderCache.take_freed"
    ),
    "scheduling/encoder_plan.py": "EncoderPlanner.begin_step",
    "scheduling/scheduler.py": "Scheduler._note_first_start Scheduler._add_drafts",
    "worker/model_runner.py": (
        "ModelRunner._begin ModelRunner._encoder_failure _scores_prompts ModelRunner.embed_text ModelRunner._encoding"
    ),
    "worker/step_in_flight.py": "StepInFlight.__init__",
    "sampling/sampling_state.py": ("SamplingState.__init__ SamplingState._reachable _forbidden TokenTally.__init__"),
    "sampling_params.py": "SamplingParams.greedy",
    "worker/sequence_state.py": "SequenceState.sync_blocks rope_positions",
    "system/transfers.py": "upload upload_all",
    "modelling/unused_layers.py": "_unchanged",
    "worker/encoder_runner.py": "_with_own_storage",
    "worker/encoder_outputs.py": "checked_outputs are_finite",
    "multimodal/fields.py": (
        "group_joinable _join_key _joined_type join_items _join MultiModalKwargsItem.__iter__ "
        "MultiModalKwargsItem.__getitem__"
    ),
    "media/type_checks.py": "is_tensor _is_loaded_instance",
    "multimodal/merging.py": "write_rows check_embeddings",
    "modelling/defaults.py": (
        "floating_to ModelDefaults.get_input_embeddings ModelDefaults.merge_multimodal_embeddings"
    ),
    "attention/backend.py": (
        "AttentionMetadata.check_tokens AttentionMetadata.seen_by LayerCache.write LayerCache.block_size"
    ),
}
"""By file."""


def path_of(step: str) -> list[tuple[str, str]]:
    """Files and functions that a reader passes in a step: "prompt", "image" or "decode"."""
    return [(file, name) for steps, file, names in PATH if step in steps.split() for name in names.split()]


def asides() -> list[tuple[str, str]]:
    """Files and functions that a reader takes at their word."""
    return [(file, name) for file, names in ASIDE.items() for name in names.split()]


@cache
def functions_of(file: str) -> dict[str, int]:
    """Lines of each function of a file, by qualified name; functions inside of functions count with those."""
    return dict(_functions(ast.parse((CORE / file).read_text(encoding="utf-8")), ""))


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            assert child.end_lineno is not None
            yield prefix + child.name, child.end_lineno - child.lineno + 1
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)):
            yield from _functions(child, f"{prefix}{child.name}.")


def lines(file: str, name: str) -> int:
    """Lines of a function.

    Raises:
        KeyError: there is no such function any more; correct the lists of this file.
    """
    return functions_of(file)[name]


def print_hot_path() -> None:
    """Print the functions of a step of a prompt with an image, and the sums of three kinds of steps."""
    print(f"{'from step() to attention, a prompt with an image':66}{'lines':>7}")
    for file, name in path_of("image"):
        print(f"{file:30}{name:36}{lines(file, name):>7}")
    for step, words in (("image", "a prompt with an image"), ("prompt", "a prompt of text"), ("decode", "a decode")):
        found = path_of(step)
        print(f"{words + f': {len(found)} functions':66}{sum(lines(*function) for function in found):>7}")
    print(f"{'books, checks and defaults beside it, all kinds':66}{sum(lines(*function) for function in asides()):>7}")


if __name__ == "__main__":
    print_hot_path()
