"""The demo model of corellm: a tiny LLaVA that answers questions about drawn shapes and handwritten numbers."""
