"""``python -m tensorquery``."""

import sys

from tensorquery.cli import main

if __name__ == "__main__":
    sys.exit(main())
