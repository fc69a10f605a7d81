"""A worker that was forked with torch, and then multiplies with it."""

import sys

from stentor.engine.channel import Endpoint
from stentor.engine.processes.process import become_child
from stentor.engine.worker.process import preload

__all__ = ["main", "preload"]


def main() -> int:
    inherited = become_child("test-worker")
    already = "torch" in sys.modules
    import torch

    torch.set_num_threads(2)
    a = torch.arange(600 * 600, dtype=torch.float64).view(600, 600) / 1000
    product = (a @ a).sum().item()
    sums = a.exp().log().sum().item()  # an operation that is spread over threads
    engine = Endpoint.attach(inherited.fds, inherited.parent_pid)
    engine.send_blocking(f"{already} {product!r} {sums!r} {torch.get_num_threads()}".encode())
    engine.receive_blocking()
    return 0


if __name__ == "__main__":
    sys.exit(main())
