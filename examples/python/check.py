#!/usr/bin/env python3
"""Kernels from bundles, launched from Python on ranks of the host, and on a GPU on tensors and streams of
PyTorch. Small integers everywhere, so results are compared exactly.

    flux build --bundle src/kernels.rs -o bundles/
    python3 examples/python/check.py --library target/release/libflux.so --bundles bundles

Prints a line for each check, `ok`, `FAILED` or `skipped`, and fails if one does. PyTorch is not needed, nor
is a GPU: what needs them is skipped.
"""

import argparse
import array
import os
import random
import struct
import sys
import traceback
from pathlib import Path

# Ahead of the driver's start: ranks that share a GPU have a hardware queue for each of their streams.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from flux import BF16, INVALID, STALLED, Flux, FluxError, Matrix


class Skipped(Exception):
    """Why a check was not made."""


CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def refused(status, words, work):
    """`work` has to fail so."""
    try:
        work()
    except FluxError as error:
        expect(error.status == status, f"status {error.status} ({error}), expected {status}")
        expect(words in str(error), f"`{words}` is not in: {error}")
        return
    raise AssertionError(f"nothing was refused, expected: {words}")


# Of the host: numbers of bf16 in arrays of the standard library.


def to_bf16(numbers):
    """Small integers have no bits that are lost."""
    return array.array("H", [struct.unpack("<HH", struct.pack("<f", number))[1] for number in numbers])


def from_bf16(words):
    return [struct.unpack("<f", struct.pack("<HH", 0, word))[0] for word in words]


def integers(seed, count):
    draw = random.Random(seed)
    return [draw.randint(-2, 2) for _ in range(count)]


def product(a, b, m, n, k):
    """A · Bᵀ of lists of numbers."""
    rows = [a[i * k : i * k + k] for i in range(m)]
    columns = [b[i * k : i * k + k] for i in range(n)]
    return [sum(x * y for x, y in zip(row, column)) for row in rows for column in columns]


def matrix(words, rows, cols):
    return Matrix(words, rows, cols, BF16)


@check
def a_product_on_one_rank_of_the_host(flux, bundle):
    m, n, k = 5, 7, 9
    a, b = integers(1, m * k), integers(2, n * k)
    words = [to_bf16(a), to_bf16(b), to_bf16([99] * (m * n))]
    world = flux.world("host:1")
    kernel = world.load(bundle("gemm_bf16"))
    kernel.launch([[matrix(words[0], m, k), matrix(words[1], n, k), matrix(words[2], m, n)]])
    expect(from_bf16(words[2]) == product(a, b, m, n, k), "the product differs")


@check
def a_reduce_scatter_on_four_ranks_of_the_host(flux, bundle):
    ranks, m, n, k = 4, 8, 6, 5
    world = flux.world("host:4")
    found = world.ranks()
    expect((found.world, found.first, found.count) == (4, 0, 4), "four ranks, all of this process")
    kernel = world.load(bundle("gemm_rs"))
    for seed in range(3):
        a = [integers(10 * seed + rank, m * k) for rank in range(ranks)]
        b = [integers(10 * seed + rank + 5, n * k) for rank in range(ranks)]
        c = [to_bf16([99] * (m // ranks * n)) for _ in range(ranks)]
        own = [
            [matrix(to_bf16(a[rank]), m, k), matrix(to_bf16(b[rank]), n, k), matrix(c[rank], m // ranks, n)]
            for rank in range(ranks)
        ]
        kernel.launch(own)
        parts = [product(a[rank], b[rank], m, n, k) for rank in range(ranks)]
        total = [sum(part) for part in zip(*parts)]
        expect([x for part in c for x in from_bf16(part)] == total, f"the sum differs, seed {seed}")


@check
def an_all_gather_on_three_ranks_of_the_host(flux, bundle):
    ranks, m, n, k = 3, 7, 4, 6
    world = flux.world("host:3")
    kernel = world.load(bundle("ag_gemm"))
    shards = [3, 3, 1]
    a = [integers(20 + rank, shards[rank] * k) for rank in range(ranks)]
    b = [integers(30 + rank, n * k) for rank in range(ranks)]
    c = [to_bf16([99] * (m * n)) for _ in range(ranks)]
    own = [
        [matrix(to_bf16(a[rank]), shards[rank], k), matrix(to_bf16(b[rank]), n, k), matrix(c[rank], m, n)]
        for rank in range(ranks)
    ]
    kernel.launch(own)
    for rank in range(ranks):
        expect(from_bf16(c[rank]) == product(sum(a, []), b[rank], m, n, k), f"rank {rank} differs")


def gathered(flux, bundle, world):
    """One rank of three, in a process of its own: its shard, and all rows of the product."""
    m, n, k, shards = 7, 4, 6, [3, 3, 1]
    rank = world.ranks().first
    a = [integers(20 + other, shards[other] * k) for other in range(3)]
    b, c = integers(30 + rank, n * k), to_bf16([99] * (m * n))
    kernel = world.load(bundle("ag_gemm"))
    for _ in range(3):
        own = [matrix(to_bf16(a[rank]), shards[rank], k), matrix(to_bf16(b), n, k), matrix(c, m, n)]
        kernel.launch([own])
        expect(from_bf16(c) == product(sum(a, []), b, m, n, k), f"rank {rank} differs")


@check
def three_processes_of_the_host(flux, bundle):
    if flux.command is None:
        raise Skipped("no --command")
    import subprocess

    again = [sys.executable, "-B", __file__, "--library", flux.path, "--bundles", bundle.folder, "--as-rank"]
    environment = {**os.environ, "FLUX_BACKEND": "host"}
    ended = subprocess.run(
        [flux.command, "launch", "-n", "3", "--", *again],
        env=environment, capture_output=True, text=True, timeout=120,
    )
    said = ended.stdout + ended.stderr
    expect(ended.returncode == 0 and said.count("all is well") == 3, f"status {ended.returncode}: {said}")


@check
def mistakes_on_the_host_are_told(flux, bundle):
    world = flux.world("host:2")
    opened = bundle("gemm_rs")
    expect(opened.name() == "gemm_rs", "the kernel's name")
    names = [(name, written) for name, _, _, written in opened.parameters()]
    expect(names == [("a", False), ("b", False), ("c", True)], f"parameters: {names}")
    kernel = world.load(opened)

    def arguments(rows):
        return [[matrix(to_bf16([0] * 64), 4, 8) for _ in range(2)] + [matrix(to_bf16([0] * 64), rows, 4)]] * 2

    refused(INVALID, "shares memory", lambda: kernel.launch(arguments(2)))
    refused(INVALID, "expected 6 arguments, found 3", lambda: kernel.launch(arguments(2)[:1]))
    refused(INVALID, "found a number", lambda: kernel.launch([[1.0, 2.0, 3.0]] * 2))
    refused(INVALID, "host:8", lambda: flux.world("nowhere"))
    refused(INVALID, "no schedule", lambda: world.load(opened, "sm_90a, no schedule"))
    refused(INVALID, "/no/such/file", lambda: flux.bundle("/no/such/file"))
    kernel.close()
    refused(INVALID, "names nothing", lambda: kernel.launch(arguments(2)))
    try:
        matrix(to_bf16([0] * 3), 2, 2)
    except ValueError:
        return
    raise AssertionError("a buffer that is too small was taken")


@check
def numpy_arrays_come_by_dlpack(flux, bundle):
    try:
        import numpy
    except ImportError:
        raise Skipped("no NumPy") from None
    # NumPy has no bf16, so what it has is refused by name.
    kernel = flux.world("host:1").load(bundle("gemm_bf16"))
    def ones(dtype):
        return [[numpy.ones((2, 2), dtype=dtype) for _ in range(3)]]

    narrow, wide = ones(numpy.float32), ones(numpy.float64)
    refused(INVALID, "is a tensor of bf16, found a tensor of f32", lambda: kernel.launch(narrow))
    refused(INVALID, "found type code 2 of 64 bits", lambda: kernel.launch(wide))
    strided = [[array[:, :1] for array in numpy.ones((3, 2, 2), dtype=numpy.float32)]]
    refused(INVALID, "make it contiguous first", lambda: kernel.launch(strided))


# Of PyTorch.


def torch_of(cuda):
    try:
        import torch
    except ImportError:
        raise Skipped("no PyTorch") from None
    if cuda and not torch.cuda.is_available():
        raise Skipped("no CUDA device")
    return torch


def tensor(torch, seed, rows, cols, device="cuda"):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, (rows, cols), generator=draw).to(torch.bfloat16).to(device)


def equal(torch, found, expected, what):
    different = (found != expected).sum().item()
    expect(different == 0, f"{what}: {different} of {expected.numel()} elements differ")


def matmul(torch, a, b):
    """A · Bᵀ with sums of f32, rounded once."""
    return torch.matmul(a.float(), b.float().t()).to(torch.bfloat16)


def later(torch):
    """Keeps the current stream busy: what is not ordered behind it comes too early."""
    torch.cuda._sleep(50_000_000)


@check
def torch_tensors_of_the_host(flux, bundle):
    torch = torch_of(cuda=False)
    a, b = tensor(torch, 1, 6, 16, "cpu"), tensor(torch, 2, 10, 16, "cpu")
    c = torch.full((6, 10), 99.0, dtype=torch.bfloat16)
    kernel = flux.world("host:1").load(bundle("gemm_bf16"))
    kernel.launch([[a, b, c]])
    equal(torch, c, matmul(torch, a, b), "the product")
    refused(INVALID, "make it contiguous first", lambda: kernel.launch([[a, b.t(), c]]))


@check
def a_product_on_the_current_stream_of_torch(flux, bundle):
    torch = torch_of(cuda=True)
    world = flux.world("gpu:1")
    kernel = world.load(bundle("gemm_bf16"))
    for stream in [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]:
        with torch.cuda.stream(stream):
            for m, n, k in [(128, 256, 64), (500, 264, 200), (1024, 1024, 1024), (500, 264, 200)]:
                inputs = tensor(torch, m, m, k), tensor(torch, n, n, k)
                a, b = torch.zeros_like(inputs[0]), torch.zeros_like(inputs[1])
                c = torch.full((m, n), 99.0, dtype=torch.bfloat16, device="cuda")
                torch.cuda.synchronize()
                later(torch)
                a.copy_(inputs[0])
                b.copy_(inputs[1])
                kernel.launch([[a, b, c]], stream=torch.cuda.current_stream().cuda_stream)
                # Behind the launch, and nothing was waited for.
                found = c.clone()
                c.fill_(7.0)
                torch.cuda.current_stream().synchronize()
                equal(torch, found, matmul(torch, *inputs), f"{m} x {n} x {k}")
                equal(torch, found, torch.matmul(inputs[0], inputs[1].t()), f"cuBLAS, {m} x {n} x {k}")
    world.synchronize()


@check
def virtual_ranks_between_work_of_one_stream_of_torch(flux, bundle):
    torch = torch_of(cuda=True)
    ranks, m, n, k = 4, 512, 384, 256
    world = flux.world(f"gpu:{ranks}")
    expect(world.device(ranks - 1) == 0, "all are on the first GPU")
    scatter, gather = world.load(bundle("gemm_rs")), world.load(bundle("ag_gemm"))
    for seed in range(3):
        a = [tensor(torch, 10 * seed + rank, m, k) for rank in range(ranks)]
        b = [tensor(torch, 10 * seed + rank + 5, n, k) for rank in range(ranks)]
        given = [torch.zeros_like(part) for part in a]
        c = [torch.full((m // ranks, n), 99.0, dtype=torch.bfloat16, device="cuda") for _ in a]
        d = [torch.full((m, n), 99.0, dtype=torch.bfloat16, device="cuda") for _ in a]
        torch.cuda.synchronize()
        later(torch)
        for to, part in zip(given, a):
            to.copy_(part)
        stream = torch.cuda.current_stream().cuda_stream
        scatter.launch([[given[rank], b[rank], c[rank]] for rank in range(ranks)], stream)
        shards = [given[rank][rank * m // ranks : (rank + 1) * m // ranks] for rank in range(ranks)]
        gather.launch([[shards[rank], b[rank], d[rank]] for rank in range(ranks)], stream)
        found, gathered = torch.cat(c), [part.clone() for part in d]
        torch.cuda.current_stream().synchronize()
        total = sum(torch.matmul(a[rank].float(), b[rank].float().t()) for rank in range(ranks))
        # Contributions are rounded to bf16 as they travel; these integers have no bits to lose.
        equal(torch, found, total.to(torch.bfloat16), f"the sum, seed {seed}")
        whole = torch.cat([a[rank][rank * m // ranks : (rank + 1) * m // ranks] for rank in range(ranks)])
        for rank in range(ranks):
            equal(torch, gathered[rank], matmul(torch, whole, b[rank]), f"rank {rank}, seed {seed}")
    world.synchronize()


@check
def symmetric_memory_is_a_tensor_of_torch(flux, bundle):
    torch = torch_of(cuda=True)
    ranks, rows, cols = 2, 64, 128
    world = flux.world(f"gpu:{ranks}")
    symmetric = world.symmetric(rows, cols, BF16)
    own = [torch.from_dlpack(symmetric.part(rank, rank)) for rank in range(ranks)]
    seen = torch.from_dlpack(symmetric.part(0, 1))
    expect(own[0].shape == (rows, cols) and own[0].dtype == torch.bfloat16, "its extents and type")
    expect(own[0].abs().sum().item() == 0, "it is zero at first")
    expect(seen.data_ptr() == own[1].data_ptr(), "ranks of one GPU see the same address")
    a = tensor(torch, 3, rows, cols)
    own[1].copy_(a)
    equal(torch, seen, a, "what rank 0 sees of rank 1")
    symmetric.close()
    single = flux.world("gpu:1")
    c = torch.full((rows, rows), 99.0, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    single.load(bundle("gemm_bf16")).launch([[own[1], own[1], c]], stream)
    torch.cuda.current_stream().synchronize()
    equal(torch, c, matmul(torch, a, a), "the product of what is in it")
    refused(INVALID, "1 to 3", lambda: world.symmetric(2, 2, 7))


@check
def mistakes_with_tensors_of_torch_are_told(flux, bundle):
    torch = torch_of(cuda=True)
    world = flux.world("gpu:1")
    kernel = world.load(bundle("gemm_bf16"))
    a, c = tensor(torch, 1, 64, 64), tensor(torch, 2, 64, 64)
    refused(INVALID, "found the host", lambda: kernel.launch([[a.cpu(), a, c]]))
    refused(INVALID, "make it contiguous first", lambda: kernel.launch([[a[:, :32], a, c]]))
    refused(INVALID, "found a tensor of f32", lambda: kernel.launch([[a.float(), a, c]]))
    refused(INVALID, "shares memory", lambda: kernel.launch([[a, a, a]]))
    refused(INVALID, "k = 32", lambda: kernel.launch([[a[:, :32].contiguous(), a, c]]))
    kernel.launch([[a, a, c]], torch.cuda.current_stream().cuda_stream)
    torch.cuda.current_stream().synchronize()
    equal(torch, c, matmul(torch, a, a), "a launch behind all of them")


@check
def a_rank_that_is_alone_gives_up_and_recovers(flux, bundle):
    torch = torch_of(cuda=True)
    ranks, m, n, k = 2, 256, 256, 64
    world = flux.world(f"gpu:{ranks}", limit_ms=500)
    kernel = world.load(bundle("gemm_rs"))
    a = [tensor(torch, rank, m, k) for rank in range(ranks)]
    b = [tensor(torch, rank + 5, n, k) for rank in range(ranks)]
    c = [torch.full((m // ranks, n), 99.0, dtype=torch.bfloat16, device="cuda") for _ in a]
    own = [[a[rank], b[rank], c[rank]] for rank in range(ranks)]
    # The ranks' own streams order nothing.
    torch.cuda.synchronize()
    kernel.launch(own)
    world.synchronize()
    kernel.launch_rank(0, own[0])
    refused(STALLED, "rank 0 stalled", world.synchronize)
    world.recover()
    for part in c:
        part.fill_(99.0)
    torch.cuda.synchronize()
    kernel.launch(own)
    world.synchronize()
    total = sum(torch.matmul(a[rank].float(), b[rank].float().t()) for rank in range(ranks))
    equal(torch, torch.cat(c), total.to(torch.bfloat16), "the sum after recovery")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--library", required=True, help="libflux.so")
    parser.add_argument("--bundles", required=True, help="a folder with NAME.flux-bundle")
    parser.add_argument("--command", help="the flux command, to start processes")
    parser.add_argument("--as-rank", action="store_true", help="be one of three processes")
    parser.add_argument("filters", nargs="*", help="parts of the names of checks to make; all of them otherwise")
    options = parser.parse_args()
    flux = Flux(options.library)
    flux.path, flux.command = options.library, options.command
    opened = {}

    def bundle(name):
        if name not in opened:
            opened[name] = flux.bundle(Path(options.bundles) / f"{name}.flux-bundle")
        return opened[name]

    bundle.folder = options.bundles
    if options.as_rank:
        gathered(flux, bundle, flux.world("env"))
        print("all is well", flush=True)
        return 0
    print(f"flux {flux.version()}, Python {sys.version.split()[0]}")
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for function in CHECKS:
        name = function.__name__
        if options.filters and not any(part in name for part in options.filters):
            continue
        try:
            function(flux, bundle)
            outcome = "ok"
        except Skipped as reason:
            outcome = "skipped"
            name += f" (skipped: {reason})"
        except Exception:
            outcome = "FAILED"
            traceback.print_exc()
        counts[outcome] += 1
        print(f"{outcome:8}{name}", flush=True)
    # In the words of Rust's tests, for what counts them.
    verdict = "FAILED" if counts["FAILED"] else "ok"
    passed, failed, skipped = counts["ok"], counts["FAILED"], counts["skipped"]
    print(f"test result: {verdict}. {passed} passed; {failed} failed; {skipped} ignored;")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
