"""The entry of `python -m spac.serve`."""

import signal

if __name__ == "__main__":
    # Ctrl-C ends the process without a traceback until the server installs its own handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

from spac.serve import main

if __name__ == "__main__":
    sys.exit(main())
