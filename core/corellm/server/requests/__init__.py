"""Request bodies: which fields there are, which of OpenAI's are ignored, which are refused. Types, not ranges."""
