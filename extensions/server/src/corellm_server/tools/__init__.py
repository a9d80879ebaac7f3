"""The forms in which families write tool calls, each a `ToolParser` over the machine of `corellm_server.parsing`."""

PARSERS = {
    "hermes": "corellm_server.tools.objects:HermesCalls",
    "qwen3_coder": "corellm_server.tools.tagged:QwenCoderCalls",
    "llama3_json": "corellm_server.tools.objects:LlamaCalls",
    "mistral": "corellm_server.tools.objects:MistralCalls",
    "pythonic": "corellm_server.tools.pythonic:PythonicCalls",
    "deepseek": "corellm_server.tools.objects:DeepSeekCalls",
    "glm": "corellm_server.tools.tagged:GlmCalls",
}
"""Where each is, by name."""
