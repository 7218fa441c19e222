"""The training steps of steps.cpp by PyTorch, eager: the same models, AdamW, cross entropy."""
import os
import resource

import torch
import torch.nn.functional as F
from torch import nn

import peer

VOCAB = 256


class Block(nn.Module):
    def __init__(self, width, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_attn, self.ln_ffn = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.ffn1, self.ffn2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        batch, length, width = x.shape
        n = self.ln_attn(x)
        q, k, v = (f(n).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.ffn2(F.gelu(self.ffn1(self.ln_ffn(x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self, context, width, hidden, layers, heads):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, hidden, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions.weight)))


class Recurrent(nn.Module):
    def __init__(self, kind, width, hidden):
        super().__init__()
        self.embed, self.body = nn.Embedding(VOCAB, width), kind(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, VOCAB)

    def forward(self, x):
        return self.head(self.body(self.embed(x))[0])


CASES = {
    "tiny transformer": (64, 16, lambda: Transformer(16, 32, 64, 1, 1)),
    "tiny rnn": (64, 16, lambda: Recurrent(nn.RNN, 32, 64)),
    "tiny gru": (64, 16, lambda: Recurrent(nn.GRU, 32, 64)),
    "transformer 4x128": (16, 128, lambda: Transformer(128, 128, 512, 4, 4)),
}


def main():
    options = peer.options()
    torch.set_num_threads(int(os.environ.get("OA_THREADS", "2")))
    if options.round == 0:
        peer.note(f"torch: {torch.__version__}, threads {torch.get_num_threads()}")
    for name, (batch, context, make) in CASES.items():
        if options.filter not in name:
            continue
        torch.manual_seed(1)
        model = make().to(options.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x = (torch.arange(batch * context, device=options.device) * 7 % VOCAB).view(batch, context)
        y = (x + 7) % VOCAB

        def step():
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(x).view(-1, VOCAB), y.view(-1)).backward()
            optimizer.step()

        seconds = peer.seconds_per_call(step, options.seconds * 10)
        peer.report(name, "torch", seconds * 1e3, "ms")
    if options.filter in "memory peak":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        peer.report("memory peak", "torch", peak, "MiB")


main()
