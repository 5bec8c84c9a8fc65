"""One of two processes in a test of DistributedDataParallel: ``two_processes.py FOLDER RANK``."""

import os
import sys
from pathlib import Path

import torch

from nestax.torch import Cox, CVaRRobust, Tracked

STEPS = 10
BATCH = 4
ROWS = 8


class Model(torch.nn.Module):
    """A loss with all kinds of memory."""

    def __init__(self):
        super().__init__()
        options = {"dtype": torch.float64}
        self.w = torch.nn.Parameter(torch.tensor([0.3, -0.2], **options))
        self.single = Tracked(beta=0.2, **options)
        self.storm = Tracked(beta=0.2, **options)
        self.gains = Tracked(gain="auto", **options)
        self.logarithm = Tracked(beta=0.2, log=True, **options)
        self.table = Tracked(n=ROWS, beta=0.2, **options)
        self.cox = Cox(range(ROWS), ROWS * [True], **options)
        self.worst = CVaRRobust(ROWS, share=0.5, **options)

    def forward(self, x, index, w_old):
        new = (x @ self.w).exp()
        old = (x @ w_old).exp()
        one = self.single(new.mean()).log() + self.storm(new.mean(), previous=old.mean()).log()
        one = one + self.logarithm(new.mean().log())
        one = one + self.cox(x @ self.w, index) + self.worst(new, index)
        return one + self.gains(new, previous=old).log() + self.table(new, index).log().mean()


def run(wrap, rank: int, processes: int) -> dict[str, torch.Tensor]:
    """Weights and memories after some steps of descent, on this process's share of every batch."""
    model = Model()
    loss = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    w_old = model.w.detach().clone()
    for _ in range(STEPS):
        x = torch.randn(BATCH, 2, dtype=torch.float64, generator=generator).chunk(processes)[rank]
        index = torch.randperm(ROWS, generator=generator)[:BATCH].chunk(processes)[rank]
        before = model.w.detach().clone()
        optimizer.zero_grad()
        loss(x, index, w_old).backward()
        optimizer.step()
        w_old = before
    return model.state_dict()


def main(folder: Path, rank: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    # Without broadcasts of buffers, which would hide memories that differ.
    parallel = torch.nn.parallel.DistributedDataParallel
    state = run(lambda model: parallel(model, broadcast_buffers=False), rank, 2)
    same_row = Tracked(n=2, beta=0.2)
    same_row(torch.tensor([1.0 + rank]), [0])
    torch.save({**state, "same row": same_row.value}, folder / f"{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # Gloo's threads may still run, and would now and then abort an orderly end


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
