"""Every kind of multimodal model that transformers maps, tried with the generic adapter: `python -m tests.kinds`."""
