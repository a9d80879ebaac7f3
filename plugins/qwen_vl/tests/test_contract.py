"""All generations keep the contract."""

from corellm_qwen_vl.contract import TestQwen2_5VL as TestQwen2_5VL
from corellm_qwen_vl.contract import TestQwen2VL as TestQwen2VL
from corellm_qwen_vl.contract import TestQwen3VL as TestQwen3VL
from corellm_qwen_vl.original.contract import TestQwenVL as TestQwenVL
