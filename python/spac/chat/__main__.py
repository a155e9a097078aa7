"""The program `python -m spac.chat`."""

import signal

if __name__ == "__main__":
    # Until the chat handles Ctrl-C itself, Ctrl-C ends it without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

from spac.chat import main

if __name__ == "__main__":
    sys.exit(main())
