"""The training steps of steps.cpp by PyTorch, eager: the same models, AdamW, cross entropy."""
import os
import resource

import torch

import peer
import torch_models


def main():
    options = peer.options()
    torch.set_num_threads(int(os.environ.get("OA_THREADS", "2")))
    if options.round == 0:
        peer.note(f"torch: {torch.__version__}, threads {torch.get_num_threads()}")
    for name in torch_models.CASES:
        if options.filter in name:
            step = torch_models.training(name, options.device)
            peer.report(name, "torch", peer.seconds_per_call(step, options.seconds * 10) * 1e3, "ms")
    if options.filter in "memory peak":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        peer.report("memory peak", "torch", peak, "MiB")


main()
