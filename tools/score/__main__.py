"""`python -m tools.score`."""

import sys

from tools.score.command import main

if __name__ == "__main__":
  sys.exit(main())
