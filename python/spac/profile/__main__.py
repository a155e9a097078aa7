"""The program `python -m spac.profile`, which is `spac profile`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("profile"))
