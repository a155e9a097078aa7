"""The program `python -m spac.rpc_server`, which is `spac rpc-server`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("rpc-server"))
