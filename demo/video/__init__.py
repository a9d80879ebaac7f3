"""The video demo: a tiny Qwen2-VL that answers questions about drawn clips of moving shapes."""
