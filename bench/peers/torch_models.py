"""The models of steps.cpp and programs.cpp in PyTorch, and their training step."""
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
LARGE = {"transformer 6x384": (64, 256, lambda: Transformer(256, 384, 1536, 6, 6))}


def training(name, device, compiled=False, capturable=False, autocast=False):
    """A function that does one step (forward, backward, AdamW) of the named case on a fixed batch."""
    batch, context, make = (CASES | LARGE)[name]
    torch.manual_seed(1)
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=capturable, fused=capturable or None)
    x = (torch.arange(batch * context, device=device) * 7 % VOCAB).view(batch, context)
    y = (x + 7) % VOCAB
    forward = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(forward(x).view(-1, VOCAB), y.view(-1))
        loss.backward()
        optimizer.step()

    return step
