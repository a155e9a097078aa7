"""The program `python -m spac.report`, which is `spac report`."""

import sys

from spac.cli import entry

if __name__ == "__main__":
    sys.exit(entry("report"))
