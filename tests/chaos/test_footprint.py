"""What the looks at an idle server see, and what they bring along themselves."""

import os
import subprocess
import sys

from stentor.tests.chaos.footprint import returned, settled

SLOW_TO_CLOSE = """
import socket, time
names = ("num_requests_running", "num_requests_waiting", "kv_cache_free_blocks", "tasks", "connections_open")
page = "".join(f'stentor:{name}{{model_name="m"}} 0\\n' for name in names).encode()
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n%b" % (len(page), page))
    time.sleep(0.1)
    connection.close()
"""


def test_the_connection_of_the_look_before_is_not_taken_for_a_leak() -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", SLOW_TO_CLOSE], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            held = len(os.listdir(f"/proc/{server.pid}/fd"))
            baseline = settled(port, server.pid)
            assert baseline.descriptors == {"server": held}
            assert returned(port, server.pid, baseline)[1] == []
        finally:
            server.kill()
