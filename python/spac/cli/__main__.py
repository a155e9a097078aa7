"""The program `python -m spac.cli`, which is the `spac` command."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry())
