"""The server with layers on another machine: it answers, and names the machine when that is lost."""

from __future__ import annotations

import json

from tests.cli.conftest import ONE_THREAD
from tests.rpc_server.test_layers import PROMPT
from tests.serve.conftest import Server

BODY = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}


def completion(served: Server) -> tuple[int, str]:
    status, body = served.ask("POST", "/v1/completions", BODY)
    answer = json.loads(body)
    return status, answer["choices"][0]["text"] if status == 200 else answer["error"]["message"]


def test_serve(start_server, tmp_path):
    server = start_server()
    fixed = (*ONE_THREAD, "--device", "simulated", "--parallel", "2", "--draft-max", "0")
    served = Server(tmp_path, "--rpc", server.address, "--rpc-layers", "2", fixed=fixed)
    try:
        status, text = completion(served)
        assert (status, bool(text)) == (200, True)
        server.end()
        for _ in range(2):  # the server goes on, and says so each time
            status, text = completion(served)
            assert status == 500
            assert f"the RPC server {server.address} closed the connection" in text
        assert served.stop() == 0
    finally:
        served.kill()
