"""``python -P -m stentor.loadtest.peers``: the same as ``stentor bench peers``."""

import sys

from . import main

sys.exit(main(sys.argv[1:]))
