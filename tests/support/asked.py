"""What a run is asked for in a test, flat: so that one thing can be varied at a time."""

import nestax as nx


def asked(
    checkpoint=None,
    checkpoint_every=60.0,
    resume=False,
    mesh=None,
    shard=None,
    seconds=None,
    target_gap=None,
    patience=None,
    **rest,
):
    """The arguments of ``minimize`` and ``sweep`` that say so."""
    rules = {nx.stop.Seconds: seconds, nx.stop.Gap: target_gap, nx.stop.Patience: patience}
    stop = [rule(value) for rule, value in rules.items() if value is not None]
    out = rest | ({"stop": stop} if stop else {})
    if checkpoint is not None:
        out["checkpoint"] = nx.Checkpoint(checkpoint, checkpoint_every, resume)
    return out | ({} if mesh is None else {"devices": nx.Devices(mesh, shard)})
