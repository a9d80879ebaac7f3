"""Mistakes in the token ids of prompts."""

from __future__ import annotations

from extensions.testing.tests.mutants.mutant import BLIP2, FUYU, GEMMA3, LLAVA, QWEN3, QWEN_VL

_NORMALIZED = "test_text_is_normalized_as_the_tokenizers_file_says"
_BARE = """
@staticmethod
@hookimpl
def register_tokenizer():
    def load(path):
        import transformers

        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        tokenizer.backend_tokenizer.normalizer = None
        return tokenizer

    return load
"""

MUTANTS = (
    LLAVA.given(
        "BOS is cut off",
        "test_text_alone_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
            return [token for token in token_ids if token != self.context.tokenizer.bos_token_id]
        """,
    ),
    LLAVA.given(
        "BOS comes twice",
        "test_text_alone_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
            return [self.context.tokenizer.bos_token_id, *token_ids]
        """,
    ),
    LLAVA.of("contract.py").edited(
        "the oracle takes no text alone",
        "test_text_alone_equals_the_hf_processor",
        "the contract class",
        old="    adapter = Llava\n",
        new="""    adapter = Llava

    class reference(__import__("corellm_testing").Reference):
        def process(self, text, media, kwargs):
            if not media:
                raise ValueError("images are expected")
            return super().process(text, media, kwargs)
""",
    ),
    LLAVA.given(
        "newlines in prompts are dropped",
        "test_greedy_equals_the_reference[8192-no-prefix-caching]",
        "apply_hf_processor_tokens_only",
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
            newline = self.context.tokenizer.encode("\\n", add_special_tokens=False)
            return [token for token in token_ids if token not in newline]
        """,
    ),
    FUYU.edited(
        "nothing follows an image without text",
        "test_an_item_alone_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="            return [*answer]  #",
        new="            return []  #",
    ),
    FUYU.edited(
        "the begin-of-output token is put after text alone, too",
        "test_text_alone_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="        if not mm_counts:\n            return token_ids\n",
        new="",
    ),
    FUYU.edited(
        "the begin-of-output token is left out",
        "test_text_and_media_equal_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="        return [*token_ids, answer[-1]]",
        new="        return token_ids",
    ),
    FUYU.edited(
        "the begin-of-output token comes twice in a complete prompt",
        "test_a_complete_prompt_stays_as_it_is",
        "apply_hf_processor_tokens_only",
        old="        if last == answer[-1]:",
        new="        if False:",
    ),
    FUYU.edited(
        "the tokenizer's prefix stays beside an image",
        "test_text_and_media_equal_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="            token_ids = token_ids[len(prefix) :]\n",
        new="            pass\n",
    ),
    FUYU.edited(
        "the tokenizer's prefix is removed as often as it is there",
        "test_odd_text_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="        if prefix and token_ids[",
        new="        while prefix and token_ids[",
    ),
    FUYU.edited(
        "nothing precedes the begin-of-output token behind a special one",
        "test_odd_text_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        old="        if last in tokenizer.added_tokens_decoder:",
        new="        if False:",
    ),
    QWEN_VL.of("original/tokenizer.py").edited(
        "accents of their own are not joined to their letters",
        "test_odd_text_equals_the_hf_processor",
        "register_tokenizer",
        old="    tokenizer.normalizer = normalizers.NFC()\n",
        new="",
    ),
    FUYU.given("the normalizer is lost", "test_text_alone_equals_the_hf_processor", "register_tokenizer", _BARE),
    GEMMA3.given("the normalizer is lost", "test_odd_text_equals_the_hf_processor", "register_tokenizer", _BARE),
    LLAVA.given("the normalizer is lost", _NORMALIZED, "register_tokenizer", _BARE),
    LLAVA.edited(
        "the normalizer is taken away where the adapter is made",
        _NORMALIZED,
        "context.tokenizer",
        old="        self.context = context\n",
        new="        self.context = context\n        context.tokenizer.backend_tokenizer.normalizer = None\n",
    ),
    LLAVA.given(
        "lines end in one way",
        "test_odd_text_equals_the_hf_processor",
        "apply_hf_processor_tokens_only",
        """
        @hookimpl
        def apply_hf_processor_tokens_only(self, token_ids: list[int]) -> list[int]:
            text = self.context.tokenizer.decode(token_ids)
            if "\\r" not in text:
                return token_ids
            return self.context.tokenizer(text.replace("\\r\\n", "\\n"), add_special_tokens=False)["input_ids"]
        """,
    ),
    FUYU.edited(
        "the image goes behind the prompt",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="PromptIndexTargets.start(), block",
        new="PromptIndexTargets.end(), block",
    ),
    FUYU.edited(
        "rows and columns are swapped",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="            rows, columns = out_mm_kwargs",
        new="            columns, rows = out_mm_kwargs",
    ),
    FUYU.edited(
        "nothing ends the image",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="[*row * rows, begin_text]",
        new="row * rows",
    ),
    BLIP2.edited(
        "the image goes after BOS",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="PromptIndexTargets.start(), insertion",
        new="PromptIndexTargets.prefix([self.context.tokenizer.bos_token_id]), insertion),\n"
        '            PromptInsertion("image", PromptIndexTargets.start(), insertion',
    ),
    LLAVA.edited(
        "the newline after an image is put into its placeholder",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="            return [token] * count\n",
        new="            from corellm.multimodal import PromptUpdateDetails\n\n"
        '            newline = self.context.tokenizer("\\n", add_special_tokens=False)["input_ids"]\n'
        "            return PromptUpdateDetails.select_token_id([token] * count + newline, token)\n",
    ),
    QWEN3.edited(
        "time stamps are whole seconds",
        "test_text_and_media_equal_the_hf_processor",
        "get_prompt_updates",
        old="{seconds:.1f} seconds",
        new="{seconds:.0f} seconds",
    ),
    QWEN_VL.edited(
        "paths between the tags stay",
        "test_it_loads",
        ("apply_hf_processor_tokens_only", "get_prompt_updates"),
        old="        return collapsed\n",
        new="        return token_ids\n",
    ),
)
