# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint: every rank saves, and loads what all have saved."""
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = torch.nn.Linear(8, 8)
    dcp.save({"model": model.state_dict()}, checkpoint_id=sys.argv[1])
    expected = model.weight.detach().clone()
    other = torch.nn.Linear(8, 8)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=sys.argv[1])
    other.load_state_dict(state["model"])
    assert torch.equal(other.weight, expected)
    if dist.get_rank() == 0:
        print("DONE")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
