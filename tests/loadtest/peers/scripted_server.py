"""A server process that answers completions as asked: ``python scripted_server.py PORT [--log FILE] [--short]``.

Every request appends its port and ``max_tokens`` to the log; ``--short`` counts one token less than it was asked for.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    port = 0
    log: Path | None = None
    short = False

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{self.port} {body['max_tokens']}\n")
        self.send_response(200)
        self.end_headers()
        for _ in range(body["max_tokens"]):
            self.wfile.write(b'data: {"choices":[{"text":"a"}]}\n\n')
            self.wfile.flush()
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"] - self.short}
        self.wfile.write(b"data: %s\n\ndata: [DONE]\n\n" % json.dumps({"choices": [], "usage": usage}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--spin", action="store_true")
    arguments = parser.parse_args()
    Handler.port, Handler.log, Handler.short = arguments.port, arguments.log, arguments.short
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    if arguments.spin:
        import threading

        threading.Thread(target=server.serve_forever, daemon=True).start()
        while True:
            pass
    server.serve_forever()
