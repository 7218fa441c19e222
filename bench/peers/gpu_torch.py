"""PyTorch on a CUDA card: products, copy rate, and a graph of tiny dependent kernels."""
import sys

import peer


def main():
    options = peer.options()
    import torch
    if not torch.cuda.is_available():
        peer.note("gpu_torch: no CUDA card here")
        return
    torch.set_grad_enabled(False)
    if options.round == 0:
        peer.note(f"torch: {torch.__version__}, {torch.cuda.get_device_name()}")

    def timed(call):
        return peer.seconds_per_call(call, options.seconds * 5, torch.cuda.synchronize)

    size = 4096
    types = {"f32": torch.float32, "f32x3": torch.float32, "f32x6": torch.float32, "f16": torch.float16,
             "bf16": torch.bfloat16}
    for name, dtype in types.items():
        for form in ("nn", "tn", "nt"):
            case = f"product {size} {name} {form}"
            if options.filter not in case:
                continue
            a, b = (torch.rand(size, size, device="cuda").mul_(2).sub_(1).to(dtype) for _ in range(2))
            a, b = a.T if form == "tn" else a, b.T if form == "nt" else b
            out = torch.empty(size, size, device="cuda", dtype=dtype)
            seconds = timed(lambda: torch.mm(a, b, out=out))
            peer.report(case, "torch", 2 * size**3 / seconds * 1e-12, "TFLOP/s")

    if options.filter in "elementwise 256M":
        count = 256 << 20
        x, y = torch.rand(count, device="cuda"), torch.rand(count, device="cuda")
        out = torch.empty_like(x)
        peer.report("elementwise 256M", "copy", 8 * count / timed(lambda: out.copy_(x)) * 1e-9, "GB/s")

        def eager():
            torch.tanh(x, out=out)
            out.addcmul_(x, y)
        peer.report("elementwise 256M", "torch", 12 * count / timed(eager) * 1e-9, "GB/s")

    if options.filter in "tiny dependent dispatch":
        value = torch.rand(1024, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = value
            for _ in range(200):
                result = result * 0.5
        peer.report("tiny dependent dispatch", "torch graph", timed(graph.replay) / 200 * 1e6, "us")


if __name__ == "__main__":
    sys.exit(main())
