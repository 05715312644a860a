"""Complete several prompts at once, several ways each, with log-probabilities."""

from octavo import LLM, SamplingParams


def main() -> None:
    """Run the example."""
    with LLM("demo", max_model_len=256) as llm:
        prompts = ["The capital of France is", "Water boils at"]
        greedy = SamplingParams(temperature=0, max_tokens=4, logprobs=1)
        for output in llm.generate(prompts, greedy, use_tqdm=False):
            choice = output.outputs[0]
            print(f"{output.prompt}{choice.text}  ({choice.cumulative_logprob:.2f})")
        drawn = SamplingParams(temperature=0.8, top_p=0.9, n=2, seed=7, max_tokens=4)
        for choice in llm.generate("Once upon a time", drawn, use_tqdm=False)[0].outputs:
            print(f"{choice.index}: Once upon a time{choice.text}")


if __name__ == "__main__":
    main()
