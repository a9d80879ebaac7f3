"""Forms in which a call's arguments are a JSON object: of Hermes and Qwen, Llama, Mistral, DeepSeek."""

from __future__ import annotations

from corellm_server.parsing.reader import Reading
from corellm_server.tools.calls import ToolParser


class HermesCalls(ToolParser):
    """`<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`, as of Hermes and Qwen."""

    MARKERS = ("<tool_call>",)
    TEMPLATE = ("<tool_call>",)
    WRITTEN = ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")

    def calls(self, marker: str) -> Reading[None]:
        """Read one call; its last brace or the end of its block may be missing."""
        yield from self.reader.spaces()
        yield from self.json_call("</tool_call>")
        yield from self.reader.spaces()
        yield from self.reader.starts_with("</tool_call>")


class LlamaCalls(ToolParser):
    """`{"name": "f", "parameters": {"a": 1}}`, as of Llama 3.

    It stands behind `<|python_tag|>`, or from the output's first character on: then only an object with the name of a
    tool is a call. Further calls follow behind `;`.
    """

    MARKERS = ("<|python_tag|>",)
    TEMPLATE = ("<|start_header_id|>", '"parameters"')
    WRITTEN = ('{"name": "', '", "parameters": ', "}")
    SEPARATOR = "; "

    def read(self) -> Reading[None]:
        """Read calls without a tag, then text and calls with one."""
        yield from self.reader.spaces()
        if (yield from self.reader.peek()) == "{":
            yield from self.attempt(self._calls(has_tag=False))
        else:
            self.reader.go_back(0)
        yield from super().read()

    def calls(self, marker: str) -> Reading[None]:
        """Read the calls behind a tag."""
        yield from self._calls(has_tag=True)

    def _calls(self, *, has_tag: bool) -> Reading[None]:
        more = ";"
        while more:
            yield from self.reader.spaces()
            yield from self.json_call(needs_arguments=not has_tag, only_known=not has_tag)
            yield from self.reader.spaces()
            more = yield from self.reader.starts_with(";")


class MistralCalls(ToolParser):
    """`[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]`, and `[TOOL_CALLS]f[ARGS]{"a": 1}` of newer models."""

    MARKERS = ("[TOOL_CALLS]",)
    TEMPLATE = ("[TOOL_CALLS]",)
    WRITTEN = ('[TOOL_CALLS][{"name": "', '", "arguments": ', "}]")
    SEPARATOR = ""

    def calls(self, marker: str) -> Reading[None]:
        """Read a list of calls, or one by its name."""
        yield from self.reader.spaces()
        if not (yield from self.reader.starts_with("[")):
            name = yield from self.reader.word(".-")
            if (yield from self.reader.starts_with("[CALL_ID]")):
                yield from self.reader.word("-")
            yield from self.reader.starts_with("[ARGS]")
            yield from self.streamed_arguments(name)
            return
        more = ","
        while more == ",":
            yield from self.reader.spaces()
            yield from self.json_call()
            yield from self.reader.spaces()
            more = yield from self.reader.expect(",", "]")


class DeepSeekCalls(ToolParser):
    """Calls between `<｜tool▁call▁begin｜>` and `<｜tool▁call▁end｜>`, as of DeepSeek V3 and R1, and of V3.1.

    The former write `function<｜tool▁sep｜>f` and the arguments as a block of code, the latter `f<｜tool▁sep｜>{}`.
    """

    MARKERS = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    TEMPLATE = ("<｜tool▁call▁begin｜>",)
    WRITTEN = (
        f"{MARKERS[0]}{MARKERS[1]}function<｜tool▁sep｜>",
        "\n```json\n",
        "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    )
    SEPARATOR = ""

    def calls(self, marker: str) -> Reading[None]:
        """Read one call; the next one begins with a marker of its own."""
        yield from self.reader.spaces()
        if marker == self.MARKERS[0]:
            yield from self.reader.expect(self.MARKERS[1])
        name = (yield from self.reader.before("<｜tool▁sep｜>", 256)).strip()
        if name == "function":
            name = yield from self.reader.word(".-")
            yield from self.reader.spaces()
            yield from self.reader.expect("```json")
        yield from self.streamed_arguments(name)
        for end in ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"):
            yield from self.reader.spaces()
            yield from self.reader.starts_with(end)
