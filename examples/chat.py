"""Hold a conversation: each answer is given the turns before it, whose pages are still in the cache."""

from octavo import LLM, SamplingParams


def main() -> None:
    """Run the example."""
    questions = ["My name is Ada. What is a book?", "What is my name?"]
    with LLM("demo", max_model_len=512) as llm:
        turns = [{"role": "system", "content": "Answer in one short sentence."}]
        for question in questions:
            turns.append({"role": "user", "content": question})
            output = llm.chat(turns, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)[0]
            answer = output.outputs[0].text
            turns.append({"role": "assistant", "content": answer})
            print(
                f"> {question}\n{answer}\n({output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens cached)"
            )


if __name__ == "__main__":
    main()
