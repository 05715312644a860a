"""Thirty prompts: short, long, code, emoji, Chinese and more. Written for these tests."""

from __future__ import annotations

_STORY = (
    "The lighthouse keeper wrote down the weather every morning: wind from the north, clouds over the bay, the sea the "
    "colour of slate. On the third day a small boat came into sight, and with it a letter that nobody had expected. "
)
_LOG = "2024-03-11 08:{minute:02d}:17 INFO worker-{worker} finished job {job} in {time} ms with status ok\n"
_LONG_LOG = "".join(_LOG.format(minute=i, worker=i % 4, job=1000 + 7 * i, time=40 + i * i % 37) for i in range(14))
_CODE = '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self):
        self._items = []

    def push(self, item):
        self._items.append(item)

    def pop(self):
        if not self._items:
            raise IndexError("pop from an empty stack")
        return self._items.pop()


def reverse(text):
    stack = Stack()
    for letter in text:
'''


def _chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS: tuple[str, ...] = (
    "Once upon a time, there was a",
    "The capital of France is",
    "A",
    "1 2 3 4 5 6 7",
    "Water boils at",
    "The three primary colours are",
    "To be, or not to be:",
    "def fibonacci(n):\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    '{"name": "Ada", "born": 1815, "known_for": [',
    _CODE,
    "<html>\n<head>\n<title>",
    "🎉🎂 Happy birthday! 🎈 Let's",
    "I love 🍕 and 🍣 because",
    "👩‍💻👨‍🚀 are working on",
    "中国的首都是",
    "今天天气很好，我们一起去",
    "日本の首都は",
    "El idioma español se habla en",
    "Привет, как",
    "مرحبا، كيف",
    _STORY * 2,
    _STORY * 7,
    _LONG_LOG,
    "List of numbers: " + ", ".join(str(n * n) for n in range(60)) + ",",
    _chat("What is the capital of France? Answer in one sentence."),
    _chat("Write a short poem about the sea."),
    _chat("Explain what a prime number is, with two examples."),
    "<|im_start|>system\nYou answer briefly.<|im_end|>\n" + _chat("Why is the sky blue? " + _STORY * 3),
)

_NOTES = "第{day}天：早上下雨，下午天晴。我们走了{km}公里，在湖边的村子里过夜，晚饭吃了鱼和米饭。\n"
# Longer than Gemma 3's window of 512 tokens.
LONG_PROMPTS: tuple[str, ...] = (
    _STORY * 15,
    "".join(_LOG.format(minute=i, worker=i % 3, job=4000 + 13 * i, time=30 + i * i % 41) for i in range(20)),
    _CODE * 6,
    "".join(_NOTES.format(day=day, km=3 + day * day % 17) for day in range(1, 26)),
)
# Without ChatML, which a base model does not know.
GEMMA_PROMPTS: tuple[str, ...] = PROMPTS[:26] + LONG_PROMPTS
