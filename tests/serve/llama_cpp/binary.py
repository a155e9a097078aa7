"""Stand in for llama-server's binary: take its options, and serve with `spac serve`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from spac.serve.app import main

SAME = {
    "--port", "--host", "--temp", "--seed", "--model", "--model-draft", "--batch-size", "--ubatch-size",
    "--alias", "--ctx-size", "--parallel", "-ctk", "-ctv", "-fa", "--slot-save-path", "--spec-type",
    "--api-key", "--spec-draft-n-max", "--spec-draft-n-min", "--chat-template", "--chat-template-file",
    "--cache-ram", "--n-gpu-layers", "--threads", "--reasoning", "--reasoning-format",
    "--pooling",
}  # fmt: skip
"""Options with a value that `spac serve` has too."""
SAME_SWITCHES = {"--swa-full", "--verbose", "--embedding", "--no-slots"}
ALWAYS = {
    "--cont-batching", "--metrics", "--slots", "--jinja", "--kv-unified", "--offline", "--no-mmproj",
    "--no-ui",
}  # fmt: skip
"""Switches for what is always so."""
LACKS = {
    "--no-jinja", "--context-shift", "--reranking", "--no-cache-idle-slots",
    "--ui-mcp-proxy", "--no-models-autoload", "--backend_sampling",
}  # fmt: skip
"""Switches that `spac serve` does not have. They are left out, and tests show the result."""
LACKS_VALUE = {
    "--tags", "--lora", "--media-path", "--mmproj-url", "--grp-attn-n",
    "--sleep-idle-seconds", "--grp-attn-w", "--spec-synth-len", "--spec-synth-rates", "--tools",
    "--tools-runtime", "--mcp-servers-config", "--mcp-servers-json", "--models-dir", "--models-max",
    "--models-preset", "--cors-origins", "--model-url", "--hf-repo", "--hf-file", "--n-predict",
}  # fmt: skip
"""The same for options with a value."""
FIXED = (
    "--device", "simulated", "--slots", "25%", "--state", "off", "--queue", "64",
    "--drain-seconds", "0",
)  # fmt: skip
"""Our own options: experts are split over a device of slots and the CPU."""


def translated(words: Sequence[str], model: str) -> list[str]:
    """Return the options of `spac serve` for those of llama-server. Raise SystemExit for an unknown one."""
    ours, given = [*FIXED], list(words)
    if "--model" not in given:
        ours += ["--model", model]
    if "--threads" not in given:
        ours += ["--threads", "1"]
    if "--embedding" in given and "--pooling" not in given:
        ours += ["--pooling", "mean"]  # as the file of llama.cpp's tests says, and ours does not
    while given:
        option = given.pop(0)
        if option in SAME:
            ours += [option, given.pop(0)]
        elif option in SAME_SWITCHES:
            ours.append(option)
        elif option in LACKS_VALUE:
            print(f"left out: {option} {given.pop(0)}", file=sys.stderr)
        elif option in LACKS:
            print(f"left out: {option}", file=sys.stderr)
        elif option not in ALWAYS:
            raise SystemExit(f"{option}: no option of llama-server that its tests are known to use")
    return ours


if __name__ == "__main__":
    raise SystemExit(main(translated(sys.argv[1:], os.environ["SPAC_TEST_MODEL"])))
