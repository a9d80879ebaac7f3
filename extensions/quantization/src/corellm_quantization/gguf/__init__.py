"""GGUF files: text models, and the towers (mmproj) beside them."""
