"""Prompts computed in another process."""

from corellm_vllm import LLM
from corellm_vllm.config import KVTransferConfig

LLM(model="demo", kv_transfer_config=KVTransferConfig(kv_connector="P2pNcclConnector", kv_role="kv_producer"))
