#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors of a real PyTorch process through the C API, by ctypes: to another process and back, verified.

p2p_torch.py LIBRARY   runs both processes (PYTORCH_CUDA_ALLOC_CONF as the caller set it) and ends with 0 when every
byte was right; the last line says how fast it went. 77: there is no PyTorch or no GPU here.
"""

import ctypes
import os
import subprocess
import sys
import time

ROOT_BYTES = 4108
UINT8 = 7
BIDIRECTIONAL, LINK_AUTO = 2, 2
PATIENCE_MS = 60000


class P2p:
    """The calls used here, each of which raises with the library's sentence."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.P2PGetLastError.restype = ctypes.c_char_p

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            result = function(*arguments)
            if result != 0:
                raise RuntimeError(f"{name}: {result}: {self.library.P2PGetLastError().decode()}")

        return call


def connect(p2p, is_root):
    root = ctypes.create_string_buffer(ROOT_BYTES)
    if is_root:
        p2p.P2PGetRootInfo(root)
        sys.stdout.buffer.write(root.raw)
        sys.stdout.buffer.flush()
    else:
        root.raw = sys.stdin.buffer.read(ROOT_BYTES)
    comm = ctypes.c_void_p()
    p2p.P2PCommInitRootInfo(root, BIDIRECTIONAL, LINK_AUTO, ctypes.byref(comm), None)
    return comm


def address_of(tensor):
    return ctypes.c_void_p(tensor.data_ptr()), ctypes.c_uint64(tensor.numel() * tensor.element_size())


def run_side(path, is_root):
    import torch

    p2p = P2p(path)
    gpu = 0 if is_root else min(1, torch.cuda.device_count() - 1)
    torch.cuda.set_device(gpu)
    torch.zeros(1, device="cuda")
    comm = connect(p2p, is_root)
    stream = torch.cuda.Stream()

    def on_stream():
        return ctypes.c_void_p(stream.cuda_stream)

    def send(tensor):
        address, count = address_of(tensor)
        p2p.P2PSend(address, count, UINT8, comm, on_stream())

    def receive(tensor):
        address, count = address_of(tensor)
        p2p.P2PRecv(address, count, UINT8, comm, on_stream())

    def batch_of(tensors, is_send):
        count = len(tensors)
        addresses = (ctypes.c_void_p * count)(*[tensor.data_ptr() for tensor in tensors])
        counts = (ctypes.c_uint64 * count)(*[tensor.numel() * tensor.element_size() for tensor in tensors])
        call = p2p.P2PSendBatch if is_send else p2p.P2PRecvBatch
        return lambda: call(addresses, counts, UINT8, ctypes.c_uint32(count), comm, on_stream())

    def finish():
        stream.synchronize()
        p2p.P2PCommSynchronize(comm, ctypes.c_uint32(PATIENCE_MS))

    def pattern(shape, dtype, seed):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        if dtype.is_floating_point:
            return torch.randn(shape, dtype=torch.float32, device="cuda", generator=generator).to(dtype)
        return torch.randint(0, 100, shape, dtype=dtype, device="cuda", generator=generator)

    wrong = 0
    shapes = [((7,), torch.uint8), ((1000, 3), torch.bfloat16), ((73 * 256,), torch.float32), ((1 << 20,), torch.int64),
              ((5, 1 << 20), torch.float16), ((24, 1 << 20), torch.float32)]
    # There and back: what comes back is compared by the one who made it. Memory is given back and taken anew between.
    for turn in range(3):
        for seed, (shape, dtype) in enumerate(shapes):
            if is_root:
                made = pattern(shape, dtype, 100 * turn + seed)
                back = torch.empty_like(made)
                torch.cuda.synchronize()
                send(made)
                receive(back)
                finish()
                wrong += 0 if torch.equal(made, back) else 1
                del made, back
            else:
                got = torch.empty(shape, dtype=dtype, device="cuda")
                torch.cuda.synchronize()
                receive(got)
                send(got)
                finish()
                del got
        torch.cuda.empty_cache()

    # Slices of one tensor, as pages of a cache are, into slices that lie the other way round.
    pages = pattern((128, 512 * 1024), torch.uint8, 9) if is_root else torch.zeros((128, 512 * 1024), dtype=torch.uint8,
                                                                                   device="cuda")
    order = list(range(128)) if is_root else list(reversed(range(128)))
    torch.cuda.synchronize()
    rounds = 50
    batch = batch_of([pages[i] for i in order], is_root)
    batch()
    finish()
    start = time.perf_counter()
    for _ in range(rounds):
        batch()
    finish()
    took = time.perf_counter() - start
    back = torch.empty_like(pages)
    torch.cuda.synchronize()
    if is_root:
        receive(back)
        finish()
        wrong += 0 if torch.equal(torch.flip(pages, [0]), back) else 1
    else:
        send(pages)
        finish()
    route = ctypes.create_string_buffer(8192)
    p2p.P2PGetCommRoute(comm, route, ctypes.c_uint64(8192))
    p2p.P2PCommDestroy(comm)
    if is_root:
        config = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        print(f"torch {torch.__version__} [{config}]: {wrong} wrong; 128 x 512 KiB "
              f"{rounds * pages.numel() / took / 1e9:.1f} GB/s; staged: {'cuda_ipc' not in route.value.decode()}",
              file=sys.stderr, flush=True)
    return 1 if wrong else 0


def main():
    path = sys.argv[1]
    if len(sys.argv) > 2:
        return run_side(path, sys.argv[2] == "root")
    try:
        import torch
        # Asked without a context: the two processes are the ones who use GPUs.
        if not torch.cuda.is_available():
            return 77
    except ImportError:
        return 77
    root = subprocess.Popen([sys.executable, __file__, path, "root"], stdout=subprocess.PIPE)
    client = subprocess.Popen([sys.executable, __file__, path, "client"], stdin=root.stdout)
    root.stdout.close()
    codes = [root.wait(timeout=240), client.wait(timeout=240)]
    if any(codes):
        print(f"the two processes ended with {codes}", file=sys.stderr)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
