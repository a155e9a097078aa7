"""Chats and embeddings of a server through LangChain's classes for OpenAI. Prints what they give, as JSON.

python langchain_client.py '{"chats": URL, "embeddings": URL, "key": …, "saying": …}'
"""

import json
import sys

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

given = json.loads(sys.argv[1])


def chat(grammar: str) -> ChatOpenAI:
    return ChatOpenAI(
        model="demo", base_url=given["chats"], api_key=given["key"], max_tokens=250, temperature=0,
        max_retries=0, extra_body={"grammar": grammar},
    )  # fmt: skip


embeddings = OpenAIEmbeddings(
    model="demo", base_url=given["embeddings"], api_key=given["key"], max_retries=0,
    check_embedding_ctx_length=False,  # else it sends the tokens of another model
)  # fmt: skip
answer, parts = chat(given["saying"]).invoke("hello"), list(chat(given["saying"]).stream("hello"))
made = {
    "answer": answer.content,
    "n_in": answer.usage_metadata["input_tokens"],
    "parts": [part.content for part in parts],
    "vectors": embeddings.embed_documents(given["texts"]),
}
print(json.dumps(made))
