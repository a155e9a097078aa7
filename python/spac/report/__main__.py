"""`python -m spac.report` is `spac report`."""

import signal
import sys

if __name__ == "__main__":
    # Until the program can end in good order, Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from spac.report import main

if __name__ == "__main__":
    sys.exit(main())
