"""Builds every wheel and uses each plugin's outside the checkout, in a clean environment with its dependencies.

A program, not a pytest file: it takes a minute and needs environments of its own. Of the contract, which the checkout's
tests run in full, it runs the rules that a wheel with something missing breaks; with `--full`, all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import wave
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from PIL import Image

from tests.wheels.environments import (
    ROOT,
    Environment,
    Wheels,
    build_wheels,
    extension_projects,
    installed,
    plugin_projects,
    unpacked,
)


def expect(text: str, output: str) -> None:
    """End the check unless the output holds the text."""
    if text not in output:
        sys.exit(f"expected {text!r} in:\n{output}")


def make_media(where: Path) -> None:
    """Write `image.png`, `video.mp4` and `audio.wav`: noise."""
    noise = np.random.default_rng(0).integers(0, 256, (8, 64, 96, 3), dtype=np.uint8)
    Image.fromarray(noise[0]).save(where / "image.png")
    with av.open(where / "video.mp4", "w") as container:
        stream = container.add_stream("mpeg4", rate=8)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for frame in noise:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    with wave.open(str(where / "audio.wav"), "wb") as audio:
        audio.setparams((1, 2, 8000, 8000, "NONE", ""))
        audio.writeframes(noise.tobytes()[:16000])


# --- checks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """An architecture's tiny checkpoint, and a file for its prompt."""

    architecture: str
    package: str
    """Its `tiny` makes the checkpoint, its `contract` has the tests."""
    media: str
    is_fallback: bool = False
    """Whether the plugin claims the end of the name alone, and makes checkpoints of any architecture."""

    @property
    def listed(self) -> str:
        """What `corellm plugins` says of it."""
        return "*ForConditionalGeneration" if self.is_fallback else self.architecture

    @property
    def make_checkpoint(self) -> str:
        """The code that makes the checkpoint."""
        settings = f", architecture={self.architecture!r}" if self.is_fallback else ""
        return f"from {self.package}.tiny import make_tiny_checkpoint as m; m('checkpoint'{settings})"

    def advice(self, plugin: str) -> str:
        """What to do where the plugin is missing, in the error."""
        return f"install {plugin},"


PLUGINS = {
    "corellm-llava": [Model("LlavaForConditionalGeneration", "corellm_llava", "image.png")],
    "corellm-fuyu": [Model("FuyuForCausalLM", "corellm_fuyu", "image.png")],
    "corellm-gemma3": [Model("Gemma3ForConditionalGeneration", "corellm_gemma3", "image.png")],
    "corellm-git": [Model("GitForCausalLM", "corellm_git", "image.png")],
    "corellm-blip": [Model("BlipForConditionalGeneration", "corellm_blip", "image.png")],
    "corellm-blip2": [
        Model("Blip2ForConditionalGeneration", "corellm_blip2", "image.png"),
        Model("InstructBlipForConditionalGeneration", "corellm_blip2.instruct", "image.png"),
        Model("InstructBlipVideoForConditionalGeneration", "corellm_blip2.instruct_video", "video.mp4"),
    ],
    "corellm-kosmos2": [
        Model("Kosmos2ForConditionalGeneration", "corellm_kosmos2", "image.png"),
        Model("Kosmos2_5ForConditionalGeneration", "corellm_kosmos2.kosmos2_5", "image.png"),
    ],
    "corellm-florence2": [Model("Florence2ForConditionalGeneration", "corellm_florence2", "image.png")],
    "corellm-deepseek-vl2": [Model("deepseek_vl_v2", "corellm_deepseek_vl2", "image.png")],
    "corellm-mllama": [Model("MllamaForConditionalGeneration", "corellm_mllama", "image.png")],
    "corellm-molmo": [Model("MolmoForCausalLM", "corellm_molmo", "image.png")],
    "corellm-paligemma": [Model("PaliGemmaForConditionalGeneration", "corellm_paligemma", "image.png")],
    "corellm-chameleon": [Model("ChameleonForConditionalGeneration", "corellm_chameleon", "image.png")],
    "corellm-idefics": [Model("IdeficsForVisionText2Text", "corellm_idefics", "image.png")],
    "corellm-idefics2": [Model("Idefics2ForConditionalGeneration", "corellm_idefics2", "image.png")],
    "corellm-internvl": [Model("InternVLChatModel", "corellm_internvl", "image.png")],
    "corellm-qwen-vl": [
        Model("QWenLMHeadModel", "corellm_qwen_vl.original", "image.png"),
        Model("Qwen2VLForConditionalGeneration", "corellm_qwen_vl", "video.mp4"),
    ],
    "corellm-qwen-audio": [Model("Qwen2AudioForConditionalGeneration", "corellm_qwen_audio", "audio.wav")],
    "corellm-voxtral": [Model("VoxtralForConditionalGeneration", "corellm_voxtral", "audio.wav")],
    "corellm-transformers": [
        Model("LlavaNextForConditionalGeneration", "corellm_transformers", "image.png", is_fallback=True)
    ],
}
EXAMPLE = "corellm-patchtalker"
"""The plugin in `examples/`, which corellm does not know by name."""
SHOWN = {"corellm-llava", "corellm-qwen-vl", "corellm-qwen-audio", "corellm-transformers"}
"""Plugins that are also run by the command, and missed once they are uninstalled: of each modality, and the fallback.

With `--full` all are. The rules load a model as the command does; that the error of a missing plugin names the right
one of each architecture is proved in the checkout. The wheels of the others are unpacked here, and installed by pip in
`check_together`.
"""
FEW_RULES = ["-k", "an_entry_point_names or it_loads or (test_greedy_equals_the_reference and 16-prefix)"]
"""Options of pytest for the rules that use all of a wheel: it is found, loads, and the reference gives its tokens."""


def check_alone(plugin: str, work: Path, wheels: Wheels, rules: Sequence[str]) -> None:
    """Check a plugin with no other installed: it keeps the contract, can be copied, and is used as `SHOWN` says."""
    is_shown = plugin in SHOWN or not rules
    make = installed if is_shown else unpacked
    environment = make(work / plugin, [plugin, "corellm-testing"], wheels)
    listed = environment.python("-c", "from corellm.cli import main; main(['plugins'])")
    for model in PLUGINS[plugin]:
        expect(model.listed, listed)
        if is_shown:
            shutil.rmtree(environment.root / "checkpoint", ignore_errors=True)
            environment.python("-c", model.make_checkpoint)
            environment.corellm("run", "checkpoint", work / model.media, "What is this?", "--max-tokens", "4")
    models = PLUGINS[plugin]
    architectures = ", ".join(model.architecture for model in models)
    print(f"{plugin} alone, {architectures}: {kept(environment, [m.package for m in models], rules)}", flush=True)
    if plugin == "corellm-llava":
        run_quick = ("--contract-quick", "--collect-only", "--pyargs", "corellm_llava.contract")
        expect("--contract-quick left out", environment.python("-m", "pytest", *run_quick))
        check_without_extras(environment, work)
        for command, folder in (("serve", "server"), ("batch", "server"), ("bench", "server"), ("embed", "pooling")):
            expect(f"pip install ./extensions/{folder}", environment.corellm(command, status=2))
        check_copy(environment, work, rules)
    if is_shown:
        environment.pip("uninstall", "--yes", plugin)
        output = environment.corellm("run", "checkpoint", "hello", status=1)
        expect(f"no installed plugin serves {model.architecture}; {model.advice(plugin)}", output)


def kept(environment: Environment, packages: Sequence[str], rules: Sequence[str]) -> str:
    """Run the contracts of packages from their wheel, in one process; return pytest's last line."""
    return run_tests(environment, "--pyargs", *(f"{package}.contract" for package in packages), *rules)


def run_tests(environment: Environment, *options: str | Path) -> str:
    """Run pytest in an environment; return its last line."""
    output = environment.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *options)
    return output.strip().splitlines()[-1]


def check_copy(environment: Environment, work: Path, rules: Sequence[str]) -> None:
    """Check that `new-plugin` writes a plugin that installs and whose tests pass unedited."""
    environment.corellm("new-plugin", "toyvl", "--like", "llava")
    folder, out = environment.root / "corellm-toyvl", work / "toyvl-dist"
    environment.pip("install", "--no-index", "--no-deps", *build_wheels(out, [folder]).values())
    print(f"corellm-toyvl, written by new-plugin: {run_tests(environment, folder, *rules)}", flush=True)


def check_without_extras(environment: Environment, work: Path) -> None:
    """Check that a plugin for images installs nothing for video and audio, and that the error names what to install."""
    for module in ("av", "soundfile", "soxr", "librosa"):
        expect(f"No module named '{module}'", environment.python("-c", f"import {module}", status=1))
    for media in ("video.mp4", "audio.wav"):
        output = environment.corellm("run", "checkpoint", work / media, "What is this?", status=1)
        expect("pip install ./extensions/media", output)
        if "Traceback" in output:
            sys.exit(f"{media} ended in a traceback:\n{output}")


def check_example(work: Path, wheels: Wheels, rules: Sequence[str]) -> None:
    """Check the example with its extra `test`: its contract runs from the wheel, and it can be copied."""
    environment = installed(work / EXAMPLE, [f"{EXAMPLE}[test]"], wheels)
    expect("PatchTalkerForCausalLM", environment.corellm("plugins"))
    print(f"{EXAMPLE} alone: {kept(environment, ['corellm_patchtalker'], rules)}", flush=True)
    environment.corellm("new-plugin", "toyvl", "--like", "patchtalker")
    if (environment.root / "corellm-toyvl" / "LICENSE").read_bytes() != (ROOT / "LICENSE").read_bytes():
        sys.exit("a copy of the example does not have its licence")
    environment.python("-c", "from corellm_patchtalker.tiny import make_tiny_checkpoint as m; m('checkpoint')")
    environment.pip("uninstall", "--yes", EXAMPLE)
    output = environment.corellm("run", "checkpoint", "hello", status=1)
    expect("no installed plugin serves PatchTalkerForCausalLM; install a plugin for it, or write one", output)


def check_server(work: Path, wheels: Wheels) -> None:
    """Check the server with the core and one plugin: a file of requests, the same results as its application has."""
    environment = installed(work / "server", ["corellm-server", "corellm-llava"], wheels)
    expect("corellm-server", environment.corellm("plugins"))
    request = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": request}
    (environment.root / "requests.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    files = ("-i", "requests.jsonl", "-o", "results.jsonl")
    print("corellm batch:", environment.corellm("batch", *files, "--model", "demo").strip(), flush=True)
    expect('"status_code":200', (environment.root / "results.jsonl").read_text(encoding="utf-8"))
    expect("--max-num-seqs", environment.corellm("serve", "--help"))


def check_pooling(work: Path, wheels: Wheels) -> None:
    """Check pooling with the core and one plugin: an embedding on the command line; no command without it."""
    environment = installed(work / "pooling", ["corellm-pooling", "corellm-llava"], wheels)
    expect("corellm-pooling", environment.corellm("plugins"))
    expect('"embedding"', environment.corellm("embed", "demo", "a red star", "--format", "jsonl"))
    environment.pip("uninstall", "--yes", "corellm-pooling")
    code = "from corellm import LLM; llm = LLM('demo'); print('has it:', hasattr(llm, 'embed')); llm.embed('a star')"
    told = environment.python("-c", code, status=1)
    expect("has it: False", told)
    expect("pip install ./extensions/pooling", told)
    code = "from corellm import LLM; LLM('demo', pooler_config={'pooling_type': 'MEAN'})"
    expect("pooler_config={'pooling_type': 'MEAN'} needs corellm-pooling", environment.python("-c", code, status=1))
    print("corellm-pooling: embeds, and is missed where it is not", flush=True)


def check_media(work: Path, wheels: Wheels) -> None:
    """Check audio and videos with the core and one plugin: a video is watched; what to install where it is missing."""
    environment = installed(work / "media", ["corellm-media", "corellm-qwen-vl"], wheels)
    expect("corellm-media", environment.corellm("plugins"))
    print("corellm run demo-video:", environment.corellm("run", "demo-video", work / "video.mp4", "What?").strip())
    environment.pip("uninstall", "--yes", "corellm-media")
    told = environment.corellm("run", "demo-video", work / "video.mp4", "What?", status=1)
    expect("pip install ./extensions/media", told)


def check_ray(work: Path, wheels: Wheels) -> None:
    """Check the options of replicas with the server and one plugin; what to install where they are missing."""
    environment = installed(work / "ray", ["corellm-ray", "corellm-llava"], wheels)
    expect("corellm-ray", environment.corellm("plugins"))
    expect(
        "replicas must be a number from 1 or a range", environment.corellm("serve", "demo", "--replicas", "0", status=1)
    )
    environment.pip("uninstall", "--yes", "corellm-ray")
    expect("pip install ./extensions/ray", environment.corellm("serve", "demo", "--replicas", "2", status=2))
    print("corellm-ray: takes replicas, and is missed where it is not", flush=True)


@dataclass(frozen=True)
class Script:
    """What a script says with an extension, and is told without it."""

    name: str
    """Of the distribution, without `corellm-`."""
    code: str
    says: str
    plugin: str = "corellm-llava"
    others: Sequence[str] = ()
    """Other distributions that the script needs."""

    def __call__(self, work: Path, wheels: Wheels) -> None:
        """Run it with the core and one plugin, from their wheels, then without the extension."""
        distribution = f"corellm-{self.name}"
        environment = installed(work / self.name, [distribution, self.plugin, *self.others], wheels)
        expect(distribution, environment.corellm("plugins"))
        expect(self.says, environment.python("-c", self.code))
        environment.pip("uninstall", "--yes", distribution)
        expect(f"pip install ./extensions/{self.name.replace('-', '_')}", environment.python("-c", self.code, status=1))
        print(f"{distribution}: {self.says.rstrip(': ')}, and is missed where it is not", flush=True)


WHISPER = """
import numpy as np
from corellm import LLM, SamplingParams
from corellm_transformers.tiny import make_tiny_checkpoint

make_tiny_checkpoint("whisper", architecture="WhisperForConditionalGeneration")
audio = np.sin(np.arange(8000, dtype=np.float32))
prompt = {"prompt": "", "multi_modal_data": {"audio": (audio, 16000)}}
params = SamplingParams(max_tokens=4, ignore_eos=True)
print("tokens:", len(LLM("whisper").generate(prompt, params)[0].outputs[0].token_ids))
"""


MAMBA = """
from corellm import LLM, SamplingParams
from corellm_testing.tiny_text import make_tiny_checkpoint

make_tiny_checkpoint("mamba", architecture="MambaForCausalLM")
params = SamplingParams(max_tokens=4, ignore_eos=True)
print("tokens:", len(LLM("mamba").generate("A", params)[0].outputs[0].token_ids))
"""


DRAFTS = """
from corellm import LLM, SamplingParams

llm = LLM("demo", speculative_config={"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2})
print("tokens:", len(llm.generate("A A A A", SamplingParams(max_tokens=4))[0].outputs[0].token_ids))
"""


FOUR_BITS = """
from corellm import LLM, SamplingParams
from corellm.cli import main

llm = LLM("demo", quantization="int4")
params = SamplingParams(max_tokens=4, ignore_eos=True)
print("tokens:", len(llm.generate("A", params)[0].outputs[0].token_ids))
assert main(["quantize", "demo", "-o", "written"]) == 0
print("tokens:", len(LLM("written").generate("A", params)[0].outputs[0].token_ids))
"""


STRUCTURED = """
from corellm import LLM, SamplingParams, StructuredOutputsParams

params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["first", "second"]))
print("one of both:", LLM("demo").generate("A", params)[0].outputs[0].text)
"""


DECODING = """
from corellm import LLM, SamplingParams

def rising(output, logits):
    logits[: output[-1] + 1 if output else 0] = float("-inf")
    return logits

llm = LLM("demo")
(output,) = llm.generate("A", SamplingParams(max_tokens=3, ignore_eos=True, logits_processors=[rising]))
print("rising:", output.outputs[0].token_ids == sorted({*output.outputs[0].token_ids}))
print("beams:", len(llm.beam_search("A", {"beam_width": 2, "max_tokens": 3})[0].outputs))
"""


def check_decoding(work: Path, wheels: Wheels) -> None:
    """Check beam search and logits processors with the core and one plugin; what is missing without them."""
    environment = installed(work / "decoding", ["corellm-decoding", "corellm-llava"], wheels)
    expect("corellm-decoding", environment.corellm("plugins"))
    told = environment.python("-c", DECODING)
    expect("rising: True", told)
    expect("beams: 2", told)
    environment.pip("uninstall", "--yes", "corellm-decoding")
    expect("logits_processors needs corellm-decoding", environment.python("-c", DECODING, status=1))
    code = "from corellm import LLM; LLM('demo').beam_search('A', {'beam_width': 2})"
    expect("LLM.beam_search comes with corellm-decoding", environment.python("-c", code, status=1))
    print("corellm-decoding: beams, a processor, and is missed where it is not", flush=True)


LORA = """
import json
import numpy as np
from pathlib import Path
from safetensors.numpy import save_file
from corellm import LLM, LoRARequest, SamplingParams

Path("adapter").mkdir(exist_ok=True)
layer = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
factors = {"A": (4, 128), "B": (128, 4)}
save_file(
    {f"{layer}.lora_{name}.weight": np.ones(size, dtype=np.float32) for name, size in factors.items()},
    "adapter/adapter_model.safetensors",
)
Path("adapter/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
llm = LLM("demo", enable_lora=True)
params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
outputs = llm.generate(["A", "A"], params, lora_request=[LoRARequest("adapter", 1, "adapter"), None])
print("differ:", outputs[0].outputs[0].token_ids != outputs[1].outputs[0].token_ids)
"""


TRAINING = """
from corellm import LLM, SamplingParams

llm = LLM("demo")
params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
before = llm.generate("A", params)[0].outputs[0].token_ids
llm.sleep(2)
llm.wake_up()
llm.update_weights(llm.engine.located.path)
print("same:", llm.generate("A", params)[0].outputs[0].token_ids == before)
"""


SPEECH = """
import numpy as np
from corellm import LLM, SamplingParams
from corellm_transformers.tiny import make_tiny_checkpoint

llm = LLM(str(make_tiny_checkpoint("whisper", architecture="WhisperForConditionalGeneration")), dtype="float32")
noise = np.random.default_rng(0).normal(scale=0.1, size=80_000).astype("float32")
(found,) = llm.transcribe((noise, 16_000), sampling_params=SamplingParams(temperature=0, max_tokens=20))
print("segments:", len(found.segments) > 1, found.seconds)
"""


def check_speech(work: Path, wheels: Wheels) -> None:
    """Check audio of several windows with the core and the generic adapter; what is missing without the extension."""
    names = ["corellm-speech", "corellm-encoder-decoder", "corellm-transformers"]
    environment = installed(work / "speech", names, wheels)
    expect("segments: True 5.0", environment.python("-c", SPEECH))
    environment.pip("uninstall", "--yes", "corellm-speech")
    expect("pip install ./extensions/speech", environment.python("-c", SPEECH, status=1))
    print("corellm-speech: long audio, and is missed where it is not", flush=True)


def check_testing(work: Path, wheels: Wheels) -> None:
    """Check the tools of authors with the core alone: they start; the contract of a plugin is checked with each."""
    environment = installed(work / "testing", ["corellm-testing"], wheels)
    expect("corellm-testing", environment.corellm("plugins"))
    expect("--html", environment.corellm("inspect", "--help"))
    expect("--contract-quick", environment.python("-m", "pytest", "--help"))
    print("corellm-testing: with the core alone", flush=True)


FROM_VLLM = """
from corellm_vllm import LLM, SamplingParams
from corellm_vllm.assets.image import ImageAsset

llm = LLM("demo", tensor_parallel_size=1)
items = {"image": ImageAsset("stop_sign").pil_image}
asked = {"prompt": "USER: <image>\\nWhat is it? ASSISTANT:", "multi_modal_data": items}
outputs = llm.generate(asked, SamplingParams(temperature=0, max_tokens=4, best_of=1))
print("tokens:", len(outputs[0].outputs[0].token_ids))
llm.embed("hello")
"""
"""A script written for vLLM, after `vllm` became `corellm_vllm` in it; what it calls at last is not installed."""


def check_vllm(work: Path, wheels: Wheels) -> None:
    """Check the names of vLLM with the core and one plugin: a script runs up to what needs another distribution."""
    environment = installed(work / "vllm", ["corellm-vllm", "corellm-llava"], wheels)
    expect("corellm-vllm", environment.corellm("plugins"))
    (environment.root / "script.py").write_text(FROM_VLLM, encoding="utf-8")
    output = environment.python("script.py", status=1)
    expect("tokens: ", output)
    expect("corellm.errors.AbsentMethodError: LLM.embed comes with corellm-pooling", output)
    print("corellm-vllm alone:", output.strip().splitlines()[-1], flush=True)


EXTENSIONS = {
    "corellm-server": check_server,
    "corellm-decoding": check_decoding,
    "corellm-encoder-decoder": Script(
        "encoder-decoder", WHISPER, "tokens: ", "corellm-transformers", ["corellm-media"]
    ),
    "corellm-media": check_media,
    "corellm-lora": Script("lora", LORA, "differ: True"),
    "corellm-pooling": check_pooling,
    "corellm-quantization": Script("quantization", FOUR_BITS, "tokens: "),
    "corellm-ray": check_ray,
    "corellm-recurrent": Script("recurrent", MAMBA, "tokens: ", others=["corellm-testing"]),
    "corellm-speculative": Script("speculative", DRAFTS, "tokens: "),
    "corellm-speech": check_speech,
    "corellm-structured": Script("structured", STRUCTURED, "one of both: "),
    "corellm-testing": check_testing,
    "corellm-training": Script("training", TRAINING, "same: True"),
    "corellm-vllm": check_vllm,
}
"""The check of each extension, from its wheel."""


def check_together(work: Path, wheels: Wheels) -> None:
    """Check all plugins together, installed from wheels and not from the checkout; the demo models run."""
    environment = installed(work / "together", wheels, wheels)
    location = environment.python("-c", "import corellm; print(corellm.__file__)")
    expect(str(environment.root), location)
    for model, media in (("demo", ROOT / "demo/images/407.png"), ("demo-video", work / "video.mp4")):
        print(f"corellm run {model}:", environment.corellm("run", model, media, "Describe it.").strip(), flush=True)


def main() -> None:
    """Build, install, use, uninstall."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="run every rule of the contract on every wheel")
    rules = [] if parser.parse_args().full else FEW_RULES
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # checks run in parallel
    with tempfile.TemporaryDirectory(prefix="corellm-wheels-") as name:
        work = Path(name)
        wheels = build_wheels(
            work / "dist", [ROOT, *plugin_projects(), *extension_projects(), ROOT / "examples/plugin-template"]
        )
        print("built", ", ".join(wheel.name for wheel in wheels.values()), flush=True)
        if unchecked := set(wheels) - {"corellm", EXAMPLE, *PLUGINS, *EXTENSIONS}:
            sys.exit(f"PLUGINS and EXTENSIONS lack {', '.join(sorted(unchecked))}")
        make_media(work)
        with ThreadPoolExecutor(max_workers=2) as pool:
            checks = [pool.submit(check_alone, plugin, work, wheels, rules) for plugin in PLUGINS]
            checks += [pool.submit(check, work, wheels) for check in EXTENSIONS.values()]
            checks += [pool.submit(check_example, work, wheels, rules), pool.submit(check_together, work, wheels)]
            for check in checks:
                check.result()
    print("wheels: all as they should be")


if __name__ == "__main__":
    main()
