"""A reward server for the tests, on a port of its own that it prints. Each request does what the solution_str of its
first item says: "WORD" or "WORD:VALUE". Ends when its standard output is closed, or when it is killed."""

import http.server
import json
import sys
import threading
import time

FAILURES = {}  # id of an item -> how often it was refused
LOCK = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # head and body in one packet

    def log_message(self, *arguments):
        pass

    def reply(self, body, status=200):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        items = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["items"]
        word, _, value = items[0]["solution_str"].partition(":")
        scores = [{"id": item["id"], "score": float(v)} for item in items for v in [item["solution_str"].partition(":")[2]]
                  if word in ("score", "slow")]
        if word == "score":
            self.reply({"results": scores[::-1]})
        elif word == "token":
            right = self.headers.get("Authorization") == value
            self.reply({"results": [{"id": items[0]["id"], "score": float(right)}]})
        elif word == "status":
            self.reply(b"no", int(value))
        elif word == "flaky":  # fails as often as the value says
            with LOCK:
                FAILURES[items[0]["id"]] = count = FAILURES.get(items[0]["id"], 0) + 1
            if count <= int(value):
                self.reply(b"busy", 503 if count % 2 else 429)
            else:
                self.reply({"results": [{"id": items[0]["id"], "score": count}]})
        elif word == "slow":
            time.sleep(float(value))
            self.reply({"results": scores})
        elif word == "raw":
            self.reply(value.replace("ID", str(items[0]["id"])).encode())
        elif word == "huge":
            self.reply(b" " * (3 << 20))
        elif word == "redirect":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif word == "hangup":
            self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


server = Server(("127.0.0.1", 0), Handler)
print(f"port {server.server_port} ready", flush=True)
server.serve_forever()
