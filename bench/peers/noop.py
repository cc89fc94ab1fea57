# SPDX-License-Identifier: Apache-2.0
"""The peer of bench/startup.py: forms the group, meets once, leaves."""
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
