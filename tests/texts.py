"""Texts on which tokenizers are compared."""

from __future__ import annotations

TEXTS = (
    "",
    " ",
    "Hi",
    "The capital of France is",
    "  leading and trailing  ",
    "line\nline\r\n\n\ttab",
    "It's we'll they've I'D DON'T",
    "def f(x: int) -> int:\n    return x ** 2 + 10_000  # 3.14e-5\n",
    "for (int i = 0; i < 1024; i++) {\n\t\ta[i] += 0xFF;\n}",
    "1234567890 and 3.14 or 1,000",
    "😀👍🏽 👨‍👩‍👧‍👦 🇩🇪",
    "你好，世界！这是一个测试。",
    "日本語のテキストと한국어 텍스트",
    "مرحبا بالعالم، كيف حالك؟",
    "naïve café Ångström e\u0301 \ufb01",
    "control \x00\x01\x07\x1b[0m\x7f and \u200b\u2028\ufeff\ufffd",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_end|><|endoftext|> <|im_start|> x<|im_end|>y <|not_a_token|> <|im_start",
    "\u00a0\u3000 wide  spaces ",
    "lorem ipsum dolor sit amet, " * 400,
)  # fmt: skip

NUMERALS = ("½ ² Ⅷ ٣ x½", "a  1\n\n  2\t\t3", "| 12   |  345 |")
