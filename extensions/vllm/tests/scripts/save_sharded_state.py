"""Weights, written by each of several devices."""

from corellm_vllm import LLM

llm = LLM(model="demo")
llm.llm_engine.engine_core.save_sharded_state(path="sharded")
