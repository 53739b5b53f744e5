"""The program; see `command.py`."""

import sys

from tools.prepare_dataset.command import main

if __name__ == "__main__":
  sys.exit(main())
