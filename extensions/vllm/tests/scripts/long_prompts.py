"""A prompt that is split over many steps."""

from corellm_vllm import LLM, SamplingParams


def initialize_engine() -> LLM:
    return LLM(
        model="demo",
        max_model_len=512,
        tensor_parallel_size=1,
        enforce_eager=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=64,
    )


def main():
    prompt = "a red circle, a blue square, " * 24
    outputs = initialize_engine().generate([prompt], SamplingParams(temperature=0.7, top_k=20, max_tokens=8))
    print(len(outputs[0].prompt_token_ids), outputs[0].outputs[0].text)


if __name__ == "__main__":
    main()
