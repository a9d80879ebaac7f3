"""A model class of the script itself."""

from corellm_vllm import LLM, ModelRegistry

ModelRegistry.register_model("MyModel", "my_module:MyModel")
LLM(model="demo")
