"""`python -m spac.serve`."""

import signal

if __name__ == "__main__":
    # Until the server can end in good order, Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

from spac.serve import main

if __name__ == "__main__":
    sys.exit(main())
