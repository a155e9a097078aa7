"""The program `python -m spac.serve`, which is `spac serve`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("serve"))
