"""A program with Haystack's chat generator, which knows nothing of spac. It prints one line of JSON."""

import json
import sys

from haystack.dataclasses import ChatMessage
from haystack_integrations.components.generators.llama_cpp import LlamaCppChatGenerator

SMALL = {"n_threads": 1, "n_threads_batch": 1, "seed": 3, "verbose": False}

pieces: list[str] = []
generator = LlamaCppChatGenerator(
    sys.argv[1], n_ctx=256, model_kwargs=SMALL, generation_kwargs={"max_tokens": 12}
)
generator.warm_up()
messages = [ChatMessage.from_user("Add two numbers.")]
sampled = generator.run(messages, generation_kwargs={"temperature": 0.9, "seed": 5})
streamed = generator.run(messages, streaming_callback=lambda chunk: pieces.append(chunk.content))
answers = {
    "kinds": [type(generator._model).__module__],
    "sampled": sampled["replies"][0].text,
    "streamed": streamed["replies"][0].text,
    "pieces": pieces,
}
print(json.dumps(answers))
