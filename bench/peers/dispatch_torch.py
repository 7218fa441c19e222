"""PyTorch's cost per operation beside OA's: eager calls on the CPU, of 60 dependent small ones."""
import os

import torch

import peer


def main():
    options = peer.options()
    torch.set_num_threads(int(os.environ.get("OA_THREADS", "2")))
    torch.set_grad_enabled(False)
    x = torch.randn(32 * 1024, device=options.device)
    one = torch.randn(1, device=options.device)
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None

    def chain(value):
        for _ in range(60):
            value = value * 0.5
        return value

    def hundred():
        value = one
        for _ in range(100):
            value = value * 0.5

    timed = lambda call: peer.seconds_per_call(call, options.seconds, synchronize)
    peer.report("60 dependent kernels of 32K", "torch", timed(lambda: chain(x)) * 1e6, "us")
    peer.report("overhead per kernel", "torch", timed(lambda: chain(one)) / 60 * 1e6, "us")
    peer.report("recording an op", "torch", timed(hundred) / 100 * 1e6, "us")


main()
