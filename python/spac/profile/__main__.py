"""`python -m spac.profile` runs this module."""

import sys

from spac.profile import main

if __name__ == "__main__":
    sys.exit(main())
