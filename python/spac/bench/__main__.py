"""`python -m spac.bench` runs the program `spac bench`."""

import signal
import sys

if __name__ == "__main__":
    # Ctrl-C ends the program without a traceback until the program handles it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from spac.bench import main

if __name__ == "__main__":
    sys.exit(main())
