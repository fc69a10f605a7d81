"""The echo worker with every step answered at once."""

import sys

from . import echo_worker


def main() -> int:
    return echo_worker.main(0.0)


if __name__ == "__main__":
    sys.exit(main())
