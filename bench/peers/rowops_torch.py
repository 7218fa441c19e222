"""Row softmax, layer statistics and row sums by PyTorch; the outputs are allocated once."""
import os

import torch

import peer

SHAPES = [(4096, 1024), (65536, 64), (64, 50257)]


def main():
    options = peer.options()
    torch.set_num_threads(int(os.environ.get("OA_THREADS", "2")))
    torch.set_grad_enabled(False)
    if options.round == 0:
        peer.note(f"torch: {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, "
                  f"threads {torch.get_num_threads()}")
    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    for rows, cols in SHAPES:
        x = torch.randn(rows, cols, device=options.device)
        full, mean = torch.empty_like(x), x.mean(-1)
        # The ways to compute each; PyTorch's layer norm finds the statistics faster than var_mean.
        cases = {
            "softmax": (8, [lambda: torch.softmax(x, -1, out=full)]),
            "statistics": (4, [lambda: torch.var_mean(x, -1, correction=0),
                               lambda: torch.native_layer_norm(x, [cols], None, None, 1e-5)]),
            "sum": (4, [lambda: torch.sum(x, -1, out=mean)]),
        }
        for kind, (bytes_each, ways) in cases.items():
            name = f"{kind} {rows}x{cols}"
            if options.filter not in name:
                continue
            seconds = min(peer.seconds_per_call(way, options.seconds, synchronize) for way in ways)
            peer.report(name, "torch", bytes_each * x.numel() / seconds * 1e-9, "GB/s")


main()
