"""Weights that were written by each of several devices."""

from dataclasses import asdict

from corellm_vllm import LLM, EngineArgs

LLM(**asdict(EngineArgs(model="demo", load_format="sharded_state")))
