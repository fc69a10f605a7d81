"""``stentor serve`` over :mod:`.ragged_worker`."""

import sys

from stentor.tests.e2e.ragged_worker import MAX_DRAFTS
from stentor.tests.echo_server import serve_over

if __name__ == "__main__":
    sys.exit(serve_over("stentor.tests.e2e.ragged_worker", max_drafts=MAX_DRAFTS))
