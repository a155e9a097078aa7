"""The program `python -m spac.chat`, which is `spac chat`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("chat"))
