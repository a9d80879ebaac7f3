"""Audio at a rate of its own."""

from dataclasses import asdict

from corellm_vllm import LLM, EngineArgs, SamplingParams
from corellm_vllm.assets.audio import AudioAsset

audio_assets = [AudioAsset("mary_had_lamb"), AudioAsset("winning_call")]


def main(audio_count):
    engine_args = EngineArgs(model="tiny/audio", max_num_seqs=5, limit_mm_per_prompt={"audio": audio_count})
    llm = LLM(**asdict(engine_args))
    placeholders = "".join(f"Audio {i}: <|audio_bos|><|AUDIO|><|audio_eos|>\n" for i in range(1, audio_count + 1))
    prompt = f"<|im_start|>user\n{placeholders}What is it?<|im_end|>\n<|im_start|>assistant\n"
    mm_data = {"audio": [asset.audio_and_sample_rate for asset in audio_assets[:audio_count]]}
    inputs = {"prompt": prompt, "multi_modal_data": mm_data}
    print(llm.generate([inputs], sampling_params=SamplingParams(max_tokens=8))[0].outputs[0].text)


if __name__ == "__main__":
    main(2)
