"""Goal: the rich-error support of any gRPC library finds what went wrong: reason, field of the request, when to try
again. Method: google.rpc's messages under their original names and numbers, over the stock protobuf package's own Any
and Duration; nothing of rankd's definitions.

Usage: test_error_details.py RANKD
"""
import socket
import sys
import unittest

import grpc
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory

from stock import TIMEOUT_S, Daemon, Reflection, bearer

RANKD = sys.argv.pop(1)
KINDS = descriptor_pb2.FieldDescriptorProto
MAX_METADATA_BYTES = 8192  # of stock clients


def google_rpc():
    """Classes of google/rpc/status.proto and error_details.proto, by name."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="google/rpc/all.proto", package="google.rpc", syntax="proto3")
    for dependency in (any_pb2, duration_pb2):
        pool.AddSerializedFile(dependency.DESCRIPTOR.serialized_pb)
        file.dependency.append(dependency.DESCRIPTOR.name)

    def add(to, name, *fields):
        message = to.add(name=name)
        for number, (field, kind, type_name, is_list) in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=kind, type_name=type_name or None,
                              label=KINDS.LABEL_REPEATED if is_list else KINDS.LABEL_OPTIONAL)
        return message

    text, message = KINDS.TYPE_STRING, KINDS.TYPE_MESSAGE
    top = file.message_type
    add(top, "Status", ("code", KINDS.TYPE_INT32, "", False), ("message", text, "", False),
        ("details", message, ".google.protobuf.Any", True))
    info = add(top, "ErrorInfo", ("reason", text, "", False), ("domain", text, "", False),
               ("metadata", message, ".google.rpc.ErrorInfo.MetadataEntry", True))
    add(info.nested_type, "MetadataEntry", ("key", text, "", False),
        ("value", text, "", False)).options.map_entry = True
    add(top, "RetryInfo", ("retry_delay", message, ".google.protobuf.Duration", False))
    bad = add(top, "BadRequest", ("field_violations", message, ".google.rpc.BadRequest.FieldViolation", True))
    add(bad.nested_type, "FieldViolation", ("field", text, "", False), ("description", text, "", False))
    pool.Add(file)
    return {name: message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName("google.rpc." + name))
            for name in ("Status", "ErrorInfo", "RetryInfo", "BadRequest")}


TYPES = google_rpc()


def details_of(error):
    """The details by type, as grpc_status.rpc_status.from_call gives them."""
    data = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = TYPES["Status"].FromString(data)
    assert status.code == error.code().value[0], (status, error)
    assert status.message == error.details(), (status, error)
    assert len(data) * 4 // 3 + len(status.message) < MAX_METADATA_BYTES, len(data)
    found = {}
    for any_message in status.details:
        name = any_message.TypeName().rpartition(".")[2]
        assert any_message.type_url == "type.googleapis.com/google.rpc." + name
        assert name not in found
        found[name] = TYPES[name].FromString(any_message.value)
    return found


class Details(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(Daemon(RANKD, tokens=True))
        self.channel = self.enterContext(grpc.insecure_channel(self.daemon.address))
        self.reflection = Reflection(self.channel, metadata=bearer("admin"))

    def fail(self, code, reason, method, request, service="rankd.v1.Worker", metadata=None):
        with self.assertRaises(grpc.RpcError) as raised:
            self.reflection.call(service, method, request, metadata)
        self.assertEqual(raised.exception.code(), code, raised.exception)
        details = details_of(raised.exception)
        self.assertEqual(details["ErrorInfo"].reason, reason)
        self.assertEqual(details["ErrorInfo"].domain, "rankd.dev")
        return details

    def test_a_bad_field_is_named(self):
        cases = (
            ("AcquireLease", {"driver_id": "", "epoch": 1}, "driver_id"),
            ("AcquireLease", {"driver_id": "x", "epoch": 0}, "epoch"),
            ("AcquireLease", {"driver_id": "a\nb", "epoch": 1}, "driver_id"),
            ("Configure", {"rank": 0, "world_size": 1}, "fence"),
            ("ReleaseLease", {}, "fence"),
        )
        for method, request, field in cases:
            details = self.fail(grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD", method, request)
            violation, = details["BadRequest"].field_violations
            self.assertEqual(violation.field, field)
            self.assertTrue(violation.description)
            self.assertNotIn("RetryInfo", details)

    def test_fields_below_others_have_their_path(self):
        lease = self.reflection.call("rankd.v1.Worker", "AcquireLease", {"driver_id": "x", "epoch": 1})
        for request, field in (({"world_size": 0}, "world_size"), ({"world_size": 2, "rank": 2}, "rank"),
                               ({"world_size": 1, "mesh_generation": 0}, "mesh_generation"),
                               ({"world_size": 1, "mesh_generation": 1}, "mesh"),
                               ({"world_size": 1, "rank": 0xFFFFFFFF}, "rank")):
            details = self.fail(grpc.StatusCode.INVALID_ARGUMENT, "BAD_FIELD", "Configure",
                                {"fence": lease.fence, **request})
            self.assertEqual(details["BadRequest"].field_violations[0].field, field)
        # Raw bytes: invalid UTF-8 in a nested message.
        call = self.channel.unary_unary("/rankd.v1.Worker/Configure")
        with self.assertRaises(grpc.RpcError) as raised:
            call(b"\x1a\x04\x0a\x02\xc3\x28", metadata=bearer("admin"))
        self.assertEqual(details_of(raised.exception)["BadRequest"].field_violations[0].field, "mesh.role")

    def test_a_lease_that_is_held_tells_when_to_come_back(self):
        self.reflection.call("rankd.v1.Worker", "AcquireLease", {"driver_id": "first", "epoch": 1, "ttl_ms": 20000})
        details = self.fail(grpc.StatusCode.FAILED_PRECONDITION, "LEASE_HELD", "AcquireLease",
                            {"driver_id": "second", "epoch": 2})
        self.assertTrue(0 < details["RetryInfo"].retry_delay.ToMilliseconds() <= 20000)
        self.assertNotIn("BadRequest", details)

    def test_compressed_messages_are_refused(self):
        """With the code that tells a client to send it again without compression."""
        for compression, name in ((grpc.Compression.Gzip, "gzip"), (grpc.Compression.Deflate, "deflate")):
            with grpc.insecure_channel(self.daemon.address, compression=compression) as channel:
                call = channel.unary_unary("/rankd.v1.Worker/AcquireLease")
                with self.assertRaises(grpc.RpcError) as raised:
                    call(b"\x0a\xa0\x1f" + b"x" * 4000, metadata=bearer("admin"))
            self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
            self.assertIn(f"grpc-encoding: {name}), expected identity", raised.exception.details())
        self.assertIn(b"grpc-accept-encoding\x08identity", self.send_compressed())

    def send_compressed(self):
        """What the daemon answers on the wire: grpcio keeps this header for itself."""
        def frame(kind, flags, stream, payload):
            return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

        host, _, port = self.daemon.address.rpartition(":")
        block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(text)]) + text for name, text in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/rankd.v1.Worker/GetStatus"),
            (b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
            (b"grpc-encoding", b"gzip"), (b"authorization", dict(bearer("admin"))["authorization"].encode())))
        answer = b""
        with socket.create_connection((host, int(port)), TIMEOUT_S) as peer:
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, block) +
                         frame(0, 1, 1, b"\1\0\0\0\3abc"))
            while b"identity" not in answer and (part := peer.recv(1 << 16)):
                answer += part
        return answer

    def test_what_no_wait_mends_has_no_retry(self):
        for metadata, code, reason in (((), grpc.StatusCode.UNAUTHENTICATED, "TOKEN"),
                                       (bearer("viewer"), grpc.StatusCode.PERMISSION_DENIED, "ROLE")):
            details = self.fail(code, reason, "Drain", {}, "rankd.v1.Admin", metadata)
            self.assertEqual(list(details), ["ErrorInfo"])

    def test_a_field_beyond_a_limit_is_named(self):
        details = self.fail(grpc.StatusCode.RESOURCE_EXHAUSTED, "BAD_FIELD", "AcquireLease",
                            {"driver_id": "x" * 4000, "epoch": 1})
        self.assertEqual(details["BadRequest"].field_violations[0].field, "driver_id")


if __name__ == "__main__":
    unittest.main()
