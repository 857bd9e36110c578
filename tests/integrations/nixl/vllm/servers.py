# SPDX-License-Identifier: Apache-2.0
"""vLLM servers on CPUs as processes of their own, what they answer, and what they and Peerlane counted."""

import atexit
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil

import tiny_model

HOST = "127.0.0.1"
# Long, because a server on a busy machine gets a hundredth of a core at times; a quiet one starts in half a minute.
START_SECONDS, ANSWER_SECONDS, LEASE_SECONDS = 900, 600, 3600
CACHE_BYTES = 64 << 20  # of a server, for about 20000 tokens

# No prefix caching: a second request for a prompt would find the cache of the first one and move nothing.
OPTIONS = ["--dtype", "float32", "--enforce-eager", "--skip-tokenizer-init", "--no-enable-prefix-caching",
           "--max-num-seqs", "4", "--max-model-len", str(tiny_model.LONGEST), "--block-size", str(tiny_model.BLOCK_TOKENS),
           "--kv-cache-memory-bytes", str(CACHE_BYTES)]


def transfer_options(role):
    """A load that fails must fail the request: otherwise the decode server would compute the prompt itself."""
    # The prefill server frees what nobody fetched in time, after 30 s unless told. On a machine that is busy with other
    # things a decode server can come later, and then reads blocks that may hold something else; only a log says so.
    return ["--kv-transfer-config", json.dumps({
        "kv_connector": "NixlConnector", "kv_role": role, "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"backends": ["PEERLANE"], "kv_lease_duration": LEASE_SECONDS}})]


def free_port():
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def environment():
    """The caller's, without settings of Peerlane and NIXL, and with everything off that would ask another host."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PEERLANE_", "NIXL_", "VLLM_"))}
    return kept | {
        "PEERLANE_LOG": "info", "NIXL_LOG_LEVEL": "INFO", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": HOST, "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        # One thread for each server: two of them on two cores would wait for each other, each in a busy loop.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


class Server:
    """Starts at once; `wait_until_ready` before the first request. Its words go to FOLDER/NAME.log."""

    def __init__(self, name, folder, model, options=()):
        self.name, self.log_path, self.port = name, os.path.join(folder, name + ".log"), free_port()
        # Not vLLM's own command `vllm`: in the package vllm-cpu it looks for the package vllm, and ends.
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "tiny",
                 "--host", HOST, "--port", str(self.port), *OPTIONS, *options]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                            env=environment(), cwd=folder, start_new_session=True)
        atexit.register(self.stop)

    def wait_until_ready(self):
        end = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            try:
                self.get("/health")
                return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)
        why = "did not start in time" if self.process.poll() is None else f"ended with {self.process.returncode}"
        raise RuntimeError(f"the server '{self.name}' {why}; the end of {self.log_path}:\n{self.log()[-6000:]}")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def get(self, path):
        with urllib.request.urlopen(f"http://{HOST}:{self.port}{path}", timeout=ANSWER_SECONDS) as answer:
            return answer.read().decode()

    def complete(self, prompt, tokens, **more):
        """The answer to a prompt of token ids: its token ids, and the parameters for a transfer."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "detokenize": False, "return_token_ids": True, **more}
        request = urllib.request.Request(f"http://{HOST}:{self.port}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"the server '{self.name}' refused: {error.code} {error.read().decode()}") from error
        return said["choices"][0]["token_ids"], said.get("kv_transfer_params")

    def metric(self, name, **labels):
        """The sum of a counter of vLLM over all series with these labels."""
        total = 0
        for line in self.get("/metrics").splitlines():
            series = re.match(re.escape(name) + r"\{(.*)\} (\S+)$", line)
            if series and all(f'{label}="{value}"' in series[1] for label, value in labels.items()):
                total += float(series[2])
        return int(total)

    def peerlane_bytes(self, program):
        """{(link, direction): payload bytes}, as Peerlane counted them in the processes of this server."""
        moved = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            # Only the worker has a context; `doctor` fails for the others.
            said = subprocess.run([program, "doctor", "--pid", str(process.pid)], capture_output=True, text=True,
                                  check=False, timeout=60).stdout
            for link, direction, count in re.findall(
                    r'^peerlane_bytes_total\{link="(\w+)".*?direction="(\w+)"\} (\d+)', said, re.MULTILINE):
                moved[link, direction] = moved.get((link, direction), 0) + int(count)
        return moved

    def stop(self):
        """Ends the server and all processes of its session, which are its own ones alone."""
        atexit.unregister(self.stop)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
