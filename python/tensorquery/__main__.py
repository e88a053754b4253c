"""``python -m tensorquery``."""

import sys

from tensorquery.command import main

if __name__ == "__main__":
    sys.exit(main())
