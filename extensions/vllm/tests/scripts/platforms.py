"""What the machine has."""

from corellm_vllm.platforms import current_platform

print(current_platform.is_cuda())
