"""From logits to tokens and their log-probabilities. In reading order:

    sampler             the next tokens of a batch; `device_sampling` where kernels choose them
    constraint          what narrows a sequence's next token, made by extensions
    extensions          which of those, and of logits processors, are installed
    sampling_state      what is kept of a sequence between steps
    logit_edits         what a request's parameters change in its logits
    token_weights       distributions over tokens
    logprobs            log-probabilities of tokens

Knows a batch's logits and each row's state; knows no model and no schedule.
"""
