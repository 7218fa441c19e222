"""The training programs of programs.cpp by PyTorch: eager; compiled; on a GPU also a CUDA graph's replay."""
import os

import torch

import peer
import torch_models


def replay_of(name, device):
    """A CUDA graph of the step."""
    step = torch_models.training(name, device, capturable=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def main():
    options = peer.options()
    gpu = options.device == "cuda"
    torch.set_num_threads(int(os.environ.get("OA_THREADS", "2")))
    if options.round == 0:
        device = torch.cuda.get_device_name() if gpu else f"threads {torch.get_num_threads()}"
        peer.note(f"torch: {torch.__version__}, {device}")
    ways = {"torch": lambda name: torch_models.training(name, options.device),
            "torch compiled": lambda name: torch_models.training(name, options.device, compiled=True)}
    if gpu:
        ways["torch cuda graph"] = lambda name: replay_of(name, options.device)
    synchronize = torch.cuda.synchronize if gpu else lambda: None
    for name in torch_models.CASES:
        if options.filter not in name:
            continue
        for who, make in ways.items():
            # The compiler is the same in every round, and slow.
            if who == "torch compiled" and options.round >= 3:
                continue
            seconds = peer.seconds_per_call(make(name), options.seconds * 10, synchronize)
            peer.report(name, who, seconds * 1e3, "ms")
    for name in torch_models.LARGE if gpu else ():
        # The split products stand beside plain f32, without TF32, which is PyTorch's default.
        for case, who, autocast in ((name, "torch", False), (f"{name} f32x3", "torch", False),
                                    (f"{name} f16", "torch autocast", True),
                                    (f"{name} bf16", "torch autocast", True)):
            if options.filter in case:
                step = torch_models.training(name, options.device, autocast=autocast)
                seconds = peer.seconds_per_call(step, options.seconds * 10, synchronize)
                peer.report(case, who, seconds * 1e3, "ms")


main()
