"""Chats and embeddings of a server through LiteLLM. Prints what it gives, as JSON.

python litellm_client.py '{"chats": URL, "embeddings": URL, "key": …, "saying": …}'
"""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network for prices

import litellm

given = json.loads(sys.argv[1])


def ask(grammar: str, **more: Any) -> Any:
    return litellm.completion(
        model="openai/demo", api_base=given["chats"], api_key=given["key"], max_tokens=250, temperature=0,
        messages=[{"role": "user", "content": "hello"}], extra_body={"grammar": grammar}, **more,
    )  # fmt: skip


answer, parts = ask(given["saying"]), list(ask(given["saying"], stream=True))
embedded = litellm.embedding(
    model="openai/demo", api_base=given["embeddings"], api_key=given["key"], input=given["texts"],
    encoding_format="float",
)  # fmt: skip
made = {
    "answer": answer.choices[0].message.content,
    "n_in": answer.usage.prompt_tokens,
    "parts": [part.choices[0].delta.content or "" for part in parts],
    "vectors": [each["embedding"] for each in embedded.data],
}
print(json.dumps(made))
