"""Qwen2-Audio keeps the contract."""

from corellm_qwen_audio.contract import TestQwen2Audio as TestQwen2Audio
