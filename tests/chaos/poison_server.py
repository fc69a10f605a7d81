"""``stentor serve`` over :mod:`.poison_worker`.

python -P -m stentor.tests.chaos.poison_server serve --port 8001
"""

import sys

from stentor.tests.echo_server import serve_over

if __name__ == "__main__":
    sys.exit(serve_over("stentor.tests.chaos.poison_worker"))
