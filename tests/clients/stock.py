"""What the tests with stock Python clients share: a daemon, and a reflection client that knows nothing of rankd: like
grpcurl it learns services and messages from the daemon, beginning with the reflection service itself.
"""
import os
import signal
import subprocess
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TIMEOUT_S = 20 * float(os.environ.get("RK_TEST_TIMEOUT_FACTOR", "1"))
TOKENS = {role: (role + "-") * 8 for role in ("viewer", "driver", "admin")}  # at least 32 characters


def refused_start(program, *flags):
    """Exit code, standard error and standard output of a daemon that does not start."""
    done = subprocess.run([program, "--rpc.listen=127.0.0.1:0", *flags], capture_output=True, text=True,
                          timeout=TIMEOUT_S)
    return done.returncode, done.stderr, done.stdout


class Daemon:
    """rankd on an ephemeral port of 127.0.0.1, with tokens if asked for; ends with the `with` block."""

    def __init__(self, program, *flags, tokens=False):
        self.program, self.flags, self.has_tokens = program, flags, tokens
        self.is_stopping = False

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        flags = list(self.flags)
        if not any(flag.startswith("--rpc.listen=") for flag in flags):
            flags.append("--rpc.listen=127.0.0.1:0")
        if self.has_tokens:
            path = os.path.join(self.folder.name, "tokens")
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.writelines(f"{role}:{token}\n" for role, token in TOKENS.items())
            flags.append("--rpc.token_file=" + path)
        self.log = open(os.path.join(self.folder.name, "log"), "w+")
        self.process = subprocess.Popen([self.program, *flags], stdout=subprocess.PIPE, stderr=self.log, text=True)
        keys = [flag[2:flag.index("=")] for flag in flags if ".listen=" in flag]
        self.addresses = {}  # by key
        while not {key for key in keys if not key.startswith("comm")} <= set(self.addresses):
            words = self.process.stdout.readline().split()  # rankd: listening on ADDRESS, rankd: KEY is ADDRESS
            if not words:
                self.__exit__(None)
                raise AssertionError("the daemon ended before it listened")
            self.addresses["rpc.listen" if words[1] == "listening" else words[1]] = words[-1]
        self.address = self.addresses["rpc.listen"]
        return self

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        """Asks it to end, once: a second signal would end the wait for what runs, or the process behind its last step."""
        if not self.is_stopping and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.is_stopping = True

    def __exit__(self, kind, *_):
        self.stop()
        code = self.process.wait(TIMEOUT_S)
        self.process.stdout.close()
        log = self.read_log()
        self.log.close()
        self.folder.cleanup()
        if kind is None and code != 0:
            raise AssertionError(f"the daemon ended with {code}: {log}")


def bearer(role):
    return [("authorization", "Bearer " + TOKENS[role])] if role else []


def fields(data):
    """(number, value) of a protobuf message: integers and bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        else:
            assert key & 7 == 2, key
            count = varint()
            yield key >> 3, data[at:at + count]
            at += count


def get(data, number):
    return [value for field, value in fields(data) if field == number]


class Reflection:
    """The reflection service of a channel, and the messages and methods that it tells of."""

    def __init__(self, channel, version="v1", metadata=()):
        self.service = f"grpc.reflection.{version}.ServerReflection"
        self.channel, self.metadata = channel, metadata
        self.path = f"/{self.service}/ServerReflectionInfo"
        self.pool = descriptor_pool.DescriptorPool()
        self.seen = set()
        # No message type is known yet: file_containing_symbol is field 4; the files of the reply
        # are field 1 of field 4.
        name = self.service.encode()
        answer = self.exchange([bytes([4 << 3 | 2, len(name)]) + name], lambda data: data, lambda data: data)[0]
        self.add(get(get(answer, 4)[0], 1))
        self.Request = self.message(f"grpc.reflection.{version}.ServerReflectionRequest")
        self.Response = self.message(f"grpc.reflection.{version}.ServerReflectionResponse")

    def exchange(self, requests, pack, unpack):
        call = self.channel.stream_stream(self.path, request_serializer=pack, response_deserializer=unpack)
        return list(call(iter(requests), metadata=self.metadata, timeout=TIMEOUT_S))

    def ask(self, *requests):
        return self.exchange([self.Request(**request) for request in requests], self.Request.SerializeToString,
                             self.Response.FromString)

    def message(self, name):
        return message_factory.MessageFactory(self.pool).GetPrototype(self.pool.FindMessageTypeByName(name))

    def add(self, serialised):
        """Adds files that came in any order; fails when one imports what did not come."""
        files = {}
        for data in serialised:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file

        def add(name):
            if name not in self.seen:
                for dependency in files[name].dependency:
                    add(dependency)
                self.pool.Add(files[name])
                self.seen.add(name)

        for name in files:
            add(name)
        return list(files)

    def services(self):
        answer = self.ask({"list_services": "*"})[0]
        return [service.name for service in answer.list_services_response.service]

    def learn(self, symbol):
        """The file of the symbol, as the pool has it, after one request."""
        answer = self.ask({"file_containing_symbol": symbol})[0]
        names = self.add(answer.file_descriptor_response.file_descriptor_proto)
        return self.pool.FindFileByName(names[0])

    def call(self, service, method, request=None, metadata=None):
        """Calls a unary method by its name, with JSON-like fields."""
        self.learn(service)
        row = self.pool.FindServiceByName(service).methods_by_name[method]
        request_type = self.message(row.input_type.full_name)
        response_type = self.message(row.output_type.full_name)
        call = self.channel.unary_unary(f"/{service}/{method}", request_serializer=request_type.SerializeToString,
                                        response_deserializer=response_type.FromString)
        return call(request_type(**(request or {})), timeout=TIMEOUT_S,
                    metadata=self.metadata if metadata is None else metadata)
