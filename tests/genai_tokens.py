"""Greedy tokens of ONNX Runtime GenAI, run by the Python of an environment of its own: jobs as JSON on standard input, rows on output."""

import json
import sys

import numpy as np
import onnxruntime_genai


def tokens(folder, prompts, length, more=()):
    """The ids of every row up to `length`; prompts are rows of one length, filled up with the padding id. Ids of `more` follow after two
    steps."""
    model = onnxruntime_genai.Model(folder)
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=length, batch_size=len(prompts))
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(np.array(prompts, np.int32))
    if more:
        generator.generate_next_token()
        generator.generate_next_token()
        generator.get_logits()                  # runs the last id: 0.18 does not do so before it appends others
        generator.append_tokens(np.array([more], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [list(map(int, generator.get_sequence(row))) for row in range(len(prompts))]


def read(folder, texts):
    """The ids of texts, filled up on the right, by the tokenizer in a folder."""
    ids = onnxruntime_genai.Tokenizer(onnxruntime_genai.Model(folder)).encode_batch(texts)
    return np.asarray(ids.as_numpy() if hasattr(ids, "as_numpy") else ids).tolist()


if __name__ == "__main__":
    print(json.dumps([read(**job) if "texts" in job else tokens(**job) for job in json.load(sys.stdin)]))
