"""The entry of `python -m spac.report`, which is `spac report`."""

import signal
import sys

if __name__ == "__main__":
    # Ctrl-C ends the process without a traceback until the program installs its own handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from spac.report import main

if __name__ == "__main__":
    sys.exit(main())
