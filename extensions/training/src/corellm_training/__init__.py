"""For training beside serving: a loaded model sleeps, wakes, and takes other weights in place.

In reading order: `calls` is what `LLM` and `AsyncLLM` have of it, `sleeping` what an engine does between two steps;
`set_aside` gives memory back, `weight_files` takes a caller's weights, `weight_source` and `model_weights` read them.
"""
