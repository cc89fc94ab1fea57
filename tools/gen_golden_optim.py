#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/optim.txt and schedules.txt: what PyTorch makes of the same parameters.

  python3 tools/gen_golden_optim.py      (needs torch)

optim.txt: the parameters of the linear classifier 12 -> 20 -> 6 ("0.weight", "0.bias", "2.weight",
"2.bias") after 12 updates with made gradients, for each case. Parameter p (0 to 3) starts as
(Uniform(1 + p, i) - 0.5) * 0.5 and has in update u the gradient (Uniform(100 + 10 u + p, i) - 0.5) *
0.2. Uniform is that of tools/gen_golden_mlp.py. A case is a line "case NAME" and then a line for each
parameter: its sum and sum of squares in fp64, then its first 8 elements; cases with an average have
its lines after them.

LAMB is not in torch: it is written out here in fp64 from the paper. Muon is torch's formula with the
iteration in fp64 (torch rounds it to bf16, which this checks to be near).

schedules.txt: "case NAME" and the learning rate of updates 0 to 29, as torch's schedulers give it for
an optimizer with lr 1.
"""
import math
import pathlib
import warnings

import torch

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"
SHAPES = [(20, 12), (20,), (6, 20), (6,)]
UPDATES = 12
MASK = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform(site, count):
    return torch.tensor([(mix((site << 32) + i) & 0xFFFFFF) * 2.0**-24 for i in range(count)],
                        dtype=torch.float32)


def start(dtype=torch.float32):
    return [((uniform(1 + p, math.prod(s)) - 0.5) * 0.5).reshape(s).to(dtype).requires_grad_()
            for p, s in enumerate(SHAPES)]


def gradient(update, p, dtype=torch.float32):
    flat = (uniform(100 + 10 * update + p, math.prod(SHAPES[p])) - 0.5) * 0.2
    return flat.reshape(SHAPES[p]).to(dtype)


def run(make, clip=None, ema=None, dtype=torch.float32):
    """`make(parameters)` returns the optimizers; each has step()."""
    parameters = start(dtype)
    optimizers = make(parameters)
    averages = None
    for update in range(UPDATES):
        for p, parameter in enumerate(parameters):
            parameter.grad = gradient(update, p, dtype)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        for optimizer in optimizers:
            optimizer.step()
        now = [parameter.detach().clone() for parameter in parameters]
        if averages is None:
            averages = now
        elif ema is not None:
            averages = [torch.lerp(a, w, 1 - ema) for a, w in zip(averages, now)]
    return [p.detach() for p in parameters] + (averages if ema is not None else [])


class Lamb:
    """You et al. 2020, algorithm 2, phi(z) = z."""

    def __init__(self, parameters, lr, betas, eps, weight_decay):
        self.parameters, self.lr, self.betas, self.eps, self.wd = parameters, lr, betas, eps, weight_decay
        self.m = [torch.zeros_like(p) for p in parameters]
        self.v = [torch.zeros_like(p) for p in parameters]
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for p, m, v in zip(self.parameters, self.m, self.v):
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            u = (m / (1 - b1**self.t)) / ((v / (1 - b2**self.t)).sqrt() + self.eps) + self.wd * p
            ratio = p.norm() / u.norm()
            p.sub_(self.lr * ratio * u)


class Muon:
    """torch.optim.Muon with the iteration in the parameters' own type."""

    def __init__(self, parameters, lr, weight_decay, momentum, nesterov, match_rms):
        self.parameters, self.lr, self.wd = parameters, lr, weight_decay
        self.momentum, self.nesterov, self.match_rms = momentum, nesterov, match_rms
        self.b = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self):
        for p, b in zip(self.parameters, self.b):
            b.lerp_(p.grad, 1 - self.momentum)
            x = p.grad.lerp(b, self.momentum) if self.nesterov else b.clone()
            x = x / x.norm().clamp(min=1e-7)
            tall = x.size(0) > x.size(1)
            x = x.T if tall else x
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            x = x.T if tall else x
            rows, columns = p.shape
            factor = 0.2 * math.sqrt(max(rows, columns)) if self.match_rms else math.sqrt(max(1, rows / columns))
            p.mul_(1 - self.lr * self.wd).sub_(self.lr * factor * x)


def muon_cases():
    def make(match_rms, nesterov, cls=None):
        def build(p):
            # 2.weight is the output layer: AdamW's.
            rest = torch.optim.AdamW([p[1], p[2], p[3]], lr=3e-3, weight_decay=0.01)
            if cls is None:
                return [Muon([p[0]], 0.02, 0.1, 0.95, nesterov, match_rms), rest]
            return [torch.optim.Muon([p[0]], lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=nesterov,
                                     adjust_lr_fn="match_rms_adamw" if match_rms else "original"), rest]
        return build
    cases = {}
    for name, match_rms, nesterov in (("muon", False, True), ("muon_rms", True, False)):
        ours = run(make(match_rms, nesterov), dtype=torch.float64)
        theirs = run(make(match_rms, nesterov, torch.optim.Muon))
        worst = max((a - b.double()).abs().max().item() for a, b in zip(ours, theirs))
        assert worst < 0.02, worst  # bf16 of 12 updates of 0.02
        cases[name] = ours
    return cases


def optimizer_cases():
    o = torch.optim
    cases = {
        "sgd": run(lambda p: [o.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True)]),
        "adam": run(lambda p: [o.Adam(p, lr=3e-3, weight_decay=0.05)]),
        "adamw": run(lambda p: [o.AdamW(p, lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)]),
        "adamw_groups": run(lambda p: [o.AdamW([
            {"params": [p[0], p[2]]},
            {"params": [p[1]], "lr": 6e-3, "weight_decay": 0.3},
            {"params": [p[3]], "weight_decay": 0}], lr=3e-3, weight_decay=0.1)]),
        "adamw_clip_ema": run(lambda p: [o.AdamW(p, lr=3e-3, eps=1e-3, weight_decay=0.1)], clip=0.3, ema=0.9),
        "lamb": run(lambda p: [Lamb(p, 3e-3, (0.9, 0.999), 1e-6, 0.05)], dtype=torch.float64),
    }
    cases.update(muon_cases())
    return cases


def schedule_cases():
    s = torch.optim.lr_scheduler
    total, warm = 30, 5

    def after_warmup(make):
        def build(optimizer):
            # LinearLR reaches its end one update later than our warm-up: start at 1/5 of 5.
            first = s.LambdaLR(optimizer, lambda t: (t + 1) / warm)
            return s.SequentialLR(optimizer, [first, make(optimizer)], milestones=[warm])
        return build
    cases = {
        "cosine": lambda o: s.CosineAnnealingLR(o, total, eta_min=0.1),
        "step": lambda o: s.StepLR(o, 7, gamma=0.5),
        "milestones": lambda o: s.MultiStepLR(o, [4, 20], gamma=0.1),
        "linear": lambda o: s.LinearLR(o, 1, 0.2, total),
        "polynomial": lambda o: s.PolynomialLR(o, total, 2.0),
        "exponential": lambda o: s.ExponentialLR(o, 0.9),
        "one_cycle": lambda o: s.OneCycleLR(o, max_lr=1, total_steps=total, cycle_momentum=False),
        "one_cycle_linear": lambda o: s.OneCycleLR(o, max_lr=1, total_steps=total, pct_start=0.4, div_factor=10,
                                                   final_div_factor=100, anneal_strategy="linear",
                                                   cycle_momentum=False),
        "warmup_step": after_warmup(lambda o: s.StepLR(o, 7, gamma=0.5)),
        "warmup_linear": after_warmup(lambda o: s.LinearLR(o, 1, 0.2, total - warm)),
    }
    out = {}
    for name, make in cases.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)
        scheduler = make(optimizer)
        rates = []
        for _ in range(total):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step() if len(rates) < total else None
        out[name] = rates
    return out


def main():
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    header = "# Made by tools/gen_golden_optim.py; the format is described there.\n"
    with open(GOLDEN / "optim.txt", "w") as file:
        file.write(header)
        for name, tensors in optimizer_cases().items():
            file.write(f"case {name}\n")
            for tensor in tensors:
                flat = tensor.double().flatten()
                numbers = [flat.sum(), flat.square().sum(), *flat[:8]]
                file.write(" ".join(f"{float(x):.9g}" for x in numbers) + "\n")
    with open(GOLDEN / "schedules.txt", "w") as file:
        file.write(header)
        for name, rates in schedule_cases().items():
            file.write(f"case {name}\n" + " ".join(f"{rate:.12g}" for rate in rates) + "\n")


if __name__ == "__main__":
    main()
