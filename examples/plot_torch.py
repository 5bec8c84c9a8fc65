"""
Contrastive learning in PyTorch
===============================

InfoNCE divides by a mean over negatives, of which a small batch has few. ``nestax.torch.InfoNCE``
remembers that mean for every anchor; it is a module like any other, and imports no JAX.
"""

# sphinx_gallery_thumbnail_path = 'images/gallery/plot_torch.png'

import matplotlib.pyplot as plt
import numpy as np
import torch

from nestax.torch import InfoNCE

torch.manual_seed(0)
torch.set_num_threads(2)
ROWS, KINDS = 1_024, 8
kind = torch.arange(ROWS) % KINDS
centre = torch.randn(KINDS, 12)
content = centre[kind] + 0.5 * torch.randn(ROWS, 12)


def views(rows):
    """Two looks at the same rows: other noise, and other coordinates that say nothing."""
    look = lambda: torch.cat(
        [content[rows] + 0.7 * torch.randn(len(rows), 12), 1.5 * torch.randn(len(rows), 20)], 1
    )
    return look(), look()


def train(batch, remember, steps=3_000):
    torch.manual_seed(1)
    encoder = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    loss = InfoNCE(ROWS, temperature=0.2, beta=0.1 if remember else 1.0)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    seen = []
    for step in range(steps):
        rows = torch.randperm(ROWS)[:batch]
        one, two = (torch.nn.functional.normalize(encoder(view), dim=1) for view in views(rows))
        optimizer.zero_grad()
        loss(one @ two.T, rows).backward()
        optimizer.step()
        if step % 100 == 0:
            seen.append(neighbours(encoder))
    return seen


@torch.no_grad()
def neighbours(encoder):
    """The share of rows whose nearest neighbour, in another look, is of the same kind."""
    state = torch.get_rng_state()
    torch.manual_seed(2)
    one, two = (
        torch.nn.functional.normalize(encoder(view), dim=1) for view in views(torch.arange(ROWS))
    )
    torch.set_rng_state(state)
    near = (one @ two.T).fill_diagonal_(-2).argmax(1)
    return float((kind[near] == kind).float().mean())


# %%
# Small batches with and without the memory, and a large one; by the number of steps.

runs = {
    "batch of 8": (train(8, remember=False), "#ea7a2f"),
    "batch of 8, remembered": (train(8, remember=True), "#1f5fa8"),
    "batch of 128": (train(128, remember=False), "#9aa5b4"),
}
figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
for name, (seen, colour) in runs.items():
    axes.plot(
        100 * np.arange(len(seen)), seen, color=colour, lw=2, label=f"{name}: {np.mean(seen[-5:]):.1%}"
    )
axes.set(
    xlabel="step", ylabel="nearest neighbour of the same kind", title="Contrastive learning of 8 kinds"
)
axes.legend(frameon=False)
plt.show()

# %%
print({name: f"{np.mean(seen[-5:]):.1%}" for name, (seen, _) in runs.items()})
