"""A program with LangChain's classes, which knows nothing of spac. It prints one line of JSON."""

import json
import sys

from langchain_community.chat_models import ChatLlamaCpp
from langchain_community.embeddings import LlamaCppEmbeddings
from langchain_community.llms import LlamaCpp

SMALL = {"model_path": sys.argv[1], "n_ctx": 256, "n_threads": 1, "seed": 3, "verbose": False}

ONE_THREAD = {"model_kwargs": {"n_threads_batch": 1}}  # llama-cpp-python reads prompts with a thread per core

text = LlamaCpp(**SMALL, **ONE_THREAD, temperature=0, max_tokens=16)
chat = ChatLlamaCpp(**SMALL, **ONE_THREAD, max_tokens=12)
embeddings = LlamaCppEmbeddings(**SMALL)
answers = {
    "kinds": [type(each.client).__module__ for each in (text, chat, embeddings)],
    "text": text.invoke("def fibonacci(n):"),
    "pieces": list(text.stream("import os\n\n", stop=["\n\n\n"])),
    "chat": chat.invoke([("system", "You are helpful."), ("human", "Add two numbers.")]).content,
    "chunks": [chunk.content for chunk in chat.stream("hello")],
    "documents": embeddings.embed_documents(["a", "b c"]),
    "query": embeddings.embed_query("a"),
}
print(json.dumps(answers))
