"""Cold compile of y = a*b + tanh(a) by torch.compile, in the first round only: it takes seconds."""
import os
import tempfile
import time

import peer


def main():
    options = peer.options()
    if options.round:
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        import torch
        a, b = torch.randn(2, 32 * 1024, device=options.device)
        (a * b + torch.tanh(a)).sum().item()
        compiled = torch.compile(lambda a, b: a * b + torch.tanh(a))
        start = time.perf_counter()
        compiled(a, b).sum().item()
        peer.report("cold compile: a*b + tanh(a)", "torch.compile", (time.perf_counter() - start) * 1e3, "ms")


main()
