"""Outputs of the engine as responses, in the types of the `openai` package. Knows neither requests nor the engine."""
