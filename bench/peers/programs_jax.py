"""The training programs of programs.cpp by JAX: the whole step one compiled function, on the CPU."""
import os

threads = os.environ.get("OA_THREADS", "2")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# XLA sizes its pool by the processors that it may use.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(threads)])

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import peer  # noqa: E402

VOCAB = 256


class Keys:
    """Fresh random numbers for initial weights."""

    def __init__(self):
        self.key = jax.random.PRNGKey(1)

    def uniform(self, shape, fan_in):
        self.key, key = jax.random.split(self.key)
        bound = fan_in ** -0.5
        return jax.random.uniform(key, shape, jnp.float32, -bound, bound)

    def linear(self, n_in, n_out):
        return {"w": self.uniform((n_in, n_out), n_in), "b": self.uniform((n_out,), n_in)}


def linear(p, x):
    return x @ p["w"] + p["b"]


def norm(p, x):
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return centred * scale * p["w"] + p["b"]


def transformer(context, width, hidden, layers, heads):
    keys = Keys()
    unit = lambda: {"w": jnp.ones(width), "b": jnp.zeros(width)}  # noqa: E731
    params = {"tokens": keys.uniform((VOCAB, width), 1), "positions": keys.uniform((context, width), 1),
              "norm": unit(), "head": keys.linear(width, VOCAB),
              "blocks": [{"ln_attn": unit(), "ln_ffn": unit(),
                          **{n: keys.linear(width, width) for n in ("q", "k", "v", "out")},
                          "ffn1": keys.linear(width, hidden), "ffn2": keys.linear(hidden, width)}
                         for _ in range(layers)]}
    causal = jnp.tril(jnp.ones((context, context), bool))

    def block(p, x):
        batch = x.shape[0]
        n = norm(p["ln_attn"], x)
        q, k, v = (linear(p[f], n).reshape(batch, context, heads, -1) for f in ("q", "k", "v"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, context, width)
        x = x + linear(p["out"], y)
        return x + linear(p["ffn2"], jax.nn.gelu(linear(p["ffn1"], norm(p["ln_ffn"], x)), approximate=True))

    def forward(p, tokens):
        x = p["tokens"][tokens] + p["positions"]
        for b in p["blocks"]:
            x = block(b, x)
        return linear(p["head"], norm(p["norm"], x))

    return params, forward


def recurrent(gates, width, hidden):
    """PyTorch's RNN (1 gate) or GRU (3)."""
    keys = Keys()
    params = {"tokens": keys.uniform((VOCAB, width), 1), "in": keys.linear(width, gates * hidden),
              "rec": keys.linear(hidden, gates * hidden), "head": keys.linear(hidden, VOCAB)}

    def cell(p, h, x):
        r = linear(p["rec"], h)
        if gates == 1:
            return jnp.tanh(x + r)
        reset = jax.nn.sigmoid(x[:, :hidden] + r[:, :hidden])
        update = jax.nn.sigmoid(x[:, hidden:2 * hidden] + r[:, hidden:2 * hidden])
        new = jnp.tanh(x[:, 2 * hidden:] + reset * r[:, 2 * hidden:])
        return (1 - update) * new + update * h

    def forward(p, tokens):
        x = linear(p["in"], p["tokens"][tokens])
        def step(h, now):
            h = cell(p, h, now)
            return h, h

        h = jnp.zeros((tokens.shape[0], hidden))
        _, states = jax.lax.scan(step, h, x.swapaxes(0, 1))  # faster here than unrolled
        return linear(p["head"], states.swapaxes(0, 1))

    return params, forward


CASES = {
    "tiny transformer": (64, 16, lambda: transformer(16, 32, 64, 1, 1)),
    "tiny rnn": (64, 16, lambda: recurrent(1, 32, 64)),
    "tiny gru": (64, 16, lambda: recurrent(3, 32, 64)),
    "transformer 4x128": (16, 128, lambda: transformer(128, 128, 512, 4, 4)),
}


def training(batch, context, make):
    params, forward = make()
    x = (jnp.arange(batch * context) * 7 % VOCAB).reshape(batch, context)
    y = (x + 7) % VOCAB

    def loss_of(p):
        logits = jax.nn.log_softmax(forward(p, x))
        return -jnp.take_along_axis(logits, y[..., None], -1).mean()

    def adamw(p, g, m, v, t):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        update = m / (1 - 0.9 ** t) / (jnp.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
        return p * (1 - 1e-5) - 1e-3 * update, m, v

    def step(state):
        p, m, v, t = state
        loss, g = jax.value_and_grad(loss_of)(p)
        t = t + 1
        leaves, tree = jax.tree.flatten(p)
        new = [adamw(*each, t) for each in zip(leaves, tree.flatten_up_to(g), tree.flatten_up_to(m),
                                               tree.flatten_up_to(v))]
        return tuple(tree.unflatten([n[i] for n in new]) for i in range(3)) + (t,), loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    state = (params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.float32(0))
    compiled = jax.jit(step, donate_argnums=0).lower(state).compile()
    last = {"state": state}

    def call():
        last["state"], last["loss"] = compiled(last["state"])

    return call, lambda: jax.block_until_ready(last["state"])


def main():
    options = peer.options()
    if options.device != "cpu":
        return
    if options.round == 0:
        peer.note(f"jax: {jax.__version__}, {jax.devices()[0]}, threads {threads}")
    for name, (batch, context, make) in CASES.items():
        if options.filter in name:
            call, wait = training(batch, context, make)
            seconds = peer.seconds_per_call(call, options.seconds * 10, wait)
            peer.report(name, "jax", seconds * 1e3, "ms")


main()
