"""The program `python -m spac.doctor`."""

import sys

from spac.doctor import main

if __name__ == "__main__":
    sys.exit(main())
