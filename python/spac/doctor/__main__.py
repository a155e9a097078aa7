"""The program `python -m spac.doctor`, which is `spac doctor`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("doctor"))
