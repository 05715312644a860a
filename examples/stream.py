"""Stream several answers at once with asyncio, and stop one of them early."""

import asyncio

from octavo import AsyncLLM, SamplingParams


async def tell(llm: AsyncLLM, prompt: str, longest: int) -> str:
    """Return the answer so far once it has this many characters; leaving the loop ends the request."""
    text = ""
    async for output in llm.generate(prompt, SamplingParams(temperature=0, max_tokens=12)):
        text = output.outputs[0].text
        if len(text) >= longest:
            break
    return text


async def run() -> None:
    """Ask both at once."""
    llm = AsyncLLM("demo", max_model_len=256)
    try:
        whole, part = await asyncio.gather(tell(llm, "Once upon a time", 10_000), tell(llm, "One, two, three,", 8))
        print(f"whole: {whole!r}\npart: {part!r}")
    finally:
        llm.shutdown()


if __name__ == "__main__":
    asyncio.run(run())
