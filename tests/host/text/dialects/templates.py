"""Chat templates of real families, written from their published formats and cut down to what tells them apart.

(family, dialect of calls, of reasoning, template)
"""

from __future__ import annotations

_TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_CALLS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}{% endfor %}'
)
_TOOL_TAGS = "<tools>{{ tools | tojson }}</tools>. Answer in <tool_call></tool_call>"
_HERMES = "{% if tools %}<|im_start|>system\nFunctions are in " + _TOOL_TAGS + "{% endif %}" + _TURNS + _CALLS
_THOUGHTS = "{% set text = messages[-1].content.split('</think>')[-1] %}"
_LLAMA = (
    "<|begin_of_text|>{% if tools %}<|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>{% endif %}{% endfor %}"
    '{"name": "", "parameters": {}}'
)
_FUNCTION_TAGS = "<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>"


def _deepseek(before: str, arguments: str) -> str:
    return (
        "{% for m in messages %}<｜User｜>{{ m.content }}<｜Assistant｜>{% for c in m.tool_calls or [] %}<｜tool▁calls▁begin｜>"
        f"<｜tool▁call▁begin｜>{before}{{{{ c.function.name }}}}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        "{% endfor %}{% endfor %}"
    )


TEMPLATES: list[tuple[str, str, str, str]] = [
    ("qwen2.5", "hermes", "none", _HERMES + _ASK),
    ("hermes-3", "hermes", "none", _HERMES + "<scratch_pad>" + _ASK),
    (
        "qwen3",
        "hermes",
        "qwen3",
        _HERMES + _THOUGHTS + _ASK + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
    ),
    ("qwen3-2507-instruct", "hermes", "none", _HERMES + _ASK),
    (
        "qwen3-coder",
        "qwen3_coder",
        "none",
        _TURNS + f"<tools></tools><tool_call>\n{_FUNCTION_TAGS}\n</tool_call>" + _ASK,
    ),
    (
        "nemotron-3",
        "qwen3_coder",
        "qwen3",
        _TURNS + f"<tool_call>\n{_FUNCTION_TAGS}\n</tool_call>" + _ASK + "<think>\n",
    ),
    ("llama-3.1", "llama3_json", "none", _LLAMA + "<|python_tag|>"),
    ("llama-3.2", "llama3_json", "none", _LLAMA),
    (
        "llama-4",
        "llama4_json",
        "none",
        _LLAMA.replace("start_header_id", "header_start").replace("end_header_id", "header_end"),
    ),
    (
        "llama-4-pythonic",
        "llama4_pythonic",
        "none",
        "<|header_start|>ipython<|header_end|><|python_start|>[f(a=1)]<|python_end|>",
    ),
    ("mistral-v3", "mistral", "none", "[AVAILABLE_TOOLS][INST]{{ messages }}[/INST][TOOL_CALLS][TOOL_RESULTS]"),
    (
        "magistral",
        "mistral",
        "mistral",
        "[SYSTEM_PROMPT][THINK][/THINK][/SYSTEM_PROMPT][INST][/INST][TOOL_CALLS]f[ARGS]{}",
    ),
    ("deepseek-v3", "deepseek_v3", "none", _deepseek("function<｜tool▁sep｜>", "\n```json\n{}\n```")),
    (
        "deepseek-r1",
        "deepseek_v3",
        "qwen3",
        _THOUGHTS + _deepseek("function<｜tool▁sep｜>", "\n```json\n{}\n```") + "<think>\n",
    ),
    (
        "deepseek-v3.1",
        "deepseek_v31",
        "qwen3",
        _deepseek("", "{}") + "{% if thinking %}<think>{% else %}</think>{% endif %}",
    ),
    (
        "deepseek-v3.2",
        "deepseek_v32",
        "qwen3",
        '<｜DSML｜function_calls><｜DSML｜invoke name="f"></｜DSML｜invoke></think>',
    ),
    (
        "glm-4.5",
        "glm45",
        "qwen3",
        "[gMASK]<sop><|user|><tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call><think></think>",
    ),
    (
        "kimi-k2",
        "kimi_k2",
        "none",
        "<|im_system|>tool_declare<|im_middle|><|tool_calls_section_begin|><|tool_call_argument_begin|>",
    ),
    (
        "gpt-oss",
        "openai",
        "openai_gptoss",
        "<|start|>system<|message|># Valid channels<|end|><|channel|>commentary to=functions.f<|call|>",
    ),
    (
        "granite-3.3",
        "granite",
        "granite",
        "<|start_of_role|>tools<|end_of_role|><|tool_call|> Here is my thought process:",
    ),
    ("granite-4", "hermes", "none", "<|start_of_role|>system<|end_of_role|><tools></tools><tool_call></tool_call>"),
    (
        "phi-4-mini",
        "phi4_mini_json",
        "none",
        "<|system|>{{ messages[0].content }}<|tool|>{{ tools }}<|/tool|><|end|><|assistant|>",
    ),
    (
        "minimax-m2",
        "minimax_m2",
        "qwen3",
        "]~b]ai\n<minimax:tool_call><invoke name=></invoke></minimax:tool_call></think><think>\n",
    ),
    (
        "seed-oss",
        "seed_oss",
        "seed_oss",
        "<seed:bos>system<seed:tool_call><function=f></function></seed:tool_call><seed:think>",
    ),
    (
        "olmo-3",
        "olmo3",
        "qwen3",
        "<|im_start|>system\n<functions>{{ tools }}</functions><function_calls></function_calls><think>",
    ),
    (
        "lfm2",
        "lfm2",
        "none",
        "<|im_start|>system\nList of tools: <|tool_list_start|><|tool_list_end|><|tool_call_start|>[f()]<|tool_call_end|>",
    ),
    (
        "command-a",
        "cohere_command3",
        "cohere_command3",
        "<|START_OF_TURN_TOKEN|><|START_ACTION|><|END_ACTION|><|START_THINKING|>",
    ),
    ("hunyuan-a13b", "jamba", "hunyuan_a13b", "<｜hy_User｜><tool_calls></tool_calls><think></think><answer></answer>"),
    ("smollm2", "none", "none", _TURNS + _ASK),
    (
        "gemma-4",
        "gemma4",
        "gemma4",
        "<bos><|turn>system\n<|tool><tool|><|tool_call>call:f{}<tool_call|><|channel>thought\n<channel|>",
    ),
    (
        "functiongemma",
        "functiongemma",
        "none",
        "<start_of_turn>developer\n<start_function_call>call:f{}<end_function_call>",
    ),
    ("gemma-3", "none", "none", "<bos><start_of_turn>user\n{{ messages }}<end_of_turn>\n<start_of_turn>model\n"),
]
