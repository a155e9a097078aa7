"""The program `python -m spac.bench`, which is `spac bench`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("bench"))
