"""The program `python -m spac.exec`, which is `spac exec`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("exec"))
