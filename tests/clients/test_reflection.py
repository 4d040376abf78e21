"""Goal: a client that has no .proto files lists, describes and calls what rankd serves, through the reflection service
of either version. Method: the stock grpc and protobuf packages, with messages that are made of what the daemon tells.

Usage: test_reflection.py RANKD
"""
import sys
import unittest

import grpc

from stock import Daemon, Reflection, TIMEOUT_S, bearer

RANKD = sys.argv.pop(1)
SERVICES = {"rankd.v1.Worker", "rankd.v1.Admin", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection"}
VERSIONS = ("v1", "v1alpha")


class WithDaemon(unittest.TestCase):
    def setUp(self):
        self.daemon = self.enterContext(Daemon(RANKD))
        self.channel = self.enterContext(grpc.insecure_channel(self.daemon.address))

    def test_services_are_listed(self):
        for version in VERSIONS:
            names = Reflection(self.channel, version).services()
            self.assertEqual(len(names), len(SERVICES))
            self.assertEqual(set(names), SERVICES)

    def test_every_service_is_described(self):
        """Each file comes with what it imports, and the methods are those that are called below."""
        for version in VERSIONS:
            for service in SERVICES:
                reflection = Reflection(self.channel, version)
                file = reflection.learn(service)
                self.assertIn(service.rpartition(".")[2], file.services_by_name)
        methods = reflection.learn("rankd.v1.Worker").services_by_name["Worker"].methods_by_name
        self.assertLess({"GetStatus", "Execute", "Configure"}, set(methods))

    def test_a_method_is_called_by_its_name(self):
        for version in VERSIONS:
            reflection = Reflection(self.channel, version)
            status = reflection.call("rankd.v1.Worker", "GetStatus")
            self.assertEqual(status.state, "UNCONFIGURED")
            self.assertEqual(status.rank.device, "cpu")
            self.assertGreater(status.incarnation, 0)
            health = reflection.call("grpc.health.v1.Health", "Check", {"service": "rankd.v1.Worker"})
            self.assertEqual(health.status, 1)

    def test_every_kind_of_symbol_is_found(self):
        files = {
            "rankd.v1.Worker": "rankd/v1/worker.proto",
            "rankd.v1.Worker.GetStatus": "rankd/v1/worker.proto",
            "rankd.v1.WorkerStatus": "rankd/v1/worker.proto",
            "rankd.v1.WorkerStatus.state": "rankd/v1/worker.proto",
            "rankd.v1.ExecuteRequest.m": "rankd/v1/worker.proto",
            "rankd.v1.DType": "rankd/v1/common.proto",
            "rankd.v1.BF16": "rankd/v1/common.proto",
            "rankd.v1.Fence": "rankd/v1/common.proto",
            "grpc.health.v1.HealthCheckResponse.ServingStatus": "grpc/health/v1/health.proto",
            "grpc.health.v1.HealthCheckResponse.NOT_SERVING": "grpc/health/v1/health.proto",
            "grpc.reflection.v1alpha.ExtensionRequest": "grpc/reflection/v1alpha/reflection.proto",
        }
        reflection = Reflection(self.channel)
        for symbol, name in files.items():
            self.assertEqual(reflection.learn(symbol).name, name)

    def test_files_are_found_by_name_with_their_imports(self):
        answers = Reflection(self.channel).ask({"file_by_filename": "rankd/v1/worker.proto"},
                                               {"file_by_filename": "rankd/v1/common.proto"})
        counts = [len(answer.file_descriptor_response.file_descriptor_proto) for answer in answers]
        self.assertEqual(counts, [2, 1])

    def test_what_is_not_there_is_told_and_the_stream_goes_on(self):
        requests = [
            {"file_containing_symbol": "rankd.v1.Nothing"},
            {"file_containing_symbol": "rankd.v1.Worker.Nothing"},
            {"file_containing_symbol": "rankd.v1"},
            {"file_containing_symbol": ""},
            {"file_containing_symbol": "rankd.v1.DType.BF16"},  # a value is in the scope of its enum's parent
            {"file_by_filename": "worker.proto"},
            {"file_by_filename": "../rankd/v1/worker.proto"},
            {"file_containing_extension": {"containing_type": "rankd.v1.Fence", "extension_number": 100}},
            {"all_extension_numbers_of_type": "rankd.v1.DType"},
        ]
        reflection = Reflection(self.channel)
        answers = reflection.ask(*requests, {"host": "here"}, {"all_extension_numbers_of_type": "rankd.v1.Fence"},
                                 {"host": "there", "file_containing_symbol": "rankd.v1.Fence"})
        for request, answer in zip(requests, answers):
            self.assertEqual(answer.error_response.error_code, grpc.StatusCode.NOT_FOUND.value[0], request)
            self.assertTrue(answer.error_response.error_message)
            self.assertEqual(answer.original_request, reflection.Request(**request))
        empty, numbers, found = answers[len(requests):]
        self.assertEqual(empty.error_response.error_code, grpc.StatusCode.INVALID_ARGUMENT.value[0])
        self.assertEqual(numbers.all_extension_numbers_response.base_type_name, "rankd.v1.Fence")
        self.assertEqual(list(numbers.all_extension_numbers_response.extension_number), [])
        self.assertEqual(found.valid_host, "there")
        self.assertEqual(len(found.file_descriptor_response.file_descriptor_proto), 1)

    def test_a_long_stream_is_answered_one_by_one(self):
        answers = Reflection(self.channel).ask(*[{"list_services": ""}] * 500)
        self.assertEqual(len(answers), 500)

    def test_bytes_that_are_no_request_end_the_stream(self):
        reflection = Reflection(self.channel)
        for data in (b"\xff\xff\xff", b"\x3a\x02\xc3\x28", b"\x22" + b"\x80" * 20, b"\x0a\xff\xff\x01" + b"x" * 32767):
            with self.assertRaises(grpc.RpcError) as raised:
                reflection.exchange([data], lambda data: data, lambda data: data)
            self.assertIn(raised.exception.code(),
                          (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED))
        self.assertEqual(set(reflection.services()), SERVICES)

    def test_an_open_stream_does_not_delay_the_end_of_the_daemon(self):
        call = self.channel.stream_stream(Reflection(self.channel).path)
        opened = call(iter(lambda: self.daemon.process.wait(TIMEOUT_S) and None, None))  # asks nothing until the end
        self.daemon.stop()
        self.assertEqual(self.daemon.process.wait(TIMEOUT_S), 0)
        opened.cancel()


class Rights(unittest.TestCase):
    def test_a_token_is_needed_and_any_role_will_do(self):
        with Daemon(RANKD, tokens=True) as daemon, grpc.insecure_channel(daemon.address) as channel:
            for version in VERSIONS:
                with self.assertRaises(grpc.RpcError) as raised:
                    Reflection(channel, version)
                self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
                for role in ("viewer", "driver", "admin"):
                    reflection = Reflection(channel, version, bearer(role))
                    self.assertEqual(set(reflection.services()), SERVICES)
                    self.assertEqual(reflection.call("rankd.v1.Worker", "GetStatus").state, "UNCONFIGURED")

    def test_it_is_off_where_others_can_reach_it_unless_it_is_asked_for(self):
        everywhere = ("--rpc.listen=0.0.0.0:0", "--insecure", "--comm.listen=unix")
        cases = ((("--rpc.reflection=false",), False), (everywhere, False), ((*everywhere, "--rpc.reflection=true"), True))
        for flags, is_on in cases:
            with Daemon(RANKD, *flags) as daemon:
                with grpc.insecure_channel(daemon.address.replace("0.0.0.0", "127.0.0.1")) as channel:
                    for version in VERSIONS:
                        if is_on:
                            self.assertEqual(set(Reflection(channel, version).services()), SERVICES)
                            continue
                        with self.assertRaises(grpc.RpcError) as raised:
                            Reflection(channel, version)
                        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED, flags)


if __name__ == "__main__":
    unittest.main()
