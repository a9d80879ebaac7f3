"""The forms in which families write what they think before they answer, each a `ReasoningParser`."""

PARSERS = {
    "think": "corellm_server.reasoning.marked:ThinkReasoning",
    "deepseek_r1": "corellm_server.reasoning.marked:OpenThinkReasoning",
    "mistral": "corellm_server.reasoning.marked:MistralReasoning",
}
"""Where each is, by name."""
