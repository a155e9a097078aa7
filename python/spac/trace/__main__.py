"""The program `python -m spac.trace`, which is `spac trace`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("trace"))
