#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two vLLM servers on CPUs, one for prefill and one for decode; the KV cache goes from one to the other through PEERLANE.

Usage: vllm_tests.py BUILD_FOLDER LOG_FOLDER [TEST...]; scripts/test_vllm.sh makes the Python that this needs.
The last line is "N passed, N failed". Files that the servers and the test write go to LOG_FOLDER.
"""

import concurrent.futures
import os
import re
import signal
import sys
import time
import unittest

import servers
import tiny_model

TOKENS = 24  # of each answer
# Less than a block, whole blocks, one token more or less than that, and many blocks.
LENGTHS = (7, 31, 32, 33, 64, 300, 1500)
SOON = 20  # seconds


def build_program():
    return os.path.join(os.path.abspath(sys.argv[1]), "bin/peerlane")


def log_folder():
    return os.path.abspath(sys.argv[2])


class Counters:
    """What the decode server counted; the difference of two belongs to the requests between them."""

    def __init__(self, decode):
        self.peerlane = decode.peerlane_bytes(build_program())
        self.values = {
            "bytes by vLLM": decode.metric("vllm:nixl_bytes_transferred_sum"),
            "transfers that failed": decode.metric("vllm:nixl_num_failed_transfers_total"),
            "tokens received": decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer"),
            "tokens computed": decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute"),
            "tokens found": decode.metric("vllm:prompt_tokens_by_source_total", source="local_cache_hit"),
            "bytes by Peerlane": sum(self.peerlane.values()),
        }

    def since(self, before):
        return {name: value - before.values[name] for name, value in self.values.items()}


class PrefillAndDecode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        model = os.path.join(log_folder(), "model")
        tiny_model.write_model(model)
        cls.prompts = [tiny_model.make_prompt(seed, length) for seed, length in enumerate(LENGTHS)]
        # Two prompts that differ in all but the last token.
        cls.first, cls.second = (tiny_model.make_prompt(seed, 300)[:-1] + [tiny_model.FIRST_TOKEN] for seed in (101, 102))
        cls.expected = cls.answers_of_one_server(model)
        cls.prefill = servers.Server("prefill", log_folder(), model, servers.transfer_options("kv_producer"))
        cls.addClassCleanup(cls.prefill.stop)
        cls.decode = servers.Server("decode", log_folder(), model, servers.transfer_options("kv_consumer"))
        cls.addClassCleanup(cls.decode.stop)
        cls.prefill.wait_until_ready()
        cls.decode.wait_until_ready()

    @classmethod
    def answers_of_one_server(cls, model):
        """{prompt: answer} of a server that moves nothing. It ends before the others start, to save memory."""
        alone = servers.Server("alone", log_folder(), model)
        try:
            alone.wait_until_ready()
            return {tuple(prompt): alone.complete(prompt, TOKENS)[0] for prompt in (*cls.prompts, cls.first, cls.second)}
        finally:
            alone.stop()

    def prefilled(self, prompt):
        """What the decode server needs to fetch the prompt's cache. One token is the least that a server answers."""
        _, params = self.prefill.complete(prompt, 1, kv_transfer_params={"do_remote_decode": True})
        self.assertTrue(params and params["do_remote_prefill"], f"the prefill server offers no cache: {params}")
        return params

    def decoded(self, prompt, params):
        return self.decode.complete(prompt, TOKENS, kv_transfer_params=params)[0]

    def answer(self, prompt):
        return self.decoded(prompt, self.prefilled(prompt))

    def expect_moved(self, before, prompts):
        """Peerlane carried every block of these prompts, and the decode server computed no prompt."""
        tokens = sum(map(len, prompts))
        size = sum(tiny_model.cache_bytes(len(prompt)) for prompt in prompts)
        expected = {"bytes by Peerlane": size, "bytes by vLLM": size, "transfers that failed": 0,
                    "tokens received": tokens, "tokens computed": 0, "tokens found": 0}
        end = time.monotonic() + SOON
        while True:  # vLLM publishes its counters after the answer
            moved = Counters(self.decode).since(before)
            if moved == expected or time.monotonic() > end:
                break
            time.sleep(0.2)
        self.assertEqual(moved, expected)

    def test_answers_are_those_of_one_server(self):
        before = Counters(self.decode)
        for prompt in self.prompts:
            with self.subTest(tokens=len(prompt)):
                self.assertEqual(self.answer(prompt), self.expected[tuple(prompt)])
        self.expect_moved(before, self.prompts)

    def test_answers_are_those_of_one_server_when_requests_overlap(self):
        before = Counters(self.decode)
        prompts = self.prompts * 2
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(self.answer, prompts))
        for prompt, answer in zip(prompts, answers):
            with self.subTest(tokens=len(prompt)):
                self.assertEqual(answer, self.expected[tuple(prompt)])
        self.expect_moved(before, prompts)

    def test_the_answer_comes_from_the_cache_that_was_moved(self):
        """The decode server is asked for the first prompt and given the second one's cache. Only the last token, which
        both prompts share, is its own work, so it must answer the second prompt."""
        first, second = self.expected[tuple(self.first)], self.expected[tuple(self.second)]
        self.assertNotEqual(first, second)
        before = Counters(self.decode)
        self.assertEqual(self.decoded(self.first, self.prefilled(self.second)), second)
        self.assertEqual(self.decoded(self.first, self.prefilled(self.first)), first)
        self.expect_moved(before, [self.second, self.first])

    def test_peerlane_is_the_only_back_end(self):
        self.answer(self.first)  # the decode server adds the other agent at its first request
        for server in (self.prefill, self.decode):
            made = re.findall(r"Backend (\w+) was instantiated", server.log())
            self.assertEqual(made, ["PEERLANE"], server.name)
        route = re.search(r"peerlane nixl: .*?: agent .*? is reached over .*", self.decode.log())
        self.assertTrue(route, "no route in " + self.decode.log_path)
        print(route[0], Counters(self.decode).peerlane, sep="\n", flush=True)


def main():
    # An end by a signal must stop the servers, too, and only an exception does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.makedirs(log_folder(), exist_ok=True)
    names = [f"PrefillAndDecode.{name}" for name in sys.argv[3:]] or ["PrefillAndDecode"]
    tests = unittest.defaultTestLoader.loadTestsFromNames(names, sys.modules[__name__])
    result = unittest.TextTestRunner(verbosity=2).run(tests)
    unwell = [test for test, _ in result.failures + result.errors + result.skipped]
    bad = len({getattr(test, "test_case", test).id() for test in unwell})
    # Nothing runs when the servers do not start.
    good = max(result.testsRun - bad, 0)
    bad += not result.testsRun and not bad
    print(f"{good} passed, {bad} failed", flush=True)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
