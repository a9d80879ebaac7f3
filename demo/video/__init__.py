"""The video demo model: a tiny Qwen2-VL that answers questions about drawn videos of moving shapes."""
