"""From logits to tokens and their log-probabilities.

logit_edits         what a request's parameters change in its logits
constraint          what narrows a sequence's next token, made by extensions
sampling_state      what is kept of a sequence between steps
sampler             the next tokens of a batch; `device_sampling` where kernels choose them
token_weights       distributions over tokens
logprobs            log-probabilities of tokens
"""
