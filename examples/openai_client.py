"""Ask a running server with OpenAI's client: `octavo serve demo`, then `python examples/openai_client.py [URL]`."""

import sys

from openai import OpenAI


def main(url: str) -> None:
    """Run the example."""
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        completion = client.completions.create(
            model=model, prompt="The capital of France is", max_tokens=4, temperature=0
        )
        print(completion.choices[0].text, completion.usage)
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Name three colours."}],
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
