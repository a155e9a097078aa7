"""`python -m spac` is `python -m spac.run`."""

import sys

from spac.run import main

if __name__ == "__main__":
    sys.exit(main())
